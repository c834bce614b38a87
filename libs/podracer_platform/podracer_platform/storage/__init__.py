"""Object stores beyond a folder; no torch.

stores        opens the store at a URL
s3            s3://bucket/prefix
leased        s3://bucket/prefix with the keys of a lease
spool         a folder of this machine on the way to a store
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_platform.storage.leased import LeaseAccess
    from podracer_platform.storage.s3 import S3Settings, S3Store
    from podracer_platform.storage.spool import Spool, SpoolFolder
    from podracer_platform.storage.stores import open_store
else:
    __all__, __getattr__ = exports(__name__)

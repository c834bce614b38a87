"""Object stores beyond a folder; no torch.

stores        opens the store at a URL; a spool, a folder of this machine on the way to a store
s3            s3://bucket/prefix, also with the keys of a lease
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_platform.storage.s3 import LeaseAccess, S3Settings, S3Store
    from podracer_platform.storage.stores import Spool, SpoolFolder, open_store
else:
    __all__, __getattr__ = exports(__name__)

"""The files of a job, code and data sets, and their transfer from the user's folder to a pod; no
torch.

limits       their maximum sizes, and the allowed paths in a code archive
pack         a user's code in a folder -> an archive, the same bytes for the same content
unpack       an untrusted archive -> a folder
cache        files by hash in a bounded folder of this machine, for several processes
placement    settings of services with a cache; the environment of a job -> one that can be started
             from the cache
transfer     files from one service to another
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_platform.attachments import pack, transfer, unpack
    from podracer_platform.attachments.cache import FileCache
    from podracer_platform.attachments.limits import (
        CHUNK_BYTES, MAX_DATA_BYTES, MAX_PACKED_BYTES, mebibytes,
    )
    from podracer_platform.attachments.pack import code_files, pack_code
    from podracer_platform.attachments.placement import (
        FILES_MISSING, PlacedEnvironment, PodSettings, place_environment,
    )
    from podracer_platform.attachments.transfer import (
        FileReceiver, file_pieces, put_file, receive_artifact, sha256_of,
    )
    from podracer_platform.attachments.unpack import announced_bytes, unpack_code
else:
    __all__, __getattr__ = exports(__name__)

"""The files of a job, code and data sets, and their transfer from the user's folder to a pod; no
torch.

code_archive  a user's code in a folder -> an archive, and back; limits of files
cache         files by hash in a bounded folder of this machine, for several processes; environments
              that use files from there
transfer      files from one service to another
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_platform.attachments import code_archive, transfer
    from podracer_platform.attachments.cache import (
        FILES_MISSING, FileCache, PlacedEnvironment, place_environment,
    )
    from podracer_platform.attachments.code_archive import (
        CHUNK_BYTES, MAX_DATA_BYTES, MAX_PACKED_BYTES, announced_bytes, code_files, mebibytes,
        pack_code, unpack_code,
    )
    from podracer_platform.attachments.transfer import (
        FileReceiver, file_pieces, put_file, receive_artifact, sha256_of,
    )
else:
    __all__, __getattr__ = exports(__name__)

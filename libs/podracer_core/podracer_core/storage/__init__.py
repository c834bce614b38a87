"""Objects by key, in a folder; no torch.

object_store  the interface, which the platform's stores have, too; file:///path
manifest      the keys of objects; the files of an object of several files, and their checksums
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.storage.manifest import (
        FILE_NAME, REPLAY_FOLDER, UPLOADS_FOLDER, CheckpointPlace, CheckpointRef, Manifest,
        ManifestFile, agent_prefix, artifact_key, checkpoint_prefix, job_prefix, of_project,
        read_file, read_manifest, verify, written_pattern,
    )
    from podracer_core.storage.object_store import (
        CHUNK_BYTES, DRAFTS, Ask, FolderStore, ObjectInfo, ObjectStore, StoreAccess, StoreKeys,
        check_key, check_prefix, open_source,
    )
else:
    __all__, __getattr__ = exports(__name__)

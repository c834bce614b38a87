"""Downloadable files, and the deletion of unneeded ones.

artifacts   checkpoints by name, uploaded files
uploads     those in progress: their room and their time
retention   the task that deletes
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_orchestrator.artifacts import artifacts, uploads
    from podracer_orchestrator.artifacts.artifacts import Found
    from podracer_orchestrator.artifacts.retention import RetentionTask
    from podracer_orchestrator.artifacts.uploads import (
        IDLE_S,
        SLOWEST_BYTES_PER_S,
        Uploads,
        in_time,
    )
else:
    __all__, __getattr__ = exports(__name__)

"""A small file with the position of a logger in a job."""

from __future__ import annotations

import json
from pathlib import Path

from podracer.orchestrator.v1 import job_pb2
from podracer_client.files import write_whole
from podracer_core.errors import InvalidInput

__all__ = ["LogState"]


class LogState:
    """position: the number of logged evaluations of the job; `sizes`: bytes of the log files at
    that position."""

    def __init__(self, path: Path, job: job_pb2.Job) -> None:
        """Raises InvalidInput if the file belongs to another job, or cannot be read."""
        self._path, self._uid = path, job.uid
        self.position = 0
        self.sizes: dict[str, int] = {}
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            uid = values["job"]
            self.position = int(values["position"])
            self.sizes = dict(values["sizes"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"cannot read {path}: {error}", path=path) from error
        if uid != job.uid:
            raise InvalidInput(
                f"{path} belongs to another job named {job.name}; choose another destination",
                path=path,
            )

    def write(self, position: int) -> None:
        """Write the file atomically."""
        self.position = position
        values = {"job": self._uid, "position": position, "sizes": self.sizes}
        write_whole(self._path, json.dumps(values).encode())

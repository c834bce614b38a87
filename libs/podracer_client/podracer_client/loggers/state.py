"""The small file that says how far a logger has come with a job."""

from __future__ import annotations

import json
from pathlib import Path

from podracer.orchestrator.v1 import job_pb2
from podracer_client.files import write_whole
from podracer_core.errors import InvalidInput

__all__ = ["LogState"]


class LogState:
    """position: how many evaluations of the job are logged; `sizes`: bytes of the files that had them by then."""

    def __init__(self, path: Path, job: job_pb2.Job) -> None:
        """Raises InvalidInput where the file is another job's, or cannot be read."""
        self._path, self._uid = path, job.uid
        self.position = 0
        self.sizes: dict[str, int] = {}
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            uid, self.position, self.sizes = values["job"], int(values["position"]), dict(values["sizes"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"cannot read {path}: {error}", path=path) from error
        if uid != job.uid:
            raise InvalidInput(f"{path} belongs to another job named {job.name}; choose another destination", path=path)

    def write(self, position: int) -> None:
        """Whole or not at all."""
        self.position = position
        values = {"job": self._uid, "position": position, "sizes": self.sizes}
        write_whole(self._path, json.dumps(values).encode())

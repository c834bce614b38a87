"""Versions of what has taken part: this client, and the libraries that wrote the best checkpoint."""

from __future__ import annotations

from importlib.metadata import version

from podracer.orchestrator.v1 import artifact_service_pb2, job_pb2
from podracer_client.jobs.client import Client
from podracer_client.names import best_checkpoint_name
from podracer_core.errors import DataCorrupted, NotFound, PreconditionFailed
from podracer_core.storage.manifest import FILE_NAME, Manifest


def client_version() -> tuple[str, str]:
    return "podracer-client", version("podracer-client")


def checkpoint_libraries(client: Client, job: job_pb2.Job) -> tuple[tuple[str, str], ...]:
    """Libraries and versions; none where there is no best checkpoint, or it has gone."""
    if not job.progress.best.checkpoint.prefix:
        return ()
    request = artifact_service_pb2.DownloadRequest(name=best_checkpoint_name(job.name), paths=[FILE_NAME])
    try:
        content = b"".join(response.data for response in client.artifact_service.Download(request))
        return tuple(sorted(Manifest.from_json(content, FILE_NAME).libraries.items()))
    except (NotFound, PreconditionFailed, DataCorrupted):
        return ()

"""A policy before the camera of a private evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from podracer.evaluator.v1 import evaluator_service_pb2
from podracer_client.jobs.client import Client
from podracer_client.local.evaluator import private_evaluator
from podracer_client.policies.environment import bring_files, changed_environment
from podracer_client.policies.evaluation import sources
from podracer_client.policies.folders import policy_folders
from podracer_client.policies.pieces import write_pieces

FORMATS = {
    ".mp4": evaluator_service_pb2.VIDEO_FORMAT_MP4,
    ".gif": evaluator_service_pb2.VIDEO_FORMAT_GIF,
}
_TIMEOUT_S = 3600.0


def record(
    policies: Sequence[str],
    output: Path,
    connect: Callable[[], Client],
    state_folder: Path | None = None,
    *,
    best: int = 0,
    arguments: Mapping[str, Any] | None = None,
    **wanted: Any,
) -> evaluator_service_pb2.VideoHeader:
    """Film one episode of policies, named as in `policy_folders`, into `output`, whose ending (a key of FORMATS) says
    in which form; `best` as there. `wanted` are more fields of RecordVideoRequest."""
    with policy_folders(policies, best, connect, state_folder) as folders, private_evaluator() as evaluator:
        bring_files(evaluator, folders[0], connect)
        environment = changed_environment(folders[0], arguments or {})
        request = evaluator_service_pb2.RecordVideoRequest(
            checkpoints=sources(folders), environment=environment, format=FORMATS[output.suffix], **wanted
        )
        pieces = evaluator.RecordVideo(request, timeout=_TIMEOUT_S)
        header: evaluator_service_pb2.VideoHeader = write_pieces(pieces, output)
    return header

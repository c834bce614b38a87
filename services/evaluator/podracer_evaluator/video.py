"""An episode of a stored policy or an ensemble as a video."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from podracer.evaluator.v1 import evaluator_service_pb2
from podracer_core.attachments.cache import FileCache
from podracer_core.attachments.placement import place_environment
from podracer_core.catalogue.messages import environment_from_message
from podracer_core.checkpoint import Checkpoint, load_actor, load_ensemble, rule_of
from podracer_core.environments.video import record_video
from podracer_core.errors import InvalidInput
from podracer_evaluator.checkpoints import describe

__all__ = ["recorded_video"]

_STEPS, _MAX_STEPS = 10_000, 100_000
_SUFFIXES = {
    evaluator_service_pb2.VIDEO_FORMAT_UNSPECIFIED: ".mp4",
    evaluator_service_pb2.VIDEO_FORMAT_MP4: ".mp4",
    evaluator_service_pb2.VIDEO_FORMAT_GIF: ".gif",
}


def recorded_video(
    checkpoints: Sequence[Checkpoint],
    request: evaluator_service_pb2.RecordVideoRequest,
    cache: FileCache,
    check: Callable[[], None] = lambda: None,
) -> tuple[evaluator_service_pb2.VideoHeader, bytes]:
    """The file's bytes and its header. `check` raises to cancel.

    Raises InvalidInput for a bad request and an environment without pictures, and as `load_actor`,
    `load_ensemble`, `place_environment` and `record_video`."""
    rule_of(checkpoints, request.ensemble)
    if request.format not in _SUFFIXES or not 0 <= request.step_limit <= _MAX_STEPS:
        problem = f"expected a VideoFormat and a step_limit of 0 to {_MAX_STEPS:,}"
        raise InvalidInput(problem, field="format, step_limit")
    description = describe(checkpoints[0])
    named = request.environment if request.HasField("environment") else description.environment
    actor = (
        load_actor(checkpoints[0])
        if len(checkpoints) == 1
        else load_ensemble(checkpoints, request.ensemble)
    )

    def act(observation: Tensor, mask: Tensor | None) -> Tensor:
        check()
        with torch.inference_mode():
            return actor.greedy(
                observation.unsqueeze(0), None if mask is None else mask.unsqueeze(0)
            )[0]

    with (
        tempfile.TemporaryDirectory(prefix="podracer-video-") as folder,
        place_environment(environment_from_message(named), cache) as placed,
    ):
        path = Path(folder, f"video{_SUFFIXES[request.format]}")
        filmed = record_video(
            placed.spec, act, path, seed=request.seed, step_limit=request.step_limit or _STEPS
        )
        data = path.read_bytes()
    header = evaluator_service_pb2.VideoHeader(
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        frame_count=filmed.frames,
        episode_return=filmed.episode_return,
        complete=filmed.complete,
        description=description,
    )
    return header, data

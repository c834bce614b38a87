"""A stored policy or an ensemble as a file that runs without Podracer, or an episode of it as a
video."""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from podracer.evaluator.v1 import evaluator_service_pb2
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.checkpoint import (
    SUFFIX_OF,
    Checkpoint,
    Format,
    export_ensemble,
    export_policy,
    load_actor,
    load_ensemble,
    played_observations,
    rule_of,
)
from podracer_core.environments import record_video
from podracer_core.errors import InvalidInput, PodracerError
from podracer_evaluator.checkpoints import describe
from podracer_platform.attachments import FileCache, place_environment
from podracer_platform.messages import environment_from_message

logger = logging.getLogger(__name__)

_FORMATS: dict[int, Format] = {
    evaluator_service_pb2.EXPORT_FORMAT_UNSPECIFIED: "torch_export",
    evaluator_service_pb2.EXPORT_FORMAT_TORCH_EXPORT: "torch_export",
    evaluator_service_pb2.EXPORT_FORMAT_TORCHSCRIPT: "torchscript",
    evaluator_service_pb2.EXPORT_FORMAT_ONNX: "onnx",
}
_STEPS, _MAX_STEPS = 10_000, 100_000
_SUFFIXES = {
    evaluator_service_pb2.VIDEO_FORMAT_UNSPECIFIED: ".mp4",
    evaluator_service_pb2.VIDEO_FORMAT_MP4: ".mp4",
    evaluator_service_pb2.VIDEO_FORMAT_GIF: ".gif",
}
_CHUNK_BYTES = 1 << 20

Response = TypeVar("Response")


def exported_policy(
    checkpoints: Sequence[Checkpoint], number: int, rule: str, cache: FileCache
) -> tuple[evaluator_service_pb2.ExportHeader, bytes]:
    """The file's bytes and its header. The file has been loaded again and compared with the trained
    policy or ensemble.

    Raises InvalidInput for an unknown format, and for policies that cannot act together;
    PreconditionFailed if the format needs a missing package, or the file does not act alike."""
    rule_of(checkpoints, rule)
    chosen = _FORMATS.get(number)
    if chosen is None:
        problem = f"expected one of ExportFormat, got {number}"
        raise InvalidInput.of("format", problem)
    description = describe(checkpoints[0])
    played = _played(checkpoints, rule, cache)
    with tempfile.TemporaryDirectory(prefix="podracer-export-") as folder:
        path = Path(folder, f"policy{SUFFIX_OF[chosen]}")
        if len(checkpoints) == 1:
            compared = export_policy(checkpoints[0], path, chosen, played)
        else:
            compared = export_ensemble(checkpoints, path, chosen, rule, played)
        data = path.read_bytes()
    header = evaluator_service_pb2.ExportHeader(
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        largest_difference=compared.largest_difference,
        description=description,
        compared_count=compared.observations,
        played_count=0 if played is None else len(played),
    )
    return header, data


def _played(checkpoints: Sequence[Checkpoint], rule: str, cache: FileCache) -> Tensor | None:
    """Observations of the first policy's environment; None if that cannot be started here."""
    spec = EnvironmentSpec.from_metadata(checkpoints[0].metadata["environment"])
    try:
        with place_environment(spec, cache) as placed:
            return played_observations(checkpoints, placed.spec, rule)
    except PodracerError as error:
        logger.info(
            "compared on made-up observations alone: %s cannot be played: %s",
            spec.name,
            error.message,
        )
        return None


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


def file_responses(
    response: Callable[..., Response], header: Any, data: bytes
) -> Iterator[Response]:
    """The messages of a file: its header, then its bytes."""
    yield response(header=header)
    for offset in range(0, len(data), _CHUNK_BYTES):
        yield response(data=data[offset : offset + _CHUNK_BYTES])

"""Stored policies and ensembles: evaluated, back-tested by a package for it, as a file that runs
without Podracer, or an episode as a video."""

from __future__ import annotations

import hashlib
import logging
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from podracer.common.v1 import agent_pb2
from podracer.evaluator.v1 import evaluator_service_pb2
from podracer_core.catalogue import GREEDY_EPISODES, EnvironmentSpec, StoredFile, spaces
from podracer_core.checkpoint import (
    POLICY_GROUPS,
    SUFFIX_OF,
    Checkpoint,
    Format,
    evaluate_checkpoints,
    export_ensemble,
    export_policy,
    load_actor,
    load_checkpoint,
    load_ensemble,
    open_checkpoint_folder,
    open_packed_policy,
    played_observations,
    rule_of,
)
from podracer_core.environments import record_video
from podracer_core.errors import InvalidInput, PodracerError, PreconditionFailed
from podracer_core.evaluate import EvaluationResult, result_from_json
from podracer_core.training import processor_seconds
from podracer_platform.attachments import FILES_MISSING, FileCache, place_environment
from podracer_platform.messages import (
    description_to_message,
    environment_from_message,
    environment_to_message,
    hyperparameter_to_message,
    seconds_to_duration,
)
from podracer_platform.storage import open_store
from podracer_platform.training_messages import result_to_message

_MAX_EPISODES = 100_000
_MAX_POLICIES = 100


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources from which this evaluator may read checkpoints: `store_url` is empty without a
    store."""

    store_url: str
    allow_folders: bool
    cache: FileCache

    def load(self, sources: Sequence[evaluator_service_pb2.CheckpointSource]) -> list[Checkpoint]:
        """The checkpoints that a request names. Raises InvalidInput if it names none, NotFound,
        DataCorrupted, and PreconditionFailed if this evaluator may not read from there, or has not
        received one."""
        if not sources:
            raise InvalidInput("expected at least one checkpoint")
        if len(sources) > _MAX_POLICIES:
            raise InvalidInput(
                f"at most {_MAX_POLICIES} policies can act together, not {len(sources)}"
            )
        return [self._load(source) for source in sources]

    def _load(self, source: evaluator_service_pb2.CheckpointSource) -> Checkpoint:
        match source.WhichOneof("source"):
            case "checkpoint" if self.store_url:
                reference, store = source.checkpoint, open_store(self.store_url, create=False)
                return load_checkpoint(
                    store, reference.prefix, reference.manifest_sha256 or None, POLICY_GROUPS
                )
            case "checkpoint":
                raise PreconditionFailed(
                    "this evaluator has no object store (PODRACER_STORE)", reason="NO_STORE"
                )
            case "folder" if self.allow_folders:
                return open_checkpoint_folder(Path(source.folder), POLICY_GROUPS)
            case "folder":
                raise PreconditionFailed(
                    "this evaluator reads no folders (PODRACER_ALLOW_FOLDERS)",
                    reason="FOLDERS_NOT_ALLOWED",
                )
            case "file_sha256":
                held = self.cache.hold(StoredFile(source.file_sha256, source.file_sha256, 0))
                if held is None:
                    message = f"the policy {source.file_sha256} has not been brought here"
                    raise PreconditionFailed(message, reason=FILES_MISSING)
                with held:
                    return open_packed_policy(held.path)
            case _:
                raise InvalidInput(
                    "a checkpoint is named by reference, by folder or by file; none is set"
                )


def evaluate_request(
    checkpoints: Sequence[Checkpoint],
    request: evaluator_service_pb2.EvaluateCheckpointRequest,
    cache: FileCache,
    check: Callable[[], None] = lambda: None,
) -> evaluator_service_pb2.EvaluateCheckpointResponse:
    """Evaluate a stored policy or an ensemble, like the (first) stored evaluation and with its
    seeds, unless the request says otherwise.

    A single policy's returns are compared with the stored ones if seeds, environment and evaluator
    are the same. The files of its environment come from `cache`. Raises as `place_environment` and
    `evaluate_checkpoints`."""
    description = describe(checkpoints[0])
    rule_of(checkpoints, request.ensemble)
    named = request.environment if request.HasField("environment") else description.environment
    stored = stored_evaluation(checkpoints[0])
    seeds = _seeds(request, stored)
    own = str(checkpoints[0].metadata.get("evaluator", "")) or GREEDY_EPISODES
    evaluator = request.evaluator or own
    start = processor_seconds()
    with place_environment(environment_from_message(named), cache) as placed:
        result = evaluate_checkpoints(
            checkpoints, placed.spec, seeds, rule=request.ensemble, check=check, evaluator=evaluator
        )
    alone = len(checkpoints) == 1
    evaluation = _message(result, description) if alone else result_to_message(result)
    evaluation.purpose = request.purpose or agent_pb2.EVALUATION_PURPOSE_REQUESTED
    evaluation.duration.CopyFrom(seconds_to_duration(max(0.0, processor_seconds() - start)))
    evaluation.create_time.GetCurrentTime()
    response = evaluator_service_pb2.EvaluateCheckpointResponse(
        evaluation=evaluation, description=description
    )
    if stored is not None:
        response.stored.CopyFrom(_message(stored, description))
        is_same = (
            evaluator == own and stored.seeds == result.seeds and named == description.environment
        )
        if alone and is_same:
            response.largest_difference = max(
                abs(now - then) for now, then in zip(result.returns, stored.returns, strict=True)
            )
    return response


def stored_evaluation(checkpoint: Checkpoint) -> EvaluationResult | None:
    """The evaluation that was written with the checkpoint."""
    value = checkpoint.metadata.get("evaluation")
    return result_from_json(value) if isinstance(value, dict) else None


def describe(checkpoint: Checkpoint) -> evaluator_service_pb2.CheckpointDescription:
    """The description of a checkpoint. Raises InvalidInput if required metadata of an agent are
    missing."""
    metadata = checkpoint.metadata
    try:
        spec = EnvironmentSpec.from_metadata(metadata["environment"])
        observation_space = spaces.from_json(metadata["observation_space"])
        action_space = spaces.from_json(metadata["action_space"])
        hyperparameters = {
            name: hyperparameter_to_message(tuple(value) if isinstance(value, list) else value)
            for name, value in metadata["hyperparameters"].items()
        }
        description = evaluator_service_pb2.CheckpointDescription(
            agent=str(metadata.get("agent", "")),
            algorithm=str(metadata["algorithm"]),
            environment=environment_to_message(spec),
            environment_description=description_to_message(
                spec, observation_space, action_space, spec.max_episode_steps
            ),
            env_steps=int(metadata.get("env_steps", 0)),
            hyperparameters=hyperparameters,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"not an agent's checkpoint: {error!r}", reason="NOT_A_POLICY"
        ) from error
    return description


def _seeds(
    request: evaluator_service_pb2.EvaluateCheckpointRequest, stored: EvaluationResult | None
) -> tuple[int, ...]:
    if request.episodes < 0 or max(len(request.seeds), request.episodes) > _MAX_EPISODES:
        count = len(request.seeds) or request.episodes
        raise InvalidInput(f"episodes must be 0 to {_MAX_EPISODES}, not {count}")
    if request.seeds:
        return tuple(request.seeds)
    if request.episodes:
        return tuple(secrets.randbits(63) for _ in range(request.episodes))
    if stored is None:
        raise InvalidInput(
            "no evaluation is stored with this checkpoint; say how many episodes, or give seeds",
            reason="NO_STORED_EVALUATION",
        )
    return stored.seeds


def _message(
    result: EvaluationResult, description: evaluator_service_pb2.CheckpointDescription
) -> agent_pb2.Evaluation:
    message = result_to_message(result)
    message.agent, message.env_steps = description.agent, description.env_steps
    return message


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


GROUP = "podracer.backtests"
"""A package gives the function of the entry point `backtest`."""

Backtest = Callable[
    [
        Sequence[Checkpoint],
        Sequence[evaluator_service_pb2.CheckpointDescription],
        evaluator_service_pb2.BacktestRequest,
        FileCache,
        Callable[[], None],
    ],
    Sequence[evaluator_service_pb2.BacktestResponse],
]
"""Of checkpoints with their descriptions; the last argument raises once the work is no longer
wanted."""


def backtest_function() -> Backtest:
    """The function that answers `Backtest`. Raises PreconditionFailed (EXTRA_NOT_INSTALLED) if no
    package gives one."""
    found = sorted(entry_points(group=GROUP, name="backtest"), key=lambda entry: entry.value)
    if not found:
        message = "back-tests need a package that is not installed here: "
        message += "pip install podracer-trading"
        raise PreconditionFailed(message, reason="EXTRA_NOT_INSTALLED")
    function: Backtest = found[0].load()
    return function

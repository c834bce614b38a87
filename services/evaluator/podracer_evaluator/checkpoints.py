"""Evaluation of stored policies."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from podracer.common.v1 import agent_pb2
from podracer.evaluator.v1 import evaluator_service_pb2
from podracer_core.catalogue import GREEDY_EPISODES, EnvironmentSpec, StoredFile, spaces
from podracer_core.checkpoint import (
    POLICY_GROUPS,
    Checkpoint,
    evaluate_checkpoints,
    load_checkpoint,
    open_checkpoint_folder,
    open_packed_policy,
    rule_of,
)
from podracer_core.errors import InvalidInput, PreconditionFailed
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

"""Evaluating what is stored."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from podracer.common.v1 import agent_pb2, environment_pb2
from podracer.evaluator.v1 import evaluator_service_pb2
from podracer_core.attachments.cache import FileCache
from podracer_core.attachments.placement import place_environment
from podracer_core.catalogue import spaces
from podracer_core.catalogue.environments import EnvironmentSpec, find_environment
from podracer_core.catalogue.messages import (
    description_to_message,
    environment_from_message,
    environment_to_message,
    hyperparameter_to_message,
)
from podracer_core.checkpoint import POLICY_GROUPS, Checkpoint, load_actor, load_checkpoint, open_checkpoint_folder
from podracer_core.environments.registry import evaluates_alike, make_vec_environment
from podracer_core.environments.spaces import action_array_space, observation_array_space, to_gymnasium
from podracer_core.environments.vec_environment import VecEnvironment
from podracer_core.errors import FieldViolation, InvalidInput, PreconditionFailed
from podracer_core.evaluate import EvaluationResult, Evaluator
from podracer_core.evaluate.messages import result_from_json, result_to_message
from podracer_core.jobs.messages import seconds_to_duration
from podracer_core.storage.object_store import open_store

__all__ = ["describe", "evaluate_checkpoint", "load_source"]

_MAX_EPISODES = 100_000
_PARTS = ("observation", "action")


def load_source(
    sources: Sequence[evaluator_service_pb2.CheckpointSource], store_url: str, *, allow_folders: bool
) -> Checkpoint:
    """The checkpoint that a request names. Raises NotFound, DataCorrupted, and PreconditionFailed where this evaluator
    may not read from there."""
    if len(sources) != 1:
        raise InvalidInput(f"expected one checkpoint, got {len(sources)}: ensembles are not supported yet")
    source = sources[0]
    match source.WhichOneof("source"):
        case "checkpoint" if store_url:
            reference, store = source.checkpoint, open_store(store_url, create=False)
            return load_checkpoint(store, reference.prefix, reference.manifest_sha256 or None, POLICY_GROUPS)
        case "checkpoint":
            raise PreconditionFailed("this evaluator has no object store (PODRACER_STORE)", reason="NO_STORE")
        case "folder" if allow_folders:
            return open_checkpoint_folder(Path(source.folder), POLICY_GROUPS)
        case "folder":
            raise PreconditionFailed(
                "this evaluator reads no folders (PODRACER_ALLOW_FOLDERS)", reason="FOLDERS_NOT_ALLOWED"
            )
        case _:
            raise InvalidInput("a checkpoint is named by reference or by folder; neither is set")


def evaluate_checkpoint(
    checkpoint: Checkpoint, request: evaluator_service_pb2.EvaluateCheckpointRequest, cache: FileCache
) -> evaluator_service_pb2.EvaluateCheckpointResponse:
    """Greedy episodes of a stored policy; with the stored evaluation's seeds unless the request says otherwise.

    They are compared with the stored ones where seeds and environment are the same. The files of its environment are
    taken from `cache`; errors as of `place_environment`. Raises InvalidInput (OTHER_SPACES) for an environment that the
    policy cannot act in.
    """
    description = describe(checkpoint)
    named = request.environment if request.HasField("environment") else description.environment
    spec = environment_from_message(named)
    stored = stored_evaluation(checkpoint)
    seeds = _seeds(request, stored)
    start = time.monotonic()
    with place_environment(spec, cache) as placed:
        make = partial(_make_environment, checkpoint, placed.spec)
        evaluator = Evaluator(make, all_alike=evaluates_alike(placed.spec))
        try:
            (result,) = evaluator.evaluate(load_actor(checkpoint), seeds)
        finally:
            evaluator.close()
    evaluation = _message(result, description)
    evaluation.purpose = request.purpose or agent_pb2.EVALUATION_PURPOSE_REQUESTED
    evaluation.duration.CopyFrom(seconds_to_duration(time.monotonic() - start))
    evaluation.create_time.GetCurrentTime()
    response = evaluator_service_pb2.EvaluateCheckpointResponse(evaluation=evaluation, description=description)
    if stored is not None:
        response.stored.CopyFrom(_message(stored, description))
        if stored.seeds == result.seeds and named == description.environment:
            response.largest_difference = max(
                abs(now - then) for now, then in zip(result.returns, stored.returns, strict=True)
            )
    return response


def stored_evaluation(checkpoint: Checkpoint) -> EvaluationResult | None:
    """The evaluation that was written with the checkpoint."""
    value = checkpoint.metadata.get("evaluation")
    return result_from_json(value) if isinstance(value, dict) else None


def describe(checkpoint: Checkpoint) -> evaluator_service_pb2.CheckpointDescription:
    """What a checkpoint says of itself. Raises InvalidInput where it lacks what an agent's checkpoint must have."""
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
            environment_description=_environment_description(spec, observation_space, action_space),
            env_steps=int(metadata.get("env_steps", 0)),
            hyperparameters=hyperparameters,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"not an agent's checkpoint: {error!r}", reason="NOT_A_POLICY") from error
    return description


def _environment_description(
    spec: EnvironmentSpec, observation_space: spaces.Space, action_space: spaces.Space
) -> environment_pb2.EnvironmentDescription:
    backend = find_environment(spec.id).backend if spec.id else "gymnasium"
    return description_to_message(observation_space, action_space, spec.max_episode_steps, backend)


def _make_environment(checkpoint: Checkpoint, spec: EnvironmentSpec, count: int) -> VecEnvironment:
    """Made for evaluation; InvalidInput where its spaces are not those that the policy was made for."""
    environment = make_vec_environment(spec, count, evaluation=True)
    trained_in = [to_gymnasium(spaces.from_json(checkpoint.metadata[f"{part}_space"])) for part in _PARTS]
    expected = observation_array_space(trained_in[0]), action_array_space(trained_in[1])
    found = observation_array_space(environment.observation_space), action_array_space(environment.action_space)
    # Bounds of observations play no part for a network; those of actions are what it is scaled to.
    fit = (expected[0].shape, expected[0].dtype) == (found[0].shape, found[0].dtype), expected[1] == found[1]
    for part, fits, want, have in zip(_PARTS, fit, expected, found, strict=True):
        if not fits:
            environment.close()
            message = f"the policy was made for {part}s in {want}, but {spec.name} has {have} with these arguments"
            violations = [FieldViolation("environment.kwargs", message)]
            raise InvalidInput(message, violations=violations, reason="OTHER_SPACES")
    return environment


def _seeds(
    request: evaluator_service_pb2.EvaluateCheckpointRequest, stored: EvaluationResult | None
) -> tuple[int, ...]:
    if request.seeds:
        return tuple(request.seeds)
    if request.episodes < 0 or request.episodes > _MAX_EPISODES:
        raise InvalidInput(f"episodes must be 0 to {_MAX_EPISODES}, not {request.episodes}")
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

"""Greedy episodes of stored policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from podracer_core.catalogue import BoxSpace, EnvironmentSpec, describe, parts_of
from podracer_core.checkpoint.objects import Checkpoint
from podracer_core.checkpoint.policy import (
    array_spaces,
    load_actor,
    load_ensemble,
    original_space,
    random_observations,
)
from podracer_core.environments import (
    VecEnvironment,
    action_array_space,
    evaluates_alike,
    make_vec_environment,
    observation_array_space,
)
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.evaluate import EvaluationResult, evaluator_class


def evaluate_checkpoints(
    checkpoints: Sequence[Checkpoint],
    spec: EnvironmentSpec,
    seeds: Sequence[int],
    *,
    rule: str | None = None,
    device: torch.device | str = "cpu",
    check: Callable[[], None] = lambda: None,
    evaluator: str = "",
) -> EvaluationResult:
    """Evaluate a policy or an ensemble (best first, by `rule`) as in training: the same seeds give
    the same returns. `check` is called every few steps; it raises to cancel. `evaluator`: its name;
    empty: greedy episodes.

    Raises InvalidInput (OTHER_SPACES) for an environment that the policy cannot act in, as
    `load_actor` and `load_ensemble`, and the errors of `evaluator_class` and the environment."""
    actor = (
        load_actor(checkpoints[0], device)
        if len(checkpoints) == 1
        else load_ensemble(checkpoints, rule, device)
    )
    judging = evaluator_class(evaluator)(
        lambda count: make_environment_for(checkpoints[0], spec, count, device),
        all_alike=evaluates_alike(spec),
        check=check,
    )
    try:
        (result,) = judging.evaluate(actor, seeds)
    finally:
        judging.close()
    return result


def make_environment_for(
    checkpoint: Checkpoint, spec: EnvironmentSpec, count: int, device: torch.device | str
) -> VecEnvironment:
    """An environment for evaluation. Raises InvalidInput if its spaces differ from the policy's."""
    return require_spaces(
        checkpoint, make_vec_environment(spec, count, device, evaluation=True), spec.name
    )


def require_spaces(
    checkpoint: Checkpoint, environment: VecEnvironment, name: str
) -> VecEnvironment:
    """The environment `name` itself. Closes it and raises InvalidInput if the policy has other
    spaces."""
    expected = array_spaces(checkpoint, whole=True)
    found = (
        observation_array_space(environment.observation_space),
        action_array_space(environment.action_space),
    )
    # Bounds of observations do not matter to a network; its outputs are scaled to those of actions.
    is_seen = (expected[0].shape, expected[0].dtype) == (found[0].shape, found[0].dtype)
    told = [(str(want), str(have)) for want, have in zip(expected, found, strict=True)]
    trained, there = original_space(checkpoint, whole=True), environment.original_space
    if there is not None and not isinstance(trained, BoxSpace) and not isinstance(there, BoxSpace):
        told[0] = describe(trained), describe(there)
        is_seen &= [(one.name, one.size) for one in parts_of(trained)] == [
            (one.name, one.size) for one in parts_of(there)
        ]
    fit = is_seen, expected[1] == found[1]
    for part, fits, (want, have) in zip(("observation", "action"), fit, told, strict=True):
        if not fits:
            environment.close()
            message = (
                f"the policy was made for {part}s in {want}, but {name} has {have} with "
                "these arguments"
            )
            violations = [FieldViolation("environment.kwargs", message)]
            raise InvalidInput(message, violations=violations, reason="OTHER_SPACES")
    return environment


_MADE_UP = 64
_ENVIRONMENTS, _STEPS = 8, 32


def likely_observations(checkpoint: Checkpoint) -> Tensor:
    """Made-up observations, always the same, [N, *obs]: random numbers, also with the mean and
    spread of training."""
    plain = random_observations(checkpoint, _MADE_UP)
    normalizer = checkpoint.groups.get("normalizer", {})
    if plain.dtype != torch.float32 or not normalizer:
        return plain
    mean, scale = (
        normalizer[f"observation_{name}"][: plain[0].numel()] for name in ("mean", "scale")
    )
    rows = plain.flatten(1) * scale + mean
    return torch.cat([plain, rows.view_as(plain)])


def played_observations(
    checkpoints: Sequence[Checkpoint], spec: EnvironmentSpec, rule: str | None = None
) -> Tensor:
    """Real observations, always the same: those of a policy or an ensemble in the first 32 steps of
    eight episodes of an environment, [256, *obs], without rows of a broken world.

    Raises as `evaluate_checkpoints`.
    """
    actor = (
        load_actor(checkpoints[0]) if len(checkpoints) == 1 else load_ensemble(checkpoints, rule)
    )
    environment = make_environment_for(checkpoints[0], spec, _ENVIRONMENTS, "cpu")
    seen = []
    try:
        observation, mask = environment.reset(torch.arange(_ENVIRONMENTS)), environment.action_mask
        with torch.inference_mode():
            for _ in range(_STEPS):
                seen.append(observation.clone())
                masks = None if mask is None else mask.unsqueeze(0)
                step = environment.step(actor.greedy(observation.unsqueeze(0), masks)[0])
                observation, mask = step.observation, step.action_mask
    finally:
        environment.close()
    # without what is the critic's alone
    rows = torch.cat(seen)[:, : array_spaces(checkpoints[0])[0].shape[0]]
    return rows[torch.isfinite(rows.flatten(1).double()).all(1)]

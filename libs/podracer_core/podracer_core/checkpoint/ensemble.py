"""Checkpoints of several agents -> one that acts: see `networks.ensemble`."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.checkpoint.objects import Checkpoint
from podracer_core.checkpoint.policy import array_spaces, load_actors, load_policy, network_of
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.networks.ensemble import EnsembleActor, EnsemblePolicy, Rule, ensemble_rule


def load_ensemble(
    checkpoints: Sequence[Checkpoint], rule: str | None = None, device: torch.device | str = "cpu"
) -> EnsembleActor:
    """The agents' actors as one, ready for `evaluate`; `checkpoints` best first, `rule` by action space where None.

    Those of one algorithm and shape are stacked, so that they act in one call. Raises InvalidInput as `load_actor`
    does, and as `rule_of`.
    """
    chosen = rule_of(checkpoints, rule)
    ranks: dict[str, list[int]] = {}  # by network
    for rank, checkpoint in enumerate(checkpoints):
        ranks.setdefault(json.dumps(network_of(checkpoint)), []).append(rank)
    actors = [load_actors([checkpoints[rank] for rank in alike], device) for alike in ranks.values()]
    return EnsembleActor(actors, [rank for alike in ranks.values() for rank in alike], chosen)


def load_ensemble_policy(checkpoints: Sequence[Checkpoint], rule: str | None = None) -> EnsemblePolicy:
    """The same as a module: raw observation [B, *obs] -> action [B, *action]. Errors as `load_ensemble`."""
    chosen = rule_of(checkpoints, rule)
    return EnsemblePolicy([load_policy(checkpoint) for checkpoint in checkpoints], chosen)


def rule_of(checkpoints: Sequence[Checkpoint], wanted: str | None = None) -> Rule:
    """How these policies act together.

    Raises InvalidInput where they cannot: none at all, another environment (ENSEMBLE_ENVIRONMENT), other spaces
    (ENSEMBLE_SPACES), or a rule that does not fit their actions (ENSEMBLE_RULE).
    """
    if not checkpoints:
        raise InvalidInput("an ensemble needs at least one policy")
    first = checkpoints[0]
    observation_space, action_space = array_spaces(first)
    for other in checkpoints[1:]:
        _require_same_environment(first, other)
        observed, acted = array_spaces(other)
        # Bounds of observations play no part for a network; those of actions are what it is scaled to.
        alike = observed.shape == observation_space.shape and observed.dtype == observation_space.dtype
        if not alike or acted != action_space:
            raise _refused(
                f"{_name(first)} was made for {observation_space} and actions in {action_space}, {_name(other)} for "
                f"{observed} and actions in {acted}: they cannot act together",
                "ENSEMBLE_SPACES",
            )
    return ensemble_rule(action_space, wanted)


def _require_same_environment(first: Checkpoint, other: Checkpoint) -> None:
    one, another = (_environment(checkpoint) for checkpoint in (first, other))
    if one == another:
        return
    names = [spec.name for spec in (one, another)]
    if names[0] == names[1]:
        names = [json.dumps(spec.to_metadata(), sort_keys=True) for spec in (one, another)]
    raise _refused(
        f"{_name(first)} was trained in {names[0]}, {_name(other)} in {names[1]}: they cannot act together",
        "ENSEMBLE_ENVIRONMENT",
    )


def _environment(checkpoint: Checkpoint) -> EnvironmentSpec:
    try:
        return EnvironmentSpec.from_metadata(checkpoint.metadata["environment"])
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"not an agent's checkpoint: {error!r}", reason="NOT_A_POLICY") from error


def _name(checkpoint: Checkpoint) -> str:
    return str(checkpoint.metadata.get("agent") or "a policy")


def _refused(message: str, reason: str) -> InvalidInput:
    return InvalidInput(message, violations=[FieldViolation("checkpoints", message)], reason=reason)

"""Ensembles: policies of several agents that act as one, by the mean of their actions or by
vote."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, get_args

import gymnasium
import torch
from torch import Tensor, nn

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.checkpoint.objects import Checkpoint
from podracer_core.checkpoint.policy import array_spaces, load_actors, load_policy, network_of
from podracer_core.errors import InvalidInput
from podracer_core.networks import Actor

Rule = Literal["mean", "vote"]
"""How policies act together.

mean   of their actions, number by number: for actions that are real numbers
vote   what most of them choose, in each dimension of its own; where several choices have most
       votes, the one of these that the best ranked policy makes. For everything else
"""


def ensemble_rule(action_space: gymnasium.Space[Any], wanted: str | None = None) -> Rule:
    """The rule for an action space. Raises InvalidInput (ENSEMBLE_RULE) if `wanted` is another
    one."""
    rule: Rule = "mean" if isinstance(action_space, gymnasium.spaces.Box) else "vote"
    if not wanted or wanted == rule:
        return rule
    if wanted not in get_args(Rule):
        message = f"unknown rule {wanted[:100]!r}: expected {' or '.join(get_args(Rule))}"
    elif rule == "mean":
        message = (
            f"actions in {action_space} are real numbers, of which no two are alike: use "
            "mean, not vote"
        )
    else:
        message = f"actions in {action_space} are choices, which have no mean: use vote"
    raise InvalidInput(message, field="ensemble", reason="ENSEMBLE_RULE")


class EnsembleActor:
    """K policies as one, of one or several kinds; it can be evaluated like an Actor.

    All policies of one Actor act in one call. With `members` above 1 the ensemble is repeated, once
    per block of rows. K copies of one policy act exactly like that policy."""

    def __init__(
        self, actors: Sequence[Actor], ranks: Sequence[int], rule: Rule, members: int = 1
    ) -> None:
        """`ranks`: of every policy, in the order of the actors and their members; 0 is the best.
        Each actor repeats its policies `members` times in a row."""
        self._actors = tuple(actors)
        self._ranks = tuple(ranks)
        self.rule = rule
        self.members = members
        self.device = self._actors[0].device
        self._best_first = torch.tensor(ranks, device=self.device).argsort()

    @property
    def policies(self) -> int:
        """K."""
        return len(self._ranks)

    def greedy(self, observation: Tensor, action_mask: Tensor | None = None) -> Tensor:
        """observation [members, B, *obs] raw, action_mask [members, B, n] bool (the allowed ones)
        -> the action [members, B, *action] in the environment's units."""
        actions = []
        for actor in self._actors:
            policies = actor.members // self.members
            mask = None if action_mask is None else _for_each(action_mask, policies)
            action = actor.greedy(_for_each(observation, policies), mask)
            actions.append(action.view(policies, self.members, *action.shape[1:]))
        return combine(torch.cat(actions)[self._best_first], self.rule)

    def repeat(self, times: int) -> EnsembleActor:
        """A copy that is repeated `times` times as often."""
        actors = [actor.repeat(times) for actor in self._actors]
        return EnsembleActor(actors, self._ranks, self.rule, self.members * times)


class EnsemblePolicy(nn.Module):
    """An ensemble as a torch module: raw observation [B, *obs] -> action [B, *action], like
    `Policy`, without masks."""

    def __init__(self, policies: Sequence[nn.Module], rule: Rule) -> None:
        """`policies`: best first."""
        super().__init__()
        self.policies, self.rule = nn.ModuleList(policies), rule
        self.eval().requires_grad_(False)

    def forward(self, observation: Tensor) -> Tensor:
        """observation [B, *obs] -> action [B, *action]."""
        return combine(torch.stack([policy(observation) for policy in self.policies]), self.rule)


def combine(actions: Tensor, rule: Rule) -> Tensor:
    """actions [K, …] of K policies, the best first -> [...]."""
    if rule == "mean":
        # in float64: K times one number is that number again
        return actions.double().mean(0).to(actions.dtype)
    policies = actions.shape[0]
    # [K, …]: policies that choose alike
    votes = (actions.unsqueeze(0) == actions.unsqueeze(1)).sum(0)
    rank = torch.arange(policies, device=actions.device).view(-1, *(1 for _ in actions.shape[1:]))
    winner = (votes * policies - rank).argmax(0, keepdim=True)
    return actions.gather(0, winner).squeeze(0)


def _for_each(rows: Tensor, policies: int) -> Tensor:
    """[members, …] -> [policies * members, …], the first policy's before the second's."""
    return rows if policies == 1 else rows.repeat(policies, *(1 for _ in rows.shape[1:]))


def load_ensemble(
    checkpoints: Sequence[Checkpoint], rule: str | None = None, device: torch.device | str = "cpu"
) -> EnsembleActor:
    """The agents' actors as one, ready for `evaluate`; `checkpoints`: best first; `rule` None: by
    action space.

    Actors of one algorithm and shape are stacked, so that they act in one call. Raises InvalidInput
    as `load_actor` and `rule_of`."""
    chosen = rule_of(checkpoints, rule)
    ranks: dict[str, list[int]] = {}  # by network
    for rank, checkpoint in enumerate(checkpoints):
        ranks.setdefault(json.dumps(network_of(checkpoint)), []).append(rank)
    actors = [
        load_actors([checkpoints[rank] for rank in alike], device) for alike in ranks.values()
    ]
    return EnsembleActor(actors, [rank for alike in ranks.values() for rank in alike], chosen)


def load_ensemble_policy(
    checkpoints: Sequence[Checkpoint], rule: str | None = None
) -> EnsemblePolicy:
    """An ensemble as a module: raw observation [B, *obs] -> action [B, *action]. Raises as
    `load_ensemble`."""
    chosen = rule_of(checkpoints, rule)
    return EnsemblePolicy([load_policy(checkpoint) for checkpoint in checkpoints], chosen)


def rule_of(checkpoints: Sequence[Checkpoint], wanted: str | None = None) -> Rule:
    """The rule of an ensemble of these policies.

    Raises InvalidInput if they cannot act together: no policies, different environments
    (ENSEMBLE_ENVIRONMENT) or spaces (ENSEMBLE_SPACES), or a rule that does not fit their actions
    (ENSEMBLE_RULE)."""
    if not checkpoints:
        raise InvalidInput("an ensemble needs at least one policy")
    first = checkpoints[0]
    observation_space, action_space = array_spaces(first)
    for other in checkpoints[1:]:
        _require_same_environment(first, other)
        observed, acted = array_spaces(other)
        # Bounds of observations do not matter to a network; its outputs are scaled to those of
        # actions.
        alike = (
            observed.shape == observation_space.shape and observed.dtype == observation_space.dtype
        )
        if not alike or acted != action_space:
            raise _refused(
                f"{_name(first)} was made for {observation_space} and actions in {action_space}, "
                f"{_name(other)} for {observed} and actions in {acted}: they cannot act together",
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
        f"{_name(first)} was trained in {names[0]}, {_name(other)} in {names[1]}: they cannot act "
        "together",
        "ENSEMBLE_ENVIRONMENT",
    )


def _environment(checkpoint: Checkpoint) -> EnvironmentSpec:
    try:
        return EnvironmentSpec.from_metadata(checkpoint.metadata["environment"])
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"not an agent's checkpoint: {error!r}", reason="NOT_A_POLICY"
        ) from error


def _name(checkpoint: Checkpoint) -> str:
    return str(checkpoint.metadata.get("agent") or "a policy")


def _refused(message: str, reason: str) -> InvalidInput:
    return InvalidInput(message, field="checkpoints", reason=reason)

"""A checkpoint -> a policy, from the checkpoint alone; several as one, by the mean of their actions
or by vote; greedy episodes of them.

The metadata of an agent's checkpoint must have:

    algorithm           name in the catalogue: "ppo"
    hyperparameters     object of all the agent's hyperparameters by name, of every scope
    observation_space   catalogue.spaces.to_json, of the environment or of its batch
    action_space        likewise
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from podracer_core.algorithms import CohortConfig, MemberConfig, algorithm_class
from podracer_core.catalogue import (
    BUILT_IN_ALGORITHMS,
    BoxSpace,
    EnvironmentSpec,
    describe,
    find_algorithm,
    origin_array,
    parts_of,
    spaces,
)
from podracer_core.checkpoint.objects import Checkpoint
from podracer_core.environments import (
    VecEnvironment,
    action_array_space,
    evaluates_alike,
    make_vec_environment,
    observation_array_space,
    to_gymnasium,
)
from podracer_core.errors import DataCorrupted, FieldViolation, InvalidInput
from podracer_core.evaluate import EvaluationResult, evaluator_class
from podracer_core.networks import Actor, Policy

POLICY_GROUPS = ("actor", "normalizer")
"""The groups that acting needs: `load_checkpoint(…, groups=POLICY_GROUPS)`."""
_LARGE = 1 << 22
"""The most numbers of a space in a checkpoint whose networks have fewer, or were not loaded."""


def load_actor(checkpoint: Checkpoint, device: torch.device | str = "cpu") -> Actor:
    """The agent's actor, M = 1, ready for `evaluate` and `collect`. Raises InvalidInput if metadata
    are missing, or the tensors do not match them."""
    return load_actors([checkpoint], device)


def load_actors(checkpoints: Sequence[Checkpoint], device: torch.device | str = "cpu") -> Actor:
    """The stacked actors of M agents with the same algorithm, network and spaces. Raises as
    `load_actor`."""
    first = checkpoints[0]
    algorithm = _entry(first, "algorithm", str)
    members = tuple(MemberConfig(f"agent{number}", 0) for number in range(len(checkpoints)))
    cohort = CohortConfig(algorithm, members, _entry(first, "hyperparameters", dict))
    observation_space, action_space = array_spaces(first, whole=True)
    # without memory first: metadata may lie
    for place in ("meta", device) if algorithm in BUILT_IN_ALGORITHMS else (device,):
        actor = algorithm_class(algorithm).make_actor(
            cohort, observation_space, action_space, place
        )
        for member, checkpoint in enumerate(checkpoints):
            actor.load_member_state(member, checkpoint.groups)
    return actor


def network_of(checkpoint: Checkpoint) -> tuple[str, dict[str, Any]]:
    """Algorithm and shape, which must be the same for stacked actors. Raises InvalidInput as
    `load_actor`."""
    info = find_algorithm(_entry(checkpoint, "algorithm", str))
    given = _entry(checkpoint, "hyperparameters", dict)
    cohort = CohortConfig(info.name, (MemberConfig("agent", 0),), given)
    values, network = cohort.shared_values(info), info.defaults("network")
    return info.name, {name: values[name] for name in network}


def original_space(checkpoint: Checkpoint, *, whole: bool = False) -> spaces.Space:
    """The observation space of the environment; only of its batch if an earlier version has written
    the checkpoint. Without what is the critic's alone, unless `whole`. Raises InvalidInput as
    `load_actor`."""
    space = _space(checkpoint, "observation_space")
    return space if whole else spaces.seen_by_actor(space)


def array_spaces(
    checkpoint: Checkpoint, *, whole: bool = False
) -> tuple[gymnasium.spaces.Box, gymnasium.Space[Any]]:
    """The spaces of observations and actions in a batch of environments. `whole` and errors as of
    `original_space`."""
    observation_space = to_gymnasium(original_space(checkpoint, whole=whole))
    action_space = to_gymnasium(_space(checkpoint, "action_space"))
    return observation_array_space(observation_space), action_array_space(action_space)


def observation_origin(checkpoint: Checkpoint) -> Tensor:
    """Subtracted from raw observations before an actor sees them, float64 [*obs]; zeros where there
    is none."""
    origin = checkpoint.metadata.get("environment", {}).get("observation_origin", ())
    return torch.from_numpy(origin_array(origin, array_spaces(checkpoint)[0].shape))


def load_policy(checkpoint: Checkpoint) -> Policy:
    """The agent's greedy policy, a module: raw observation [B, *obs] -> action [B, *action]. Errors
    as `load_actor`."""
    policy, origin = load_actor(checkpoint).policy(0), observation_origin(checkpoint)
    policy.origin = origin if origin.any() else None
    return policy


def random_observations(checkpoint: Checkpoint, count: int) -> Tensor:
    """Made-up observations, always the same: [count, *obs], uint8 for images, float64 with an
    origin, else float32."""
    space, _ = array_spaces(checkpoint)
    generator, shape = torch.Generator().manual_seed(0), (count, *space.shape)
    if space.dtype == np.uint8:
        return torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    rows, origin = torch.randn(shape, generator=generator), observation_origin(checkpoint)
    return rows + origin if origin.any() else rows


def _space(checkpoint: Checkpoint, name: str) -> spaces.Space:
    """Raises InvalidInput for a space that is much larger than the networks: its bounds alone would
    take memory."""
    space = spaces.from_json(_entry(checkpoint, name, dict))
    held = sum(
        tensor.numel()
        for group in POLICY_GROUPS
        for tensor in checkpoint.groups.get(group, {}).values()
    )
    if sum(part.size for part in parts_of(space)) > max(held, _LARGE):
        raise InvalidInput(
            f"the checkpoint cannot act: its {name} is larger than its networks",
            reason="NOT_A_POLICY",
        )
    return space


def _entry(checkpoint: Checkpoint, name: str, kind: type) -> Any:
    value = checkpoint.metadata.get(name)
    if not isinstance(value, kind):
        raise InvalidInput(
            f"the checkpoint cannot act: its metadata have no {name} "
            f"({'text' if kind is str else 'an object'})",
            reason="NOT_A_POLICY",
            entry=name,
        )
    return value


_HEADER = "podracer"


def pack_policy(checkpoint: Checkpoint) -> bytes:
    """The parts of a checkpoint that acting needs, as one file, for services without an object
    store.

    A safetensors file with tensors `<group>/<name>`, and in its header the checkpoint's metadata
    and libraries as JSON. The same checkpoint always gives the same bytes."""
    tensors = {
        f"{group}/{name}": tensor
        for group in POLICY_GROUPS
        for name, tensor in checkpoint.groups.get(group, {}).items()
    }
    header = {"metadata": dict(checkpoint.metadata), "libraries": dict(checkpoint.libraries)}
    return safetensors.torch.save(tensors, {_HEADER: json.dumps(header, sort_keys=True)})


def open_packed_policy(path: Path) -> Checkpoint:
    """The inverse of `pack_policy`. The file's bytes are not verified. Raises DataCorrupted for any
    other file."""
    groups: dict[str, dict[str, Tensor]] = {}
    try:
        with safetensors.safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})[_HEADER])
            for key in file.keys():  # noqa: SIM118 - it is no mapping
                group, _, name = key.partition("/")
                groups.setdefault(group, {})[name] = file.get_tensor(key)
            return Checkpoint(groups, dict(header["metadata"]), dict(header["libraries"]))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataCorrupted(
            f"{path.name} is not a packed policy: {error!r}", file=path.name
        ) from error


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

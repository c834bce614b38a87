"""A member's first state, its own or its parents', and its environments' states, which a checkpoint
keeps; snapshots of members, their evaluations, and each member's best ones of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from podracer_core.algorithms import Algorithm, MemberState
from podracer_core.collect import Collector
from podracer_core.errors import InvalidInput
from podracer_core.evaluate import EvaluationResult
from podracer_core.networks import Actor

MemberGroups = Mapping[str, Mapping[str, Tensor]]
"""group (actor, critic, …) -> name -> tensor: one member's checkpoint."""

ParentKind = Literal["copy", "noise", "fuse"]

# Groups of a checkpoint that are not the algorithm's own; whatever else there is belongs to it.
_BESIDE = ("environment", "replay")
_PERSONAL = ("random", "optimizer")

EnvironmentState = dict[str, Tensor]
"""One member's state: "environment.NAME" and "episodes.NAME" [E, …] of its environments,
"step_count" []."""

RESUMED = "resumed"
_ENVIRONMENT = "environment."


def resume(algorithm: Algorithm, member: int, checkpoint: MemberGroups) -> None:
    """Continue from the agent's own checkpoint: weights, optimizer, statistics and random
    streams."""
    algorithm.load_member_state(member, _own_groups(checkpoint))


def inherit(
    algorithm: Algorithm,
    member: int,
    kind: ParentKind,
    parents: Sequence[tuple[MemberGroups, float]],
    *,
    keep_optimizer: bool,
    noise_scale: float = 0.0,
    noise_seed: int = 0,
) -> None:
    """Start from parents' checkpoints, each with its weight: one to copy (with noise or without),
    several to fuse.

    Other learned values, such as a temperature, are inherited too. Hyperparameters and random
    streams stay the member's own. Raises InvalidInput for a wrong number of parents, and for
    parents of other network sizes."""
    if len(parents) < 2 if kind == "fuse" else len(parents) != 1:
        raise InvalidInput(
            f"to {kind} takes {'two parents or more' if kind == 'fuse' else 'one parent'}"
        )
    left_out = [group for group in _PERSONAL if not (keep_optimizer and group == "optimizer")]
    states = [
        {
            group: tensors
            for group, tensors in _own_groups(checkpoint).items()
            if group not in left_out
        }
        for checkpoint, _ in parents
    ]
    if kind != "fuse":
        algorithm.load_member_state(member, states[0])
    else:
        weights = [weight for _, weight in parents]
        algorithm.load_member_state(
            member, _weighted_mean(states, weights if any(weights) else [1.0] * len(states))
        )
    if kind == "noise":
        algorithm.perturb_member(member, noise_scale, noise_seed)


def _own_groups(checkpoint: MemberGroups) -> dict[str, Mapping[str, Tensor]]:
    return {
        group: tensors
        for group, tensors in checkpoint.items()
        if group.partition("/")[0] not in _BESIDE
    }


def _weighted_mean(
    states: Sequence[MemberGroups], weights: Sequence[float]
) -> dict[str, dict[str, Tensor]]:
    """The weighted mean of every tensor, in float64."""
    share = torch.tensor(weights, dtype=torch.float64)
    share /= share.sum()
    fused: dict[str, dict[str, Tensor]] = {}
    for group, tensors in states[0].items():
        fused[group] = {}
        for name, model in tensors.items():
            if any(
                name not in state.get(group, {}) or state[group][name].shape != model.shape
                for state in states
            ):
                raise InvalidInput(
                    f"the parents' {group} {name} are not of one shape; they cannot be fused"
                )
            stacked = torch.stack([state[group][name].double() for state in states])
            fused[group][name] = torch.tensordot(share, stacked, 1).to(model.dtype)
    return fused


def member_environment_states(collector: Collector) -> list[EnvironmentState]:
    """Cut a collector's state into its members'."""
    members = collector.members
    stacked = {
        name: _by_member(name, tensor, members) for name, tensor in collector.state().items()
    }
    return [{name: tensor[member] for name, tensor in stacked.items()} for member in range(members)]


def resume_environments(
    collector: Collector, states: Sequence[EnvironmentState | None]
) -> list[bool]:
    """Load the `states` [M] of members' environments; members without a state begin new episodes.

    A state that does not fit (another number of environments, another environment) is ignored too.
    Returns for each member whether it was loaded. Raises InvalidInput for another number of
    members."""
    if len(states) != collector.members:
        raise InvalidInput(
            f"states of {len(states)} members came for {collector.members}", reason="BAD_TENSOR"
        )
    own = collector.state()
    merged = {name: tensor.clone() for name, tensor in own.items()}
    resumed = []
    for member, state in enumerate(states):
        rows = {
            name: _by_member(name, tensor, collector.members)[member]
            for name, tensor in merged.items()
        }
        fits = state is not None and _shapes(rows) == _shapes(state)
        if state is not None and fits:
            for name, row in rows.items():
                row.copy_(state[name])
        resumed.append(fits)
    if any(resumed):
        collector.load_state(merged)
    return resumed


def stack_states(
    states: Sequence[EnvironmentState | None], first: int, count: int
) -> dict[str, Tensor]:
    """Members' states for a message: [M, …] by name, of `count` environments from `first`; which
    members have one."""
    present = [state for state in states if state is not None]
    if not present or any(_shapes(state) != _shapes(present[0]) for state in present):
        return {}
    stacked = {RESUMED: torch.tensor([state is not None for state in states])}
    for name, model in present[0].items():
        rows = [state[name] if state is not None else torch.zeros_like(model) for state in states]
        tensor = torch.stack(rows)
        stacked[name] = (
            tensor[:, first : first + count].contiguous() if tensor.dim() > 1 else tensor
        )
    return stacked


def unstack_states(stacked: Mapping[str, Tensor]) -> list[EnvironmentState | None]:
    """The inverse of `stack_states` for the same environments. Raises InvalidInput for anything
    else."""
    resumed = stacked.get(RESUMED)
    if resumed is None or resumed.dtype != torch.bool or resumed.dim() != 1:
        raise InvalidInput(
            f"states of environments come with {RESUMED!r}, bool [M]", reason="BAD_TENSOR"
        )
    names = [name for name in stacked if name != RESUMED]
    for name in names:
        if stacked[name].shape[:1] != resumed.shape:
            shape = list(stacked[name].shape)
            raise InvalidInput(
                f"{name!r} of {len(resumed)} members has shape {shape}", reason="BAD_TENSOR"
            )
    return [
        {name: stacked[name][member] for name in names} if present else None
        for member, present in enumerate(resumed.tolist())
    ]


def _by_member(name: str, tensor: Tensor, members: int) -> Tensor:
    """A view [M, …]: the environments' own tensors come as [N, …]."""
    return tensor.view(members, -1, *tensor.shape[1:]) if name.startswith(_ENVIRONMENT) else tensor


def _shapes(state: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}


_MOST = 3  # of a member: those of its best looks


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of a round: seconds since it began, and every member's environment steps since then.

    used_s  seconds of processors, or of the GPU, that the pod has used since then
    """

    elapsed_s: float
    env_steps: Sequence[int]
    version: int
    used_s: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of one member's whole state, and of its policy.

    env_steps     of this round
    train_time_s  seconds since the round began
    """

    member: int
    env_steps: int
    version: int
    train_time_s: float
    state: MemberState
    actor: Actor


@dataclass(frozen=True, slots=True)
class Judgement:
    """An evaluation of one member at `moment`.

    snapshot        the evaluated snapshot; None for a look whose weights were not kept
    confirm_time_s  when the answer was known, in seconds of the round
    duration_s      the duration of the evaluation
    """

    member: int
    env_steps: int
    version: int
    train_time_s: float
    purpose: Literal["progress", "candidate"]
    result: EvaluationResult
    confirm_time_s: float
    duration_s: float
    snapshot: Snapshot | None = None


def take_snapshot(algorithm: Algorithm, member: int, moment: Moment) -> Snapshot:
    """Copy a member as it is now."""
    return Snapshot(
        member,
        moment.env_steps[member],
        moment.version,
        moment.elapsed_s,
        algorithm.member_state(member),
        algorithm.actor.member(member),
    )


class Contender(NamedTuple):
    """A snapshot, the mean that it is ranked by, and the look at it; None where there was no
    look."""

    mean: float
    snapshot: Snapshot
    look: Judgement | None


class Contenders:
    """Each member's best snapshots. Its length is the number of members that have any.

    judged   every member's best full evaluation
    """

    def __init__(self) -> None:
        self._by_member: dict[int, list[Contender]] = {}  # the best first
        self.judged: dict[int, Judgement] = {}

    def __len__(self) -> int:
        return len(self._by_member)

    @property
    def candidates(self) -> dict[int, Judgement]:
        """Every member's best full evaluation so far, or the look at its best snapshot, if there
        was one."""
        best = (own[0] for own in self._by_member.values())
        return {one.snapshot.member: one.look for one in best if one.look is not None} | self.judged

    @property
    def kept(self) -> list[Judgement]:
        """All evaluations of snapshots that are candidates, or may become one."""
        looks = [
            one.look for own in self._by_member.values() for one in own if one.look is not None
        ]
        return [*looks, *self.judged.values()]

    def is_judged(self, snapshot: Snapshot) -> bool:
        """Whether the member's best full evaluation is this snapshot's."""
        known = self.judged.get(snapshot.member)
        return known is not None and known.snapshot is snapshot

    def by_member(self) -> list[list[Contender]]:
        """Each member's contenders, best first; the member of the best one first."""
        return sorted(self._by_member.values(), key=lambda own: -own[0].mean)

    def wants(self, member: int, mean: float, *, last: bool) -> bool:
        """Whether a look's snapshot is worth keeping; the `last` look's always is."""
        own = self._by_member.get(member, [])[:_MOST]
        return last or len(own) < _MOST or mean >= own[-1].mean

    def add(self, contender: Contender, *, last: bool) -> None:
        """Keep it in place of the worst, or beside all others if it is of the `last` look."""
        member = contender.snapshot.member
        self._by_member[member] = self._by_member.get(member, [])[: _MOST if last else _MOST - 1]
        self._insert(contender)

    def rank_again(self, snapshot: Snapshot, mean: float) -> None:
        """Rank a kept one by another mean."""
        own = self._by_member[snapshot.member]
        (known,) = (one for one in own if one.snapshot is snapshot)
        self._by_member[snapshot.member] = [one for one in own if one is not known]
        self._insert(known._replace(mean=mean))

    def _insert(self, contender: Contender) -> None:
        """Insert a contender, best first. Of two equal ones the later one goes first: it has seen
        more."""
        member = contender.snapshot.member
        own = [contender, *self._by_member[member]]
        self._by_member[member] = sorted(own, key=lambda one: (-one.mean, -one.snapshot.env_steps))

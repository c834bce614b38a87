"""Snapshots of members, their evaluations, and each member's best snapshots of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from podracer_core.algorithms import Algorithm, MemberState
from podracer_core.evaluate import EvaluationResult
from podracer_core.networks import Actor

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

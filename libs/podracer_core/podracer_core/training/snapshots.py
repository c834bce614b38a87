"""A member at one moment, and what was said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from podracer_core.algorithms.algorithm import Algorithm, MemberState
from podracer_core.evaluate import EvaluationResult
from podracer_core.networks.actor import Actor


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a round stands: seconds since it began, and every member's environment steps since then.

    used_s  seconds of processors, or of the GPU, that the pod has used since then
    """

    elapsed_s: float
    env_steps: Sequence[int]
    version: int
    used_s: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One member's whole state, copied, and its policy alone.

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

    snapshot        what was evaluated; None for a look at training whose weights were not kept
    confirm_time_s  seconds since the round began when the answer was known
    duration_s      that the evaluation took
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

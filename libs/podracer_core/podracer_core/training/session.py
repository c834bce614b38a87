"""The loop of a round: collect, update, look, until the budget is used or the target is reached.

Several learners of one cohort: at the end of each epoch their parameters are fused."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from podracer_core.algorithms import Algorithm, MemberState, Sharing
from podracer_core.buffers import Rollout
from podracer_core.errors import TimeUp
from podracer_core.fusion import Contribution, Fused
from podracer_core.training.evaluation_backend import EvaluationBackend
from podracer_core.training.member_states import EnvironmentState, Judgement, Moment
from podracer_core.training.plan import Phases, RoundPlan, RoundTime, processor_seconds
from podracer_core.training.selection import RoundView, Selection
from podracer_core.training.source import RolloutSource


class FusionTransport(ABC):
    """Exchanges a learner's contribution with the others'."""

    @abstractmethod
    def exchange(self, contribution: Contribution) -> Fused | None:
        """Send the contribution and wait for the fusion. None: nothing was fused; continue training
        and contribute more later.

        A learner that was left out gets a fusion with a number ahead of its own, and continues from
        there."""

    def closes(self, last: bool) -> bool:
        """Whether an epoch ends with this update because the round ends; `last`: by its plan.

        So it is for the lead: contributions of others to that epoch would else be lost.
        """
        return False

    def finish(self) -> None:  # noqa: B027 - optional
        """This learner has ended its training in this round."""


class EpochFusion:
    """One learner's side: counts its epochs, sends contributions, and loads fused states."""

    def __init__(
        self,
        algorithm: Algorithm,
        sharing: Sharing,
        transport: FusionTransport,
        rank: int,
        interval_updates: int = 0,
    ) -> None:
        """`sharing`: from `algorithm.share(rank)`. interval_updates: between two fusions; 0: an
        epoch of the algorithm. The first epoch of untrained agents always has one update: before it
        there are no normalization statistics, and training without them is lost."""
        self.sharing = sharing
        self._algorithm = algorithm
        self._transport = transport
        self._rank = rank
        self._interval = interval_updates
        self.epoch = 0
        self._passed = self._counted()
        self._is_first = algorithm.epochs == 0

    def begin(self, fused: Fused) -> None:
        """Load the state of the others that this learner joins."""
        self.sharing.load(fused.state)
        self.epoch = fused.epoch
        self._is_first = self._is_first and not fused.epoch

    def finish(self) -> None:
        """Tell the others that no update follows in this round: they need not wait for this
        learner's contribution, and its samples since the last fusion count by themselves."""
        self._transport.finish()
        self.sharing.settle()

    def after_update(self, *, last: bool = False) -> Tensor | None:
        """Call it after every update, before the weights are given out. `last`: it is the round's
        last update.

        Returns the difference of the agents' environment steps to this learner's own, int64 [M]:
        the others' fused steps, less its own if it was left out. None if nothing was fused."""
        if not (self._is_due() or self._transport.closes(last)):
            return None
        growth = self.sharing.growth()
        samples = int(growth.transitions.sum())
        fused = self._transport.exchange(Contribution(self._rank, self.epoch + 1, samples, growth))
        self._passed = self._counted()
        if fused is None:
            if self._transport.closes(last):
                self.sharing.settle()
            return None
        own = self.sharing.transitions
        self.begin(fused)
        return fused.state.transitions.to(own.device) - own

    def _is_due(self) -> bool:
        if self._is_first:
            return self._algorithm.epochs > 0
        return self._counted() - self._passed >= (self._interval or 1)

    def _counted(self) -> int:
        return self._algorithm.version if self._interval else self._algorithm.epochs


_RETURN_ROLLOUTS = 10
_CONCLUDE_S = 60.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a round, one entry per member. `returns`: of the training episodes that ended
    last; NaN before the first. `used_s`: seconds of processors, or of the GPU; `evaluation_s`: of
    these for evaluation."""

    elapsed_s: float
    used_s: float
    evaluation_s: float
    updates: int
    env_steps: list[int]
    returns: list[float]
    metrics: dict[str, list[float]]
    active: list[bool]


@dataclass(frozen=True, slots=True)
class MemberOutcome:
    """A round's result for one member: its last state, and its best full evaluation with the
    snapshot."""

    member: int
    env_steps: int
    state: MemberState
    environment: EnvironmentState | None
    candidate: Judgement | None
    failed: bool


class RoundCounts:
    """Environment steps and training episodes of a round, on the device: `add` does not wait for
    it.

    steps       int64 [M], with those of other learners
    per_member  steps that were asked of each member, valid or not
    updates     rollouts
    """

    def __init__(self, members: int, device: torch.device) -> None:
        self.steps = torch.zeros(members, dtype=torch.int64, device=device)
        self.per_member = self.updates = 0
        self._ended = torch.zeros_like(self.steps)  # episodes
        self._broken = torch.zeros((), dtype=torch.int64, device=device)  # episodes
        self._in_vain = torch.zeros_like(self._broken)  # rollouts in a row without a valid step
        self._episodes: deque[tuple[Tensor, Tensor]] = deque(maxlen=_RETURN_ROLLOUTS)
        self._last_returns = torch.full_like(self.steps, torch.nan, dtype=torch.float64)

    def add(self, rollout: Rollout) -> None:
        """Count a rollout."""
        valid = rollout.valid.sum((0, 2))
        self.steps += valid
        asked, taken = rollout.horizon * rollout.live_envs, valid.sum()
        self._broken += asked * rollout.members - taken
        self._in_vain = torch.where(taken > 0, 0, self._in_vain + 1)
        self.per_member += asked
        self.updates += 1
        count, total = rollout.episodes.count.clone(), rollout.episodes.return_sum.clone()
        self._episodes.append((count, total))
        self._ended += count.to(self._ended.dtype)
        self._last_returns = torch.where(count > 0, total / count, self._last_returns)

    def add_others(self, env_steps: Tensor) -> None:
        """Count steps [M] of other learners that this cohort has learned from."""
        self.steps += env_steps.to(self.steps.device)
        self.per_member += int(env_steps.max())

    def returns(self) -> list[float]:
        """Each member's mean return in the last rollouts; NaN before the first episode has
        ended."""
        count = sum((count for count, _ in self._episodes), torch.zeros_like(self.steps))
        total = sum((total for _, total in self._episodes), torch.zeros_like(self._last_returns))
        return torch.where(count > 0, total / count, self._last_returns).tolist()

    def breaks(self) -> tuple[int, int, int]:
        """Training episodes that have broken, all that have ended, and how many rollouts in a row
        have no valid step."""
        broken = int(self._broken)
        return broken, broken + self.ended(), int(self._in_vain)

    def ended(self) -> int:
        """Intact training episodes that have ended."""
        return int(self._ended.sum())


class TrainingSession:
    """One round of a cohort. Except for looks, `step` does not synchronize with the device or loop
    over members.

    phases   the time by phase
    """

    def __init__(
        self,
        algorithm: Algorithm,
        source: RolloutSource,
        backend: EvaluationBackend | None,
        plan: RoundPlan,
        *,
        clock: Callable[[], float] = time.monotonic,
        began_at: float | None = None,
        processor_clock: Callable[[], float] = processor_seconds,
        used_before: float | None = None,
        episode_steps: Callable[[], int] = lambda: 1000,
        base_env_steps: Sequence[int] | None = None,
        interrupted: Callable[[], bool] = lambda: False,
        told_to_end: Callable[[], bool] = lambda: False,
        fusion: EpochFusion | None = None,
        phases: Phases | None = None,
    ) -> None:
        """`backend` None: no evaluation. `began_at`: the start of the round on `clock`, by default
        now; `used_before`: `processor_clock` then. On a GPU, use is in seconds of `clock`.
        `episode_steps`, the most of an episode, helps to estimate the cost of the first look.
        `base_env_steps`: each member's before the round, for evaluation episodes that differ from
        those of earlier rounds. `interrupted` ends the round without evaluations, `told_to_end`
        with those that end soon. `fusion`: with other learners, whose steps count here once they
        are fused. `phases`: such as record spans."""
        self.algorithm, self.plan = algorithm, plan
        self._source, self._clock, self._episode_steps = source, clock, episode_steps
        self.phases = phases or Phases()
        algorithm.observe = self.phases.part
        self._time = RoundTime(
            plan.duration_s, lambda: self.elapsed_s, lambda: told_to_end() or interrupted()
        )
        algorithm.halted, source.halted = self._time.is_up, self._time.has_collected
        self._is_over = False
        self._fusion = fusion
        self._began_at = clock() if began_at is None else began_at
        self._is_on_cpu, self._processor_clock = algorithm.device.type == "cpu", processor_clock
        self._used_before = processor_clock() if used_before is None else used_before
        self._counts = RoundCounts(algorithm.members, algorithm.device)
        self._has_stepped = False
        self._metrics: dict[str, Tensor] = {}
        self._collect_s, self._envs_per_member = 0.0, 1  # used for the last rollout
        self._evaluates_elsewhere = backend is not None and not backend.blocking
        self.selection: Selection | None = None
        if backend is not None:
            backend.left_s = self._evaluation_left_s
            view = RoundView(
                self.moment,
                self._first_look_s,
                list(base_env_steps or [0] * algorithm.members),
                interrupted,
                self._counts.returns,
                self._time.ends_at_s,
            )
            self.selection = Selection(algorithm, backend, plan, view)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the round began."""
        return self._clock() - self._began_at

    @property
    def used_s(self) -> float:
        """Processor seconds of all processes that worked for the round; on a GPU the seconds for
        which it was held."""
        if not self._is_on_cpu:
            return self.elapsed_s
        judged_s = self.selection.spent_s if self.selection and self._evaluates_elsewhere else 0.0
        return self._processor_clock() - self._used_before + self._source.used_s + judged_s

    @property
    def confirmed(self) -> Judgement | None:
        """The judgement that reached the target, if any."""
        return self.selection.confirmed if self.selection else None

    @property
    def ended_by(self) -> Literal["target", "steps", "seconds", ""]:
        """What has ended the round, or will; empty if it is a limit of cost."""
        if self.confirmed is not None:
            return "target"
        if self.plan.env_steps and self._counts.per_member >= self.plan.env_steps:
            return "steps"
        return "" if self.plan.duration_s is None else "seconds"

    @property
    def finished(self) -> bool:
        """Whether the target is reached, or the budget used except for the last evaluations.
        However short its time, a round takes a step."""
        plan, selection = self.plan, self.selection
        if self._is_over or self.ended_by in ("target", "steps"):
            return True
        if (
            plan.duration_s is not None
            and self._has_stepped
            and self.elapsed_s + self._closing_s >= plan.duration_s
        ):
            return True
        closing_cost_s = selection.closing_cost_s if selection and plan.cost_s is not None else 0.0
        return plan.cost_s is not None and self.used_s + closing_cost_s >= plan.cost_s

    def step(self, *, may_look: bool = True) -> bool:
        """One rollout, one update, and a look if it is due. Returns whether it has looked.

        Once time is up or the round is told to end, the rollout and the update end early and
        nothing follows them."""
        self.phases.next_iteration()
        self._has_stepped = True
        self._time.divide(self._closing_s)
        start_s, began_at_s = self.used_s, self.elapsed_s
        with self.phases.phase("collect"):
            try:
                rollout = self._source.collect()
            except TimeUp:
                self._is_over = True
                return False
        self._collect_s, self._envs_per_member = max(0.0, self.used_s - start_s), rollout.num_envs
        collected_at_s = self.elapsed_s
        if self.selection is not None and self._collect_s > 0.0:
            self.selection.costs.note_pace((collected_at_s - began_at_s) / self._collect_s)
        with self.phases.phase("update"):
            self._metrics = self.algorithm.update(rollout)
        self._time.note_update(self.elapsed_s - collected_at_s)
        self._counts.add(rollout)
        self._is_over = self._time.is_up()
        if self._fusion is not None:
            with self.phases.phase("fuse"):
                others = self._fusion.after_update(last=self.finished)
            if others is not None:
                self._counts.add_others(others)
        if self.selection is None or self._is_over:
            return False
        with self.phases.phase("evaluate"):
            return self.selection.step(may_look=may_look)

    def conclude(self, *, timeout_s: float = _CONCLUDE_S) -> list[MemberOutcome]:
        """End the round: evaluate every member's best snapshot in full if the fraction and the time
        allow it (`Selection.conclude`), unless the target is reached. Raises DeadlineExpired if the
        backend is lost for `timeout_s`."""
        if self.selection:
            with self.phases.phase("conclude"):
                self.selection.conclude(timeout_s)
        return self.outcomes()

    def outcomes(self) -> list[MemberOutcome]:
        """A copy of every member's current result."""
        candidates = self.selection.candidates if self.selection else {}
        env_steps, active = self._counts.steps.tolist(), self.algorithm.active.tolist()
        environments = self._source.environment_states()
        return [
            MemberOutcome(
                member,
                env_steps[member],
                self.algorithm.member_state(member),
                environments[member] if environments else None,
                candidates.get(member),
                failed=not active[member],
            )
            for member in range(self.algorithm.members)
        ]

    def moment(self) -> Moment:
        """The current moment of the round."""
        return Moment(
            self.elapsed_s, self._counts.steps.tolist(), self.algorithm.version, self.used_s
        )

    def breaks(self) -> tuple[int, int, int]:
        """Training episodes that have broken, all that have ended, and how many rollouts in a row
        have no valid step. Synchronizes with the device."""
        return self._counts.breaks()

    def progress(self) -> Progress:
        """The progress in detail, with the metrics of the last update. Synchronizes with the
        device."""
        return Progress(
            self.elapsed_s,
            self.used_s,
            self.selection.spent_s if self.selection else 0.0,
            self._counts.updates,
            self._counts.steps.tolist(),
            self._counts.returns(),
            {name: value.tolist() for name, value in self._metrics.items()}
            | {
                name: [value] * self.algorithm.members
                for name, value in self._source.figures.items()
            },
            self.algorithm.active.tolist(),
        )

    @property
    def _closing_s(self) -> float:
        """Seconds to keep for the last evaluations: before the first look their whole fraction of
        the round."""
        if self.selection is None or self.plan.duration_s is None:
            return 0.0
        if not self.selection.has_judged:
            return self.plan.evaluation_fraction * self.plan.duration_s
        return 0.0 if self._evaluates_elsewhere else self.selection.closing_s

    def is_late(self) -> bool:
        """Whether the round was told to end so long ago that what has not ended by itself is
        left."""
        return self._time.is_told() and self._time.evaluation_left_s(is_last=True) <= 0.0

    def _evaluation_left_s(self) -> float:
        is_last = self._is_over or self.selection is None or self.selection.is_concluding
        return self._time.evaluation_left_s(is_last=is_last)

    def _first_look_s(self) -> float:
        """The estimated cost of the first look: episodes at the price of the last rollout, in a
        look's environments, as long as training episodes, or full ones before the first has
        ended."""
        share = min(1.0, self.plan.screening_episodes / self._envs_per_member)
        ended, taken = self._counts.ended(), int(self._counts.steps.sum())
        steps = min(self._episode_steps(), taken / ended if ended else math.inf)
        return self._collect_s / self.algorithm.horizon * steps * share

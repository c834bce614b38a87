"""A round's open evaluation orders."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.random_numbers import (
    ADMISSION,
    COMPARISON,
    CONFIRMATION,
    SCREENING,
    derive_key,
    evaluation_seeds,
)
from podracer_core.training.evaluation_backend import (
    EvaluationAnswer,
    EvaluationBackend,
    EvaluationOrder,
)
from podracer_core.training.plan import RoundPlan
from podracer_core.training.snapshots import Moment, Snapshot, take_snapshot


@dataclass(slots=True)
class Look:
    """A look at all members; with `snapshots` if training may continue before the answer."""

    order_id: int
    moment: Moment
    snapshots: list[Snapshot] | None = None


@dataclass(frozen=True, slots=True)
class Full:
    """A full evaluation of one snapshot, with its own fresh episodes for each purpose."""

    snapshot: Snapshot
    purpose: int


class EvaluationOrders:
    """One look, or any number of full evaluations, at a time.

    busy_since_s   since when the backend has been busy with open orders, in seconds of the round
    """

    def __init__(
        self,
        algorithm: Algorithm,
        backend: EvaluationBackend,
        seed: int,
        base_env_steps: Sequence[int],
        take: Callable[[EvaluationAnswer], None],
    ) -> None:
        """`seed`: the job's; `base_env_steps`: each member's before the round. `take` gets the
        answers of a backend that answers at once."""
        self._algorithm, self._backend, self._take = algorithm, backend, take
        self._seed, self._base_env_steps = seed, base_env_steps
        self._ids = itertools.count(1)
        self._look: Look | None = None
        self._full: dict[int, Full] = {}
        self.busy_since_s = 0.0

    def __len__(self) -> int:
        return len(self._full) + (self._look is not None)

    @property
    def has_full(self) -> bool:
        """Whether a full evaluation is open."""
        return bool(self._full)

    def look(self, now: Moment, episodes: int) -> None:
        """Order this many episodes of every member's current policy."""
        members = range(self._algorithm.members)
        self.busy_since_s = now.elapsed_s
        seeds = evaluation_seeds(self._fresh_seed(0, now.env_steps[0]), SCREENING, episodes)
        look = self._look = Look(next(self._ids), now)
        self._submit(
            EvaluationOrder(
                look.order_id, tuple(members), self._algorithm.actor, tuple(seeds), screening=True
            )
        )
        if self._look is look:
            look.snapshots = [take_snapshot(self._algorithm, member, now) for member in members]

    def evaluate(
        self, now: Moment, snapshot: Snapshot, purpose: int, episodes: int, plan: RoundPlan
    ) -> None:
        """Order this many fresh episodes of a snapshot. A candidate that may have reached the
        target, or that has to reach a score, first plays a look's number of them."""
        self.busy_since_s = self.busy_since_s if self._full else now.elapsed_s
        admission = plan.admission_score if purpose == ADMISSION else None
        required = plan.target if purpose == CONFIRMATION else None
        has_to_reach = admission is not None or required is not None
        at_once = purpose == COMPARISON or not (self._backend.blocking or has_to_reach)
        seed = self._fresh_seed(snapshot.member, snapshot.env_steps)
        order = EvaluationOrder(
            next(self._ids),
            (snapshot.member,),
            snapshot.actor,
            tuple(evaluation_seeds(seed, purpose, episodes)),
            first_episodes=0 if at_once else min(plan.screening_episodes, plan.episodes),
            admission_score=admission,
            required_score=required,
        )
        self._full[order.order_id] = Full(snapshot, purpose)
        self._submit(order)

    def claim(self, answer: EvaluationAnswer) -> Look | Full | None:
        """Close the order of this answer and return it; None if there is no such order."""
        if self._look is not None and answer.order_id == self._look.order_id:
            look, self._look = self._look, None
            return look
        return self._full.pop(answer.order_id, None)

    def abandon(self, plan: RoundPlan) -> int:
        """Drop all open orders. Returns the most episodes that are thereby left out."""
        episodes = plan.episodes * len(self._full)
        if self._look is not None:
            episodes += self._algorithm.members * plan.screening_episodes
        self._look, self._full = None, {}
        return episodes

    def _submit(self, order: EvaluationOrder) -> None:
        self._backend.submit(order)
        for answer in self._backend.poll():
            self._take(answer)

    def _fresh_seed(self, member: int, env_steps: int) -> int:
        """A seed of new episodes, derived from the job, the agent and its steps."""
        agent = self._algorithm.cohort.members[member]
        return int(derive_key(self._seed, agent.seed, self._base_env_steps[member] + env_steps))

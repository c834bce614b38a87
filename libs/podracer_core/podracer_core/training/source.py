"""The source of a learner's rollouts, and the decision whether to collect ahead of training."""

from __future__ import annotations

import logging
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.buffers.rollout import Rollout
from podracer_core.collect import Collector
from podracer_core.errors import MOST_LETTERS, plain
from podracer_core.training.member_states import EnvironmentState, member_environment_states

logger = logging.getLogger(__name__)

MOST_AHEAD = 2
"""The most rollouts in progress at a worker: the oldest is used when the policy is two versions
further."""

_ROLLOUTS = 12
_SETTLING = 2  # the first rollouts are slow for reasons of their own
_WORTHWHILE = 0.25
_GAIN = 0.9


@dataclass(frozen=True, slots=True)
class WorldBreak:
    """The first break of a kind: see `Break`; `member`: the agent whose environment broke."""

    member: int
    numbers: bool
    text: str
    traceback: str


class RolloutSource(ABC):
    """Collects rollouts with the algorithm's weights or slightly older ones.

    worker_count  workers connected now
    staleness     mean number of versions by which the transitions of the last rollout were behind
    used_s        processor seconds of other processes for its rollouts so far
    halted        whether the time for collection is over: `collect` then ends the rollout with the
                  steps that it has
    """

    worker_count: int = 0
    staleness: float = 0.0
    used_s: float = 0.0
    halted: Callable[[], bool] = staticmethod(lambda: False)

    @property
    def figures(self) -> dict[str, float]:
        """Further figures beside the algorithm's metrics; the same for all members."""
        return {}

    def opened(self) -> None:  # noqa: B027 - most sources are open at once
        """Wait until rollouts can be collected."""

    @abstractmethod
    def collect(self) -> Rollout:
        """The next rollout; its tensors may be overwritten by the next call. Raises TimeUp if it is
        `halted` and has no rollout yet."""

    def take_breaks(self) -> list[WorldBreak]:
        """What has broken since the last call; of each kind at least the first."""
        return []

    @abstractmethod
    def environment_states(self) -> list[EnvironmentState] | None:
        """The environments' states of each member after the last rollout; None if they cannot be
        known."""

    def close(self) -> None:  # noqa: B027 - most sources have nothing to give back
        """Release resources; closing twice is harmless."""


def first_breaks(collector: Collector) -> list[WorldBreak]:
    """The first break of each kind in a collector's environments since the last call."""
    kinds = {each.numbers: each for each in reversed(collector.environment.take_breaks())}
    return [
        WorldBreak(
            member=each.row // collector.num_envs,
            numbers=each.numbers,
            text=plain(each.text)[:MOST_LETTERS],
            traceback=plain(each.traceback)[-MOST_LETTERS:],
        )
        for each in kinds.values()
    ]


class InProcessSource(RolloutSource):
    """Collects in this process, between the updates, always with the newest weights."""

    def __init__(self, collector: Collector, algorithm: Algorithm) -> None:
        self._collector, self._algorithm = collector, algorithm

    def collect(self) -> Rollout:
        self._collector.halted = self.halted
        return self._collector.collect(
            self._algorithm.horizon, policy_version=self._algorithm.version
        )

    def take_breaks(self) -> list[WorldBreak]:
        return first_breaks(self._collector)

    def environment_states(self) -> list[EnvironmentState] | None:
        return member_environment_states(self._collector)

    def close(self) -> None:
        self._collector.environment.close()


class OverlappingSource(InProcessSource):
    """Collects in this process on its own CUDA stream: the device takes the next rollout, with
    weights that are one version old, while it trains on this one. If `pace` finds no gain, it
    collects between the updates."""

    def __init__(
        self, collector: Collector, algorithm: Algorithm, ahead: int | None = None
    ) -> None:
        """`collector` has its own actor and two buffers. `ahead`: 0 or 1, without measuring."""
        super().__init__(collector, algorithm)
        device = algorithm.device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._pace = PaceTrial(ahead, self._synchronized_clock, most=1)
        self._next: Rollout | None = None

    @property
    def figures(self) -> dict[str, float]:
        return {"staleness": self.staleness, "collected_ahead": self._pace.ahead}

    def collect(self) -> Rollout:
        self._pace.wait()
        rollout = self._next if self._next is not None else self._begin()
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        self._pace.go_on()
        self._next = self._begin() if self._pace.ahead else None
        self.staleness = self._algorithm.version - rollout.policy_version
        return rollout

    def environment_states(self) -> list[EnvironmentState] | None:
        return super().environment_states() if self._next is None else None

    def close(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()
        super().close()

    def _begin(self) -> Rollout:
        """Start collecting a rollout with the newest weights, after all earlier work with them."""
        algorithm, collector = self._algorithm, self._collector
        collector.halted = self.halted
        collector.actor.load_state(algorithm.actor_state())
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            return collector.collect(algorithm.horizon, policy_version=algorithm.version)

    def _synchronized_clock(self) -> float:
        if self._stream is not None:
            torch.cuda.synchronize(self._stream.device)
        return time.monotonic()


class PaceTrial:
    """Measures some rollouts in lock-step: how long the learner waits for them, and how long it
    trains on them.

    Collecting ahead hides the shorter of the two, at the price of weights that are one version old.
    On small problems that price is real, so it is tried only if the shorter one is at least a
    quarter of both. It stays if a rollout with its training then takes at most nine tenths of the
    time; learners that share busy cores or one device may gain nothing. If the learner waits longer
    than it trains, workers get one more rollout, so that they never wait for the learner; they
    begin it so late that the weights are no older. If it trains longer, the weights would be older.

    ahead   rollouts to collect while the learner trains: 0 is lock-step
    """

    def __init__(
        self,
        ahead: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        most: int = MOST_AHEAD,
    ) -> None:
        """`ahead`: a fixed number instead of measuring. `clock` is read only while measuring;
        `most` limits both."""
        self._clock, self._most = clock, most
        self._mark: float | None = None
        self._waits: list[float] = []
        self._trainings: list[float] = []
        self._lock_step_s = 0.0
        self._decided = ahead is not None
        self.ahead = min(ahead or 0, most)

    def wait(self) -> None:
        """The learner begins to wait for a rollout."""
        if self._decided:
            return
        now = self._clock()
        if self._mark is not None:
            self._trainings.append(now - self._mark)
        self._mark = now

    def go_on(self) -> None:
        """The rollout has arrived."""
        if self._decided or self._mark is None:
            return
        now = self._clock()
        self._waits.append(now - self._mark)
        self._mark = now
        if len(self._waits) == _ROLLOUTS:
            self._decide()

    def _decide(self) -> None:
        wait_s = statistics.median(self._waits[_SETTLING:])
        training_s = statistics.median(self._trainings[_SETTLING:])
        if self.ahead:
            self._decided = True
            if wait_s + training_s > _GAIN * self._lock_step_s:
                self.ahead = 0
            text = (
                "a rollout with its training takes %.3f s, in lock-step %.3f s: %d are "
                "collected ahead"
            )
            logger.info(text, wait_s + training_s, self._lock_step_s, self.ahead)
            return
        if min(wait_s, training_s) >= _WORTHWHILE * (wait_s + training_s):
            self.ahead = min(MOST_AHEAD if wait_s > training_s else 1, self._most)
            self._lock_step_s = wait_s + training_s
            self._waits, self._trainings, self._mark = [], [], None
            return
        self._decided = True
        logger.info(
            "a rollout takes %.3f s, training on it %.3f s: none is collected ahead",
            wait_s,
            training_s,
        )

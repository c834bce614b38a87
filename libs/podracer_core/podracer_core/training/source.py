"""Where a learner's rollouts come from."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import nullcontext

import torch

from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.buffers.rollout import Rollout
from podracer_core.collect import Collector
from podracer_core.training.environment_states import EnvironmentState, member_environment_states
from podracer_core.training.pace_trial import PaceTrial


class RolloutSource(ABC):
    """Gives one rollout after the other, taken with the algorithm's weights or slightly older ones.

    worker_count  workers connected now
    staleness     versions by which the transitions of the last rollout were behind, their mean
    used_s        processor seconds that other processes have used for its rollouts so far
    """

    worker_count: int = 0
    staleness: float = 0.0
    used_s: float = 0.0

    @property
    def figures(self) -> dict[str, float]:
        """What is worth showing beside the algorithm's metrics; of all members alike."""
        return {}

    @abstractmethod
    def collect(self) -> Rollout:
        """The next rollout; its tensors may be overwritten by the next call."""

    @abstractmethod
    def environment_states(self) -> list[EnvironmentState] | None:
        """For each member where its environments stand after the last rollout; None where nobody can know."""

    def close(self) -> None:  # noqa: B027 - most sources have nothing to give back
        """Give back what it holds; closing twice is harmless."""


class InProcessSource(RolloutSource):
    """Collects here, between the updates, always with the newest weights."""

    def __init__(self, collector: Collector, algorithm: Algorithm) -> None:
        self._collector, self._algorithm = collector, algorithm

    def collect(self) -> Rollout:
        return self._collector.collect(self._algorithm.horizon, policy_version=self._algorithm.version)

    def environment_states(self) -> list[EnvironmentState] | None:
        return member_environment_states(self._collector)

    def close(self) -> None:
        self._collector.environment.close()


class OverlappingSource(RolloutSource):
    """Collects here as well, but on a CUDA stream of its own: the device takes the next rollout, with weights that are
    one version old, while it trains on this one. Where `pace` finds that this gains nothing, it collects between the
    updates.
    """

    def __init__(self, collector: Collector, algorithm: Algorithm, ahead: int | None = None) -> None:
        """`collector` has an actor of its own and two buffers. `ahead`: 0 or 1, without measuring."""
        self._collector, self._algorithm = collector, algorithm
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
        return member_environment_states(self._collector) if self._next is None else None

    def close(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()
        self._collector.environment.close()

    def _begin(self) -> Rollout:
        """Have a rollout collected with the newest weights, once everything before has been done with them."""
        algorithm, collector = self._algorithm, self._collector
        collector.actor.load_state(algorithm.actor_state())
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            return collector.collect(algorithm.horizon, policy_version=algorithm.version)

    def _synchronized_clock(self) -> float:
        if self._stream is not None:
            torch.cuda.synchronize(self._stream.device)
        return time.monotonic()

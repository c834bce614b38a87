"""Where a learner's rollouts come from."""

from __future__ import annotations

from abc import ABC, abstractmethod

from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.buffers.rollout import Rollout
from podracer_core.collect import Collector
from podracer_core.training.environment_states import EnvironmentState, member_environment_states

__all__ = ["InProcessSource", "RolloutSource"]


class RolloutSource(ABC):
    """Gives one rollout after the other, taken with the algorithm's weights or slightly older ones.

    worker_count  workers connected now
    staleness     versions by which the transitions of the last rollout were behind, their mean
    """

    worker_count: int = 0
    staleness: float = 0.0

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

"""What every pool backend does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from podracer_orchestrator.pod_kind import PodKind
from podracer_orchestrator.pool.machine import PodUse


@dataclass(frozen=True, slots=True)
class PodPlan:
    """A pod that is wanted. `name` is its resource name; `threads` those of each of its processes."""

    name: str
    kind: PodKind
    threads: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a pool has and uses, as last measured.

    cores, used_cores              of the machine; used by anybody
    memory_bytes, available_bytes  of the machine; what pods could have without swapping
    gpus, usable_gpus              of the machine; without those that somebody else uses
    max_pods                       at most
    pods                           what each pod takes, by name
    """

    cores: float
    memory_bytes: int
    max_pods: int
    used_cores: float = 0.0
    available_bytes: int = 0
    gpus: int = 0
    usable_gpus: int = 0
    pods: Mapping[str, PodUse] = field(default_factory=dict)


class PodObserver(ABC):
    """Hears from a backend what becomes of its pods."""

    @abstractmethod
    async def process_died(self, pod: str, role: str, why: str, log_tail: str) -> bool:
        """A process of a pod has ended unasked. Answers whether it is to be started again."""

    @abstractmethod
    async def pod_stopped(self, pod: str) -> None:
        """All processes of a pod that was not wanted any more are gone."""


class PoolBackend(ABC):
    """Makes and removes pods."""

    name: str
    """As in Pod.backend: `local`, `static`."""
    dies_with_us = False
    """Whether its pods cannot outlive this process, so that those of a former one are known to be gone."""

    @property
    @abstractmethod
    def capacity(self) -> Capacity | None:
        """What there is; None where it cannot be told, because pods come by themselves, or not yet."""

    async def measure(self) -> None:  # noqa: B027 - nothing to look at where pods come by themselves
        """Look at the machine and at the pods, so that `capacity` is of now."""

    @abstractmethod
    async def reconcile(self, wanted: Sequence[PodPlan]) -> None:
        """Start the pods of `wanted` that are not there, begin to drain those that are there and not in it.

        Returns soon: starting and stopping go on beside it.
        """

    def restart(self, pod: str) -> None:  # noqa: B027 - nothing to do where pods come by themselves
        """End a pod's learner at once; it is started again."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop every pod, gracefully for a while, then by force; returns when nothing is left."""

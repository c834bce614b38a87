"""What every pool backend does, and the one that makes no pods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from podracer_orchestrator.jobs.plan import PodKind
from podracer_orchestrator.pool.machine import PodUse
from podracer_orchestrator.pool.scheduling import Growth


@dataclass(frozen=True, slots=True)
class PodPlan:
    """A pod that is wanted. `name` is its resource name; `threads` those of each of its processes, 0: the backend says.

    cpu, memory_bytes   the most that a job of this kind asks for; 0 where none says anything
    """

    name: str
    kind: PodKind
    threads: int
    cpu: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Trouble:
    """What keeps a pod from working, for people. `kind` is that of the event in the jobs' logs; "": waiting is all that
    it does, and no job has to hear of it."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a pool has and uses, as last measured.

    cores, used_cores              of the machine; used by all processes
    memory_bytes, available_bytes  of the machine; what pods could have without swapping
    gpus, usable_gpus              of the machine; without those in use by other programs
    max_pods                       at most
    pods                           what each pod takes, by name
    growth                         instead of all these, in a cluster whose resources are unknown
    asked_bytes                    memory that the jobs had asked for when a pod was made that is held to it, by name
    """

    cores: float
    memory_bytes: int
    max_pods: int
    used_cores: float = 0.0
    available_bytes: int = 0
    gpus: int = 0
    usable_gpus: int = 0
    pods: Mapping[str, PodUse] = field(default_factory=dict)
    growth: Growth | None = None
    asked_bytes: Mapping[str, int] = field(default_factory=dict)


class PodObserver(ABC):
    """Hears from a backend what becomes of its pods."""

    @abstractmethod
    async def check_active(self) -> None:
        """Raise where another process has taken over, whose pods they are now."""

    @abstractmethod
    async def process_died(self, pod: str, role: str, why: str, log_tail: str) -> bool:
        """A process of a pod has ended unasked. Answers whether it is to be started again."""

    @abstractmethod
    async def pod_lost(self, pod: str, why: str) -> None:
        """A pod's learner is gone, and nothing is wrong with it; it comes again."""

    @abstractmethod
    async def pod_stranded(self, pod: str, why: str) -> None:
        """A pod's node is gone, perhaps for good: another pod takes its place, and it may never come back."""

    @abstractmethod
    async def pods_troubled(self, troubles: Mapping[str, Trouble | None]) -> None:
        """What keeps pods from working now, by name; None of those that nothing keeps any more."""

    @abstractmethod
    async def pod_stopped(self, pod: str) -> None:
        """All processes of a pod that was not wanted any more are gone."""


class PoolBackend(ABC):
    """Makes and removes pods."""

    name: str
    """As in Pod.backend: `local`, `static`, `kubernetes`."""
    dies_with_us = False
    """Whether its pods cannot outlive this process, so that those of a former one are known to be gone."""

    @property
    @abstractmethod
    def capacity(self) -> Capacity | None:
        """The pool's capacity; None if unknown: pods are started elsewhere, or it is not measured yet."""

    async def start(self, former: Sequence[str]) -> None:  # noqa: B027 - most have nothing to take up
        """Begin. `former` are the pods that a process before this one had made, where they can have outlived it."""

    async def check(self) -> None:  # noqa: B027 - optional
        """Raise a PodracerError while it can make no pods, as it is deployed."""

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


class StaticPool(PoolBackend):
    """A pool that makes and removes no pods: learners are started elsewhere and ask for leases."""

    name = "static"

    @property
    def capacity(self) -> Capacity | None:
        return None

    async def reconcile(self, wanted: Sequence[PodPlan]) -> None:
        """Nothing to do."""

    async def stop(self) -> None:
        """Nothing to do: pods find the orchestrator gone and wait for the next one."""

"""The interface of every pool backend, and the backend that starts no pods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from podracer_orchestrator.jobs import PodKind
from podracer_orchestrator.pool.machine import PodUse
from podracer_orchestrator.pool.scheduling import Growth


@dataclass(frozen=True, slots=True)
class PodPlan:
    """A pod that is wanted. `name` is its resource name; `threads` is the number for each of its
    processes, 0: the backend decides.

    cpu, memory_bytes   the largest request of a job of this kind; 0 if none has a request
    """

    name: str
    kind: PodKind
    threads: int
    cpu: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Trouble:
    """The reason why a pod cannot work, as text. `kind` is the kind of the event in the jobs' logs;
    "": the pod only waits, and no job has an event. `said`: the end of its log, only for the job
    that it works for."""

    kind: str
    message: str
    said: str = ""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of a pool and its use, as last measured.

    cores, used_cores              of the machine; used by all processes
    memory_bytes, available_bytes  of the machine; memory for pods without swapping
    gpus, usable_gpus              of the machine; without those in use by other programs
    max_pods                       maximum number of pods
    pods                           use of each pod, by name
    growth                         instead of all these, in a cluster whose resources are unknown
    asked_bytes                    memory requested at the creation of each pod that is limited to
                                   it, by name
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
    """Receives the reports of a backend on its pods."""

    @abstractmethod
    async def check_active(self) -> None:
        """Raise if another process has taken over the pods."""

    @abstractmethod
    async def process_died(self, pod: str, role: str, why: str, log_tail: str) -> bool:
        """A process of a pod has ended by itself. Returns whether to start it again."""

    @abstractmethod
    async def pod_lost(self, pod: str, why: str) -> None:
        """A pod's learner has ended without a fault of its own; it starts again."""

    @abstractmethod
    async def pod_stranded(self, pod: str, why: str) -> None:
        """A pod's node is lost, perhaps for good: another pod replaces the pod, which may never
        come back."""

    @abstractmethod
    async def pods_troubled(self, troubles: Mapping[str, Trouble | None]) -> None:
        """The current reasons why pods cannot work, by name; None for a pod whose trouble is
        over."""

    @abstractmethod
    async def pod_stopped(self, pod: str) -> None:
        """All processes of a surplus pod have ended."""


class PoolBackend(ABC):
    """Starts and removes pods."""

    name: str
    """See Pod.backend: `local`, `static` or `kubernetes`."""
    dies_with_us = False
    """Whether its pods end with this process, so that those of a previous process have ended for
    certain."""

    @property
    @abstractmethod
    def capacity(self) -> Capacity | None:
        """The pool's capacity; None if unknown: pods are started elsewhere, or it has not been
        measured yet."""

    async def start(self, former: Sequence[str]) -> None:  # noqa: B027 - most have nothing to take up
        """Begin. `former` are the pods of a previous process, if they can have outlived it."""

    async def check(self) -> None:  # noqa: B027 - optional
        """Raise a PodracerError if its deployment does not let it start pods."""

    async def measure(self) -> None:  # noqa: B027 - nothing to look at where pods come by themselves
        """Measure the machine and the pods, so that `capacity` is up to date."""

    @abstractmethod
    async def reconcile(self, wanted: Sequence[PodPlan]) -> None:
        """Start the missing pods of `wanted`, and begin to drain the pods that are not in it.

        Returns soon: starting and stopping continue in the background.
        """

    def restart(self, pod: str) -> None:  # noqa: B027 - nothing to do where pods come by themselves
        """End a pod's learner at once; it is started again."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop every pod, gracefully at first, then by force; returns when all have ended."""


class StaticPool(PoolBackend):
    """A pool that starts and removes no pods: learners are started elsewhere and ask for leases."""

    name = "static"

    @property
    def capacity(self) -> Capacity | None:
        return None

    async def reconcile(self, wanted: Sequence[PodPlan]) -> None:
        """Nothing to do."""

    async def stop(self) -> None:
        """Nothing to do: without an orchestrator pods wait for the next one."""

"""Access of serving threads to the current round: its state (LearnerStatus) and requests to it
(Commands)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from podracer.common.v1 import agent_pb2
from podracer.learner.v1 import learner_service_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.errors import DeadlineExpired, NotFound, PreconditionFailed
from podracer_platform.rpc.work_queue import WorkQueue
from podracer_platform.service.build import own_build

if TYPE_CHECKING:
    from torch import Tensor

    from podracer_core.training.session import Progress
    from podracer_learner.round.setup import RoundSetup

Answer = TypeVar("Answer")

_TIMEOUT_S = 30.0


class TrainingControl(Protocol):
    """The round's interface for other threads; every method runs in the main thread."""

    @property
    def agents(self) -> Sequence[str]:
        """Names of the members' agents."""

    def policy(self, members: Sequence[int]) -> tuple[int, dict[str, Tensor]]:
        """Version and stacked tensors of these members' actors."""

    def checkpoint_now(self, members: Sequence[int]) -> list[agent_pb2.CheckpointReference]:
        """Write and commit these members."""


class Commands:
    """Requests to the current round."""

    def __init__(self) -> None:
        self._work = WorkQueue()
        self._lock = threading.Lock()
        self._round: TrainingControl | None = None

    @contextmanager
    def serving(self, current: TrainingControl) -> Iterator[None]:
        """Answer requests from this round, in `run_pending`."""
        with self._lock:
            self._round = current
        try:
            yield
        finally:
            with self._lock:
                self._round = None
            self._work.run_pending()

    def run_pending(self) -> None:
        """Answer waiting requests. Called in the main thread."""
        self._work.run_pending()

    def fetch_policy(self, agent: str) -> tuple[list[str], int, dict[str, Tensor]]:
        """Agents, version and tensors of one member, or of all if `agent` is empty."""

        def fetch(current: TrainingControl) -> tuple[list[str], int, dict[str, Tensor]]:
            members = _members(current, [agent] if agent else [])
            return [current.agents[member] for member in members], *current.policy(members)

        return self._ask(fetch)

    def checkpoint(self, agents: Sequence[str]) -> list[agent_pb2.CheckpointReference]:
        """Write and commit checkpoints of these agents, or of all."""
        return self._ask(lambda current: current.checkpoint_now(_members(current, agents)))

    def _ask(self, question: Callable[[TrainingControl], Answer]) -> Answer:
        def served() -> TrainingControl:
            if self._round is None:
                raise PreconditionFailed("this learner is not training now", reason="NO_LEASE")
            return self._round

        def task() -> Answer:
            with self._lock:
                current = served()
            return question(current)

        with self._lock:
            served()
            future = self._work.submit(task)
        try:
            return future.result(_TIMEOUT_S)
        except FutureTimeoutError:
            raise DeadlineExpired(f"the round did not answer within {_TIMEOUT_S:.0f} s") from None


def _members(current: TrainingControl, agents: Sequence[str]) -> list[int]:
    """Indices of agents, or of all if none is named. Raises NotFound for an agent of another
    cohort."""
    known = list(current.agents)
    for agent in agents:
        if agent not in known:
            raise NotFound(
                f"{agent} is not trained here; it trains {', '.join(known)}", agent=agent
            )
    return [known.index(agent) for agent in agents] if agents else list(range(len(known)))


class LearnerStatus:
    """The answer to GetStatus: replaced as a whole by the main thread, read by rpc threads."""

    def __init__(self) -> None:
        self.idle()

    def idle(self) -> None:
        """The learner waits for work."""
        self._show(learner_service_pb2.LEARNER_STATE_IDLE)

    def draining(self) -> None:
        """The learner is about to stop."""
        self._show(learner_service_pb2.LEARNER_STATE_DRAINING)

    def working(self, lease: pod_service_pb2.Lease) -> None:
        """The learner has leased work."""
        training = lease.WhichOneof("work") in ("train", "follow")
        busy = learner_service_pb2.LEARNER_STATE_BUSY
        self._show(learner_service_pb2.LEARNER_STATE_TRAINING if training else busy, lease)

    def training(
        self,
        lease: pod_service_pb2.Lease,
        progress: Progress,
        env_steps_per_second: float,
        setup: RoundSetup,
    ) -> None:
        """The progress of the round."""
        source, backend = setup.source, setup.backend
        self._show(
            learner_service_pb2.LEARNER_STATE_TRAINING,
            lease,
            updates=progress.updates,
            env_steps=sum(progress.env_steps),
            env_steps_per_second=env_steps_per_second,
            worker_count=source.worker_count,
            evaluator_count=0 if backend is None else backend.evaluator_count,
            policy_version=setup.algorithm.version,
            staleness=source.staleness,
        )

    def _show(
        self,
        state: learner_service_pb2.LearnerState.ValueType,
        lease: pod_service_pb2.Lease | None = None,
        **figures: Any,
    ) -> None:
        if lease is not None:
            figures |= {"lease": lease.name, "fence": lease.fence, "agents": _agents(lease)}
        self.answer = learner_service_pb2.GetStatusResponse(
            build=own_build(), state=state, **figures
        )


def _agents(lease: pod_service_pb2.Lease) -> tuple[str, ...]:
    if lease.WhichOneof("work") == "evaluate":
        return tuple(policy.agent for policy in lease.evaluate.policies)
    work = lease.follow.train if lease.WhichOneof("work") == "follow" else lease.train
    return tuple(agent.name for agent in work.cohort.members)

"""What others may ask of the round that is going on; the main thread answers between two updates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from podracer.common.v1 import agent_pb2
from podracer_core.errors import DeadlineExpired, NotFound, PreconditionFailed
from podracer_core.rpc.work_queue import WorkQueue

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Commands", "Round"]

Answer = TypeVar("Answer")

_TIMEOUT_S = 30.0


class Round(Protocol):
    """The round as far as others may touch it; every method runs in the main thread."""

    @property
    def agents(self) -> Sequence[str]:
        """Names of the members' agents."""

    def policy(self, members: Sequence[int]) -> tuple[int, dict[str, Tensor]]:
        """Version and stacked tensors of these members' actors."""

    def checkpoint_now(self, members: Sequence[int]) -> list[agent_pb2.CheckpointReference]:
        """Write and commit these members."""


class Commands:
    """Requests to the round of the moment."""

    def __init__(self) -> None:
        self._work = WorkQueue()
        self._lock = threading.Lock()
        self._round: Round | None = None

    @contextmanager
    def serving(self, current: Round) -> Iterator[None]:
        """Have requests answered from this round; `run_pending` does it."""
        with self._lock:
            self._round = current
        try:
            yield
        finally:
            with self._lock:
                self._round = None
            self._work.run_pending()

    def run_pending(self) -> None:
        """Answer what waits. Main thread."""
        self._work.run_pending()

    def fetch_policy(self, agent: str) -> tuple[list[str], int, dict[str, Tensor]]:
        """Agents, version and tensors of one member, or of all where `agent` is empty."""

        def fetch(current: Round) -> tuple[list[str], int, dict[str, Tensor]]:
            members = _members(current, [agent] if agent else [])
            return [current.agents[member] for member in members], *current.policy(members)

        return self._ask(fetch)

    def checkpoint(self, agents: Sequence[str]) -> list[agent_pb2.CheckpointReference]:
        """Write and commit checkpoints of these agents, or of all."""
        return self._ask(lambda current: current.checkpoint_now(_members(current, agents)))

    def _ask(self, question: Callable[[Round], Answer]) -> Answer:
        def task() -> Answer:
            with self._lock:
                current = self._round
            if current is None:
                raise PreconditionFailed("this learner trains nobody now", reason="NO_LEASE")
            return question(current)

        with self._lock:
            if self._round is None:
                raise PreconditionFailed("this learner trains nobody now", reason="NO_LEASE")
            future = self._work.submit(task)
        try:
            return future.result(_TIMEOUT_S)
        except FutureTimeoutError:
            raise DeadlineExpired(f"the round did not answer within {_TIMEOUT_S:.0f} s") from None


def _members(current: Round, agents: Sequence[str]) -> list[int]:
    """Indices of agents; of all where none is named. Raises NotFound for one that is not of this cohort."""
    known = list(current.agents)
    for agent in agents:
        if agent not in known:
            raise NotFound(f"{agent} is not trained here; it trains {', '.join(known)}", agent=agent)
    return [known.index(agent) for agent in agents] if agents else list(range(len(known)))

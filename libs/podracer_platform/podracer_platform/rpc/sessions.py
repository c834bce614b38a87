"""Sessions on a bidirectional stream, as a worker and an evaluator hold them: a limited number at a
time."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from podracer_core.errors import Exhausted, InvalidInput, Unavailable
from podracer_platform.rpc.guard import Context
from podracer_platform.rpc.streams import Outbox
from podracer_platform.rpc.work_queue import WorkQueue


class Session(ABC):
    """One client's session. `outbox` holds the messages to the client; the session ends with it."""

    def __init__(self) -> None:
        self.outbox: Outbox[Any] = Outbox()

    @abstractmethod
    def receive(self, request: Any) -> None:
        """Take a message from the client, in order. A PodracerError ends the session.

        The first one may take its time; the others come in the event loop.
        """

    def responses(self, message: Any) -> Iterable[Any]:
        """The responses that a message of the outbox stands for."""
        return (message,)

    @abstractmethod
    def drain(self) -> None:
        """The process is about to stop: say so and close the outbox."""

    @abstractmethod
    def close(self) -> None:
        """The session is over: release its resources. Called once, after the last message was
        sent."""


class WorkSession(Session):
    """A session that its client opens with the message `open`, and whose tasks run in the main
    thread, in order.

    Once the session is over, waiting tasks are skipped, and `require_wanted` cancels the running
    one."""

    def __init__(self, work: WorkQueue) -> None:
        super().__init__()
        self._work = work
        self._opened = self._over = False

    @abstractmethod
    def open(self, request: Any) -> None:
        """Take the `open` message."""

    @abstractmethod
    def take(self, kind: str, request: Any) -> None:
        """Take a further message; `kind` is its field's name, empty where none is set."""

    @abstractmethod
    def release(self) -> None:
        """Release the session's resources, in the main thread or after its end."""

    def receive(self, request: Any) -> None:
        kind = request.WhichOneof("message") or ""
        if (kind == "open") == self._opened:
            raise InvalidInput(
                "a session begins with `open`, and has only one", reason="BAD_SESSION"
            )
        self._opened = True
        if kind == "open":
            self.open(request.open)
        else:
            self.take(kind, request)

    def submit(
        self, task: Callable[[], None], own: AbstractContextManager[Any] | None = None
    ) -> None:
        """Run a task in the main thread, in its `own` span; an error ends the session."""

        def guarded() -> None:
            if self._over:
                return
            try:
                with nullcontext() if own is None else own:
                    task()
            except Exception as error:  # noqa: BLE001 - whatever it is must end the session, not hang it
                self.outbox.fail(error)

        self._work.submit(guarded)

    def require_wanted(self) -> None:
        """Raises Unavailable once the session is over."""
        if self._over:
            raise Unavailable("the client has ended the session")

    def close(self) -> None:
        self._over = True
        try:
            self._work.submit(self.release).result()
        except Unavailable:
            self.release()  # the main thread has stopped already


class SessionSlots:
    """Serves at most `limit` sessions."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._taken = 0
        self._sessions: set[Session] = set()
        self._draining = False

    @property
    def count(self) -> int:
        """Sessions now."""
        return self._taken

    async def serve(
        self, make_session: Callable[[], Session], requests: AsyncIterator[Any], context: Context
    ) -> None:
        """Serve a client's session, which begins with its first request and ends with its call.

        Raises Exhausted at the limit.
        """
        first = await anext(requests, None)
        if first is None:
            return
        with self._place():
            session = await asyncio.to_thread(make_session)
            with self._lock:
                self._sessions.add(session)
                draining = self._draining
            reader = asyncio.create_task(_read(session, first, requests))
            if draining:
                session.drain()
            try:
                async for message in session.outbox:
                    for response in session.responses(message):
                        await context.write(response)
            finally:
                reader.cancel()
                with self._lock:
                    self._sessions.discard(session)
                # Its call may be cancelled now, when it has ended: what has not begun would be
                # given up.
                await asyncio.shield(
                    asyncio.get_running_loop().run_in_executor(None, session.close)
                )

    @contextmanager
    def _place(self) -> Iterator[None]:
        with self._lock:
            if self._taken >= self.limit or self._draining:
                raise Exhausted(
                    f"all {self.limit} sessions are taken; try again in a second",
                    reason="ALL_SESSIONS_TAKEN",
                    max_sessions=self.limit,
                    retry_after_s=1,
                )
            self._taken += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken -= 1

    def drain(self) -> None:
        """Tell all sessions that the process is about to stop."""
        with self._lock:
            self._draining = True
            sessions = list(self._sessions)
        for session in sessions:
            session.drain()


async def _read(session: Session, first: Any, requests: AsyncIterator[Any]) -> None:
    try:
        await asyncio.to_thread(session.receive, first)
        async for request in requests:
            session.receive(request)
        session.outbox.close()
    except Exception as error:  # noqa: BLE001 - also a mistake of ours must reach the client, not hang it
        session.outbox.fail(error)

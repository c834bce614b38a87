"""Both ends of a bidirectional stream as queues, for processes whose main thread computes.

A server's session puts its responses into an Outbox, which its call's coroutine iterates. gRPC
iterates a client's in a thread: StreamCall queues messages to send, and keeps arrived items for the
main thread. WorkQueue has the tasks of handlers for the main thread, as torch computes in one
thread. SessionSlots serves a limited number of sessions, as a worker and an evaluator hold them."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from podracer_core.errors import (
    DeadlineExpired,
    Exhausted,
    InvalidInput,
    PodracerError,
    Unavailable,
)

if TYPE_CHECKING:
    from podracer_platform.rpc.guard import Context

Message = TypeVar("Message")
Item = TypeVar("Item")


class _End:
    """The last entry of a queue, with the error that ended it or none."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


class Outbox(Generic[Message]):
    """Outgoing messages: any thread puts them, one thread or coroutine iterates. Messages after the
    end are dropped."""

    def __init__(self) -> None:
        self._entries: queue.SimpleQueue[tuple[Message, Callable[[], None]] | _End] = (
            queue.SimpleQueue()
        )
        # one at most, which its waker takes out
        self._waiters: deque[asyncio.Future[None]] = deque()

    def put(self, message: Message, on_taken: Callable[[], None] = lambda: None) -> None:
        """`on_taken` is called where the messages are iterated, when the peer has room for the
        message."""
        self._put((message, on_taken))

    def fail(self, error: Exception) -> None:
        """Raise `error` where the messages are iterated, after the entries that were put before."""
        self._put(_End(error))

    def close(self) -> None:
        """End the iteration after what was put before."""
        self._put(_End())

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        return self._message(self._entries.get(), StopIteration)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        while True:
            with contextlib.suppress(queue.Empty):
                return self._message(self._entries.get_nowait(), StopAsyncIteration)
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            if self._entries.empty():
                await waiter
            self._waiters.clear()

    def _put(self, entry: tuple[Message, Callable[[], None]] | _End) -> None:
        self._entries.put(entry)
        with contextlib.suppress(IndexError, RuntimeError):  # no waiter, or the loop has ended
            waiter = self._waiters.pop()
            waiter.get_loop().call_soon_threadsafe(_wake, waiter)

    def _message(
        self,
        entry: tuple[Message, Callable[[], None]] | _End,
        end: type[StopIteration | StopAsyncIteration],
    ) -> Message:
        if isinstance(entry, _End):
            raise entry.error or end
        message, on_taken = entry
        on_taken()
        return message


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class StreamCall(Generic[Message, Item]):
    """The client's end. `decode` turns a response into an item, or into None while more belongs to
    it.

    It runs in the receiving thread, so that decoding does not block the main thread; its errors end
    the call."""

    def __init__(
        self,
        method: Callable[..., Any],
        decode: Callable[[Any], Item | None],
        arrived: Callable[[], None] = lambda: None,
    ) -> None:
        """`method` is a stub's: `stub.Collect`. `arrived` is called in the receiving thread when an
        item has arrived and when the stream is over, so that a caller can wait for several streams
        at once."""
        self._outbox: Outbox[Message] = Outbox()
        self._items: queue.Queue[Item | _End] = queue.Queue()  # no SimpleQueue: see WorkQueue
        self._next: Item | _End | None = None
        self._decode, self._arrived = decode, arrived
        self._call = method(iter(self._outbox))
        self._reader = threading.Thread(target=self._read, name="stream-reader", daemon=True)
        self._reader.start()

    def send(self, message: Message) -> None:
        """Queue a message; never waits."""
        self._outbox.put(message)

    def wait(self, timeout_s: float) -> bool:
        """Wait until an item has arrived or the stream is over; False after the time-out."""
        if self._next is None:
            try:
                self._next = (
                    self._items.get(timeout=timeout_s)
                    if timeout_s > 0
                    else self._items.get_nowait()
                )
            except queue.Empty:
                return False
        return True

    def receive(self, timeout_s: float) -> Item:
        """The next item. Raises DeadlineExpired if none arrives in time, and the stream's own error
        once it is over: Unavailable if the peer ended it normally."""
        if not self.wait(timeout_s):
            raise DeadlineExpired(f"nothing came within {timeout_s:.1f} s")
        if isinstance(self._next, _End):  # it stays: nothing comes after the end
            raise self._next.error or Unavailable("the other side has ended the stream")
        entry, self._next = self._next, None
        assert entry is not None, "wait has put something there"
        return entry

    def poll(self) -> Item | None:
        """The next item, if it has arrived. Raises as `receive` once the stream is over."""
        return self.receive(0.0) if self.wait(0.0) else None

    def close(self) -> None:
        """End the call at once; messages in transit are lost. Closing twice is harmless."""
        self._outbox.close()
        self._call.cancel()
        # not an error with a traceback to here: such a cycle would keep its objects for long
        self._next = _End()

    def _read(self) -> None:
        try:
            for response in self._call:
                item = self._decode(response)
                if item is not None:
                    self._put(item)
            self._put(_End())
        except Exception as error:  # noqa: BLE001 - any error must reach the waiting thread, not hang it
            if not isinstance(error, PodracerError):
                error.add_note("".join(traceback.format_exception(error)))
            # its frames hold the call, which is to hold the error
            self._put(_End(error.with_traceback(None)))
            self._call.cancel()

    def _put(self, entry: Item | _End) -> None:
        self._items.put(entry)
        self._arrived()


Result = TypeVar("Result")

_POLL_S = 0.1


class WorkQueue:
    """Tasks in the order in which they were submitted."""

    def __init__(self) -> None:
        # No SimpleQueue: a signal that comes at the end of its time-out makes it wait forever
        # (CPython 3.11).
        self._tasks: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()
        self._stopped = threading.Event()

    def submit(self, task: Callable[[], Result]) -> Future[Result]:
        """Let the main thread call `task`. The future raises the task's error; Unavailable after
        the end of `run`."""
        future: Future[Result] = Future()
        self._tasks.put((task, future))
        if self._stopped.is_set():
            self._refuse_rest()
        return future

    def run(self, stop: threading.Event) -> None:
        """Run tasks until `stop` is set; then finish the current one and refuse waiting ones."""
        while not stop.is_set():
            self._do_next(_POLL_S)
        self.stop()

    def run_pending(self) -> None:
        """Run the waiting tasks, for a main thread with its own loop."""
        while self._do_next(0.0):
            pass

    def stop(self) -> None:
        """Refuse waiting and further tasks."""
        self._stopped.set()
        self._refuse_rest()

    def _do_next(self, timeout_s: float) -> bool:
        try:
            task, future = (
                self._tasks.get(timeout=timeout_s) if timeout_s > 0 else self._tasks.get_nowait()
            )
        except queue.Empty:
            return False
        _do(task, future)
        return True

    def _refuse_rest(self) -> None:
        while True:
            try:
                _, future = self._tasks.get_nowait()
            except queue.Empty:
                return
            if future.set_running_or_notify_cancel():
                future.set_exception(
                    Unavailable("this process is about to stop", reason="DRAINING")
                )


def _do(task: Callable[[], Any], future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = task()
    except Exception as error:  # noqa: BLE001 - the future carries it to the caller
        future.set_exception(error)
    else:
        future.set_result(result)


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
            reader = asyncio.create_task(_read_requests(session, first, requests))
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


async def _read_requests(session: Session, first: Any, requests: AsyncIterator[Any]) -> None:
    try:
        await asyncio.to_thread(session.receive, first)
        async for request in requests:
            session.receive(request)
        session.outbox.close()
    except Exception as error:  # noqa: BLE001 - also a mistake of ours must reach the client, not hang it
        session.outbox.fail(error)

"""Both ends of a bidirectional stream as queues, for processes whose main thread computes.

A server's session puts its responses into an Outbox, which its call's coroutine iterates. gRPC
iterates a client's in a thread: StreamCall queues messages to send, and keeps arrived items for the
main thread."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, TypeVar

from podracer_core.errors import DeadlineExpired, PodracerError, Unavailable

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

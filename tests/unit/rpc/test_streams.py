"""Queue-backed ends of a bidirectional stream."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from podracer_core.errors import DeadlineExpired, InvalidInput, Unavailable
from podracer_platform.rpc import Outbox, StreamCall


class FakeCall:
    """What a stub's streaming method returns: iterable, and can be cancelled."""

    def __init__(self, requests: Iterator[Any]) -> None:
        self.requests = requests
        self.responses: queue.Queue[Any] = queue.Queue()
        self.cancelled = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        while True:
            item = self.responses.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                return
            yield item

    def cancel(self) -> None:
        self.cancelled.set()
        self.responses.put(Unavailable("cancelled", reason="CANCELLED"))


class TestOutbox:
    def test_what_is_put_comes_in_order_until_the_end(self):
        outbox: Outbox[int] = Outbox()
        for number in range(3):
            outbox.put(number)
        outbox.close()
        outbox.put(99)
        assert list(outbox) == [0, 1, 2]

    def test_an_error_comes_after_what_was_put_before(self):
        outbox: Outbox[int] = Outbox()
        outbox.put(1)
        outbox.fail(InvalidInput("bad"))
        iterator = iter(outbox)
        assert next(iterator) == 1
        with pytest.raises(InvalidInput):
            next(iterator)

    def test_who_puts_is_told_when_a_message_is_taken(self):
        outbox: Outbox[int] = Outbox()
        taken: list[int] = []
        for number in range(2):
            outbox.put(number, lambda number=number: taken.append(number))  # type: ignore[misc]
        next(iter(outbox))
        assert taken == [0]

    def test_who_waits_is_woken_by_the_end(self):
        outbox: Outbox[int] = Outbox()
        threading.Timer(0.05, outbox.close).start()
        assert list(outbox) == []

    async def test_a_coroutine_misses_nothing_that_threads_put(self):
        outbox: Outbox[int] = Outbox()
        puts = [
            asyncio.to_thread(lambda: [outbox.put(number) for number in range(2000)])
            for _ in range(3)
        ]
        putting = asyncio.gather(*puts)
        putting.add_done_callback(lambda _: outbox.close())
        taken = [number async for number in outbox]
        assert sorted(taken) == sorted([*range(2000)] * 3)
        outbox.fail(InvalidInput("bad"))
        with pytest.raises(InvalidInput):
            await anext(outbox)


class TestStreamCall:
    @pytest.fixture
    def call(self) -> StreamCall[str, str]:
        return StreamCall(
            FakeCall, lambda response: None if response == "part" else f"<{response}>"
        )

    def fake(self, call: StreamCall[str, str]) -> FakeCall:
        fake: FakeCall = call._call
        return fake

    def test_requests_go_out_in_order(self, call):
        call.send("a")
        call.send("b")
        requests = self.fake(call).requests
        assert [next(requests), next(requests)] == ["a", "b"]

    def test_items_are_decoded_and_parts_are_not_items(self, call):
        for response in ("part", "x", "part", "y"):
            self.fake(call).responses.put(response)
        assert [call.receive(1.0), call.receive(1.0)] == ["<x>", "<y>"]

    def test_who_has_several_streams_is_told_of_items_and_of_the_end(self):
        told: queue.Queue[str] = queue.Queue()
        call: StreamCall[str, str] = StreamCall(
            FakeCall,
            lambda response: None if response == "part" else response,
            lambda: told.put("something"),
        )
        for response in ("part", "x", None):
            self.fake(call).responses.put(response)
        assert [told.get(timeout=5.0), told.get(timeout=5.0)] == ["something"] * 2
        assert call.poll() == "x"
        with pytest.raises(Unavailable):
            call.poll()

    def test_a_wait_has_a_limit_and_loses_nothing(self, call):
        with pytest.raises(DeadlineExpired):
            call.receive(0.05)
        assert call.poll() is None
        self.fake(call).responses.put("x")
        assert call.wait(30.0)
        assert call.poll() == "<x>"

    def test_the_streams_error_comes_again_and_again(self, call):
        self.fake(call).responses.put(InvalidInput("no"))
        for _ in range(2):
            with pytest.raises(InvalidInput):
                call.receive(1.0)

    def test_a_good_end_is_unavailable_to_who_waits_for_more(self, call):
        self.fake(call).responses.put("last")
        self.fake(call).responses.put(None)
        assert call.receive(1.0) == "<last>"
        with pytest.raises(Unavailable):
            call.receive(1.0)

    def test_a_response_that_cannot_be_decoded_ends_the_call(self):
        def refuse(_: Any) -> str:
            raise InvalidInput("nonsense")

        call: StreamCall[str, str] = StreamCall(FakeCall, refuse)
        self.fake(call).responses.put("x")
        with pytest.raises(InvalidInput, match="nonsense"):
            call.receive(1.0)
        assert self.fake(call).cancelled.wait(30.0)

    def test_a_mistake_in_decoding_reaches_who_waits(self):
        def fail(_: Any) -> str:
            raise OSError("no such file")

        call: StreamCall[str, str] = StreamCall(FakeCall, fail)
        self.fake(call).responses.put("x")
        with pytest.raises(OSError, match="file") as raised:
            call.receive(5.0)
        assert "in fail\n" in raised.value.__notes__[0], "where it was raised"
        assert self.fake(call).cancelled.wait(30.0)

    def test_closing_ends_requests_and_responses(self, call):
        call.close()
        call.close()
        assert list(self.fake(call).requests) == []
        with pytest.raises(Unavailable):
            call.receive(1.0)

"""Sessions whose client goes away at the worst moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import AsyncMock

from podracer_platform.rpc import Session, SessionSlots


class Idle(Session):
    """Does nothing, until it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = threading.Event()

    def receive(self, request: Any) -> None:
        pass

    def drain(self) -> None:
        self.outbox.close()

    def close(self) -> None:
        self.is_closed.set()


def test_a_call_that_is_cancelled_at_its_end_still_closes_its_session():
    """No thread is free then, so that closing has not begun."""
    session, may_go_on, slots = Idle(), threading.Event(), SessionSlots(1)

    async def requests() -> AsyncIterator[str]:
        yield "open"
        await asyncio.Event().wait()

    async def serve() -> None:
        threads = ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(threads)
        call = asyncio.create_task(slots.serve(lambda: session, requests(), AsyncMock()))
        while not slots._sessions:
            await asyncio.sleep(0)
        threads.submit(may_go_on.wait)
        session.outbox.close()
        while slots._sessions:
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled() and not session.is_closed.is_set()
        may_go_on.set()

    asyncio.run(serve())
    assert session.is_closed.wait(10) and slots.count == 0

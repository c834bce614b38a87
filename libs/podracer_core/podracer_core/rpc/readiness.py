"""Whether what a service cannot work without answers, looked at every few seconds, not at every probe."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping

from podracer_core.errors import PodracerError
from podracer_core.rpc.aio_server import AioRpcServer

__all__ = ["Readiness"]

logger = logging.getLogger(__name__)

EVERY_S = 5.0
ANSWER_S = 5.0
"""How long a check may take; one that takes longer is waited for, and not begun a second time."""

Check = Callable[[], Awaitable[object]]


class Readiness:
    """Has a server's health say NOT_SERVING as long as one of `checks` raises, or hangs.

    checks   by what they look at, in words: `the database`
    """

    def __init__(self, server: AioRpcServer, checks: Mapping[str, Check]) -> None:
        self._server = server
        self._checks = checks
        self._slow: dict[str, asyncio.Future[object]] = {}
        self._problem = ""

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY_S * random.uniform(0.8, 1.2))  # noqa: S311 - no secret

    async def look(self) -> None:
        """Once."""
        found = await asyncio.gather(*(self._problem_of(what, check) for what, check in self._checks.items()))
        problem = "; ".join(filter(None, found))
        if problem != self._problem:
            self._problem = problem
            logger.log(
                logging.WARNING if problem else logging.INFO, "%s", f"not ready: {problem}" if problem else "ready"
            )
        await self._server.set_ready(not problem)

    async def _problem_of(self, what: str, check: Check) -> str:
        task = self._slow.pop(what, None) or asyncio.ensure_future(check())
        await asyncio.wait([task], timeout=ANSWER_S)
        if not task.done():
            self._slow[what] = task
            return f"{what} has not answered within {ANSWER_S:g} s"
        try:
            task.result()
        except PodracerError as error:
            return f"{what}: {error.message}"
        except Exception as error:
            logger.exception("a mistake in the check of %s", what)
            return f"{what}: {error!r}"
        return ""

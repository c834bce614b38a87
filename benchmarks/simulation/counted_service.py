"""`counted_service.py NAME FILE`: the service podracer_NAME, which counts in FILE what it asks of
its database, and how often it is called."""

from __future__ import annotations

import inspect
import mmap
import runpy
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

COUNTED = ("statements", "transactions", "calls")
_FORMAT = f"{len(COUNTED)}q"


def read(path: Path) -> dict[str, int]:
    """What a service has counted so far."""
    return dict(zip(COUNTED, struct.unpack(_FORMAT, path.read_bytes()), strict=True))


def main() -> None:
    name, path = sys.argv[1], Path(sys.argv[2])
    path.write_bytes(bytes(struct.calcsize(_FORMAT)))
    with path.open("r+b") as file:
        counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    def counting(index: int) -> Callable[..., None]:
        def count(*_: Any) -> None:
            counts[index] += 1

        return count

    event.listen(Engine, "before_cursor_execute", counting(0))
    event.listen(Engine, "commit", counting(1))
    if name == "leaderboard":
        from podracer_leaderboard.server import LeaderboardService
        from podracer_platform.rpc.auth import methods_of

        for method in (path.rpartition("/")[2] for path in methods_of("leaderboard")):
            setattr(
                LeaderboardService,
                method,
                _counted(getattr(LeaderboardService, method), counting(2)),
            )
    sys.argv[1:] = []
    runpy.run_module(f"podracer_{name}", run_name="__main__")


def _counted(call: Callable[..., Any], count: Callable[..., None]) -> Callable[..., Any]:
    async def counted(*arguments: Any) -> Any:
        count()
        return await call(*arguments)

    async def counted_stream(*arguments: Any) -> Any:
        count()
        async for response in call(*arguments):
            yield response

    return counted if inspect.iscoroutinefunction(call) else counted_stream


if __name__ == "__main__":
    main()

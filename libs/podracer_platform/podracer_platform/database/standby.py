"""A standby: a process beside the active one, alive, ready, and waiting to take over."""

from __future__ import annotations

import asyncio
import logging

from podracer_core.errors import Unavailable
from podracer_platform.database import TERM_S, Database, open_database
from podracer_platform.database.tenure import NOT_ACTIVE
from podracer_platform.rpc.health import Health

logger = logging.getLogger(__name__)

EVERY_S = 0.5
"""How often a standby tries."""


async def wait_for_database(
    url: str, migrations_package: str, *, holder: str = "", term_s: float = TERM_S, health: str = ""
) -> Database:
    """Wait until no other process is the active one, then `open_database`. While it waits, the
    health port answers at the address `health`. Raises the errors of the first `open_database`,
    except NOT_ACTIVE."""
    standing_by: Health | None = None
    try:
        while True:
            try:
                return await asyncio.to_thread(
                    open_database, url, migrations_package, holder=holder, term_s=term_s
                )
            except Unavailable as error:
                if standing_by is None and error.reason != NOT_ACTIVE:
                    raise
                if standing_by is None:
                    logger.info("standing by: %s", error.message)
                    standing_by = Health((), health)
                    await standing_by.open()
                    standing_by.set_ready(True)
            await asyncio.sleep(EVERY_S)
    finally:
        if standing_by is not None:
            await standing_by.close()

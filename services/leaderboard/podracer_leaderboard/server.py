"""The leaderboard's process: one asyncio loop with the server and the database."""

from __future__ import annotations

import asyncio
import signal
from functools import partial

from podracer.leaderboard.v1.leaderboard_service_pb2_grpc import add_LeaderboardServiceServicer_to_server
from podracer_core.database import Database, open_database
from podracer_core.rpc.aio_server import AioRpcServer, Readiness, create_aio_server
from podracer_core.rpc.auth import Authorizer
from podracer_core.rpc.tokens import TokenFiles
from podracer_core.service.process import announce
from podracer_leaderboard.config import LeaderboardConfig
from podracer_leaderboard.service import METHODS, LeaderboardService

MIGRATIONS = "podracer_leaderboard.migrations"


async def create_leaderboard_server(config: LeaderboardConfig, database: Database) -> AioRpcServer:
    """A bound server on an open database."""
    service = LeaderboardService(database)
    server = await create_aio_server(
        config.listen,
        [partial(add_LeaderboardServiceServicer_to_server, service)],
        Authorizer(METHODS, TokenFiles(config.tokens)),
        config.server_options(),
    )
    server.on_drain(service.drain)
    return server


def serve(config: LeaderboardConfig) -> int:
    """Serve until SIGTERM or SIGINT. Only from the main thread."""
    asyncio.run(_serve(config))
    return 0


async def _serve(config: LeaderboardConfig) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_database(config.database, MIGRATIONS) as database:
        server = await create_leaderboard_server(config, database)
        async with server:
            readiness = asyncio.create_task(Readiness(server, {"the database": database.check}).run())
            announce(server.address)
            await stop.wait()
            readiness.cancel()

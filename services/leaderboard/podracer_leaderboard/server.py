"""The leaderboard's process, one asyncio loop with the server and the database, and its rpc
methods."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import grpc

from podracer.leaderboard.v1 import leaderboard_service_pb2 as pb
from podracer.leaderboard.v1.leaderboard_service_pb2_grpc import (
    LeaderboardServiceServicer,
    add_LeaderboardServiceServicer_to_server,
)
from podracer_leaderboard.acts import Acts, Exchanges
from podracer_leaderboard.boards import Aliases, Boards
from podracer_leaderboard.evaluations import Evaluations
from podracer_leaderboard.listings import Listings
from podracer_leaderboard.tables import Changes
from podracer_platform.database import Database, wait_for_database
from podracer_platform.kubernetes import keep_active_label
from podracer_platform.rpc import (
    AioRpcServer,
    Authorizer,
    Readiness,
    TokenFiles,
    create_aio_server,
    methods_of,
)
from podracer_platform.service import ControlSettings, announce, unless

MIGRATIONS = "podracer_leaderboard.migrations"
Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, kw_only=True)
class LeaderboardConfig(ControlSettings):
    """The settings of the leaderboard: those that every control service reads."""


async def create_leaderboard_server(config: LeaderboardConfig, database: Database) -> AioRpcServer:
    """A bound server on an open database."""
    service = LeaderboardService(database)
    server = await create_aio_server(
        config.listen,
        [partial(add_LeaderboardServiceServicer_to_server, service)],
        Authorizer(methods_of("leaderboard"), TokenFiles(config.tokens)),
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
    opening = wait_for_database(
        config.database,
        MIGRATIONS,
        holder=config.instance,
        term_s=config.database_term,
        health=config.health_listen,
    )
    opened = await unless(stop, opening)
    if opened is None:
        return  # while another process was the active one
    async with opened as database:
        server = await create_leaderboard_server(config, database)
        async with server:
            readiness = asyncio.create_task(
                Readiness(server, {"the database": database.check}).run()
            )
            labelling = asyncio.create_task(keep_active_label(config.instance, database.check))
            announce(server.address)
            await stop.wait()
            readiness.cancel()
            labelling.cancel()


class LeaderboardService(LeaderboardServiceServicer):
    """Asynchronous; errors of the use cases become statuses in the server's guard."""

    def __init__(self, database: Database) -> None:
        self._changes = Changes()
        self._boards = Boards(database, self._changes)
        self._evaluations = Evaluations(database)
        self._exchanges = Exchanges(database, self._changes)
        self._listings = Listings(database)
        self._aliases = Aliases(database)
        self._acts = Acts(database)

    async def drain(self) -> None:
        """Tell the watchers that the server is about to end."""
        self._changes.drain()

    async def CreateLeaderboard(
        self, request: pb.CreateLeaderboardRequest, context: Context
    ) -> pb.CreateLeaderboardResponse:
        return pb.CreateLeaderboardResponse(
            leaderboard=await self._boards.create(request.name, request.spec)
        )

    async def ProposeCohort(
        self, request: pb.ProposeCohortRequest, context: Context
    ) -> pb.ProposeCohortResponse:
        answer: pb.ProposeCohortResponse = await self._exchanges.call("cohort", request)
        return answer

    async def SubmitCandidate(
        self, request: pb.SubmitCandidateRequest, context: Context
    ) -> pb.SubmitCandidateResponse:
        answer: pb.SubmitCandidateResponse = await self._exchanges.call("candidate", request)
        return answer

    async def RecordEvaluations(
        self, request: pb.RecordEvaluationsRequest, context: Context
    ) -> pb.RecordEvaluationsResponse:
        answer: pb.RecordEvaluationsResponse = await self._exchanges.call("evaluations", request)
        return answer

    async def Exchange(self, request: pb.ExchangeRequest, context: Context) -> pb.ExchangeResponse:
        return await self._exchanges.exchange(request)

    async def GetLeaderboard(
        self, request: pb.GetLeaderboardRequest, context: Context
    ) -> pb.GetLeaderboardResponse:
        return pb.GetLeaderboardResponse(leaderboard=await self._boards.get(request.name))

    async def ListAgents(
        self, request: pb.ListAgentsRequest, context: Context
    ) -> pb.ListAgentsResponse:
        return await self._listings.agents(request)

    async def GetAgent(self, request: pb.GetAgentRequest, context: Context) -> pb.GetAgentResponse:
        return await self._listings.agent(request.name)

    async def ListEvaluations(
        self, request: pb.ListEvaluationsRequest, context: Context
    ) -> pb.ListEvaluationsResponse:
        return await self._evaluations.history(request)

    async def WatchLeaderboard(
        self, request: pb.WatchLeaderboardRequest, context: Context
    ) -> AsyncIterator[pb.WatchLeaderboardResponse]:
        async for response in self._boards.watch(request.name, request.after_revision):
            yield response

    async def GetStatistics(
        self, request: pb.GetStatisticsRequest, context: Context
    ) -> pb.GetStatisticsResponse:
        return await self._listings.statistics(request)

    async def SetAlias(self, request: pb.SetAliasRequest, context: Context) -> pb.SetAliasResponse:
        return await self._aliases.set(request)

    async def ListAliasHistory(
        self, request: pb.ListAliasHistoryRequest, context: Context
    ) -> pb.ListAliasHistoryResponse:
        return await self._aliases.history(request)

    async def ForkAgent(
        self, request: pb.ForkAgentRequest, context: Context
    ) -> pb.ForkAgentResponse:
        return pb.ForkAgentResponse(agent=await self._acts.fork(request))

    async def PinAgent(self, request: pb.PinAgentRequest, context: Context) -> pb.PinAgentResponse:
        return pb.PinAgentResponse(
            agent=await self._acts.pin(request.name, pinned=not request.unpin)
        )

    async def StopAgent(
        self, request: pb.StopAgentRequest, context: Context
    ) -> pb.StopAgentResponse:
        return pb.StopAgentResponse(agent=await self._acts.stop(request.name))

    async def DeleteLeaderboard(
        self, request: pb.DeleteLeaderboardRequest, context: Context
    ) -> pb.DeleteLeaderboardResponse:
        await self._boards.delete(request.name)
        return pb.DeleteLeaderboardResponse()

"""The orchestrator's client of the leaderboard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.leaderboard.v1.leaderboard_service_pb2_grpc import LeaderboardServiceStub

TIMEOUT_S = 10.0
_PAGE = 1000


class LeaderboardClient:
    """Calls with the role `control`. Each raises the leaderboard's PodracerError, or
    Unavailable."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = LeaderboardServiceStub(channel)

    async def propose(
        self, request: leaderboard_pb2.ProposeCohortRequest
    ) -> leaderboard_pb2.ProposeCohortResponse:
        """The next cohort; the same `request_id` again gets the same answer."""
        answer: leaderboard_pb2.ProposeCohortResponse = await self._stub.ProposeCohort(
            request, timeout=TIMEOUT_S
        )
        return answer

    async def exchange(
        self, name: str, steps: Iterable[leaderboard_pb2.ExchangeRequest.Step]
    ) -> Sequence[leaderboard_pb2.ExchangeResponse.Answer]:
        """Several calls in one, with an answer to each; if one is refused, none is carried out."""
        request = leaderboard_pb2.ExchangeRequest(leaderboard=name, steps=steps)
        answer: leaderboard_pb2.ExchangeResponse = await self._stub.Exchange(
            request, timeout=TIMEOUT_S
        )
        return answer.answers

    async def get(self, name: str) -> leaderboard_pb2.Leaderboard:
        """A leaderboard as it is now, with its candidates in their order."""
        request = leaderboard_pb2.GetLeaderboardRequest(name=name)
        answer: leaderboard_pb2.GetLeaderboardResponse = await self._stub.GetLeaderboard(
            request, timeout=TIMEOUT_S
        )
        return answer.leaderboard

    async def agents(self, name: str) -> list[leaderboard_pb2.Agent]:
        """Every agent that a leaderboard has ever had, oldest first."""
        request = leaderboard_pb2.ListAgentsRequest(leaderboard=name, page_size=_PAGE)
        return [
            each async for page in _pages(self._stub.ListAgents, request) for each in page.agents
        ]

    async def agent(self, name: str) -> leaderboard_pb2.Agent:
        """The agent of that name."""
        request = leaderboard_pb2.GetAgentRequest(name=name)
        answer: leaderboard_pb2.GetAgentResponse = await self._stub.GetAgent(
            request, timeout=TIMEOUT_S
        )
        return answer.agent

    async def fork(self, request: leaderboard_pb2.ForkAgentRequest) -> leaderboard_pb2.Agent:
        """The new agent; with `validate_only` the one that would be made, without a name unless it
        exists already."""
        answer: leaderboard_pb2.ForkAgentResponse = await self._stub.ForkAgent(
            request, timeout=TIMEOUT_S
        )
        return answer.agent

    async def alias_changes(self, name: str) -> list[leaderboard_pb2.AliasChange]:
        """Every change of the leaderboard's aliases, newest first."""
        request = leaderboard_pb2.ListAliasHistoryRequest(leaderboard=name, page_size=_PAGE)
        return [
            each
            async for page in _pages(self._stub.ListAliasHistory, request)
            for each in page.changes
        ]

    async def call(self, method: str, request: Message) -> Message:
        """Make a call of the outbox."""
        answer: Message = await getattr(self._stub, method)(request, timeout=TIMEOUT_S)
        return answer


async def _pages(call: Callable[..., Awaitable[Any]], request: Any) -> AsyncIterator[Any]:
    """The answers to a call that lists, page by page."""
    while True:
        page = await call(request, timeout=TIMEOUT_S)
        yield page
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token

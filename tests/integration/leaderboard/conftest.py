"""A leaderboard server on port 0 with a real database, and a driver that plays the orchestrator."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import duration_pb2

from podracer.common.v1 import agent_pb2, environment_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as pb
from podracer.leaderboard.v1.leaderboard_service_pb2_grpc import LeaderboardServiceStub
from podracer_leaderboard.server import MIGRATIONS, LeaderboardConfig, create_leaderboard_server
from podracer_platform.database import open_database
from podracer_platform.rpc.channel import open_aio_channel
from podracer_platform.rpc.tokens import FileToken, Role, create_tokens
from support.new_database import new_database

BOARD, JOB = "projects/p/leaderboards/j", "projects/p/jobs/j"
PROGRESS = agent_pb2.EVALUATION_PURPOSE_PROGRESS
CANDIDATE = agent_pb2.EVALUATION_PURPOSE_CANDIDATE


class Server:
    """A running leaderboard; `stub` for each role, None without a token."""

    def __init__(self, folder: Path, database: str = "") -> None:
        self.tokens = create_tokens(folder / "tokens")
        database = database or new_database(folder / "leaderboard.sqlite", MIGRATIONS)
        self._config = LeaderboardConfig(tokens=folder / "tokens", database=database)
        self._stack = AsyncExitStack()
        self._channels = AsyncExitStack()
        self.address = ""

    async def start(self) -> None:
        database = await self._stack.enter_async_context(
            open_database(self._config.database, MIGRATIONS)
        )
        server = await create_leaderboard_server(self._config, database)
        self.address = server.address
        await self._stack.enter_async_context(server)

    async def stop(self, linger_s: float = 0.0) -> None:
        """The server first: its clients see how it ends, those that are slow within `linger_s`."""
        await self._stack.aclose()
        await asyncio.sleep(linger_s)
        await self._channels.aclose()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def stub(self, role: Role | None = Role.CONTROL) -> Any:
        return LeaderboardServiceStub(await self.channel(role))

    async def channel(self, role: Role | None = Role.CONTROL) -> Any:
        token = FileToken(self.tokens[role]) if role is not None else None
        return await self._channels.enter_async_context(open_aio_channel(self.address, token))


def make_spec(**evolution: Any) -> pb.LeaderboardSpec:
    """A search of PPO's learning rate and discount; `evolution` as in the proto, by default with
    rounds of 5 s."""
    if "round_env_steps" not in evolution:
        evolution.setdefault("round_time", duration_pb2.Duration(seconds=5))
    dimension, interval = evolution_pb2.Dimension, evolution_pb2.Interval
    return pb.LeaderboardSpec(
        job=JOB,
        job_uid="uid-1",
        objective=evolution_pb2.Objective(target_return=100.0),
        search=evolution_pb2.Search(
            algorithms=[evolution_pb2.AlgorithmShare(algorithm="ppo")],
            space=[
                dimension(
                    hyperparameter="learning_rate", log_uniform=interval(low=1e-4, high=1e-2)
                ),
                dimension(hyperparameter="gamma", uniform=interval(low=0.9, high=0.999)),
            ],
        ),
        evolution=evolution_pb2.Evolution(**evolution),
        environment_description=environment_pb2.EnvironmentDescription(
            action_space=environment_pb2.Space(discrete=environment_pb2.DiscreteSpace(n=2))
        ),
        seed=3,
    )


class Driver:
    """What the orchestrator does, in few words."""

    def __init__(self, stub: Any) -> None:
        self.stub = stub
        self._numbers = itertools.count(1)

    async def create(
        self, founders: Sequence[evolution_pb2.Founder] = (), **evolution: Any
    ) -> pb.Leaderboard:
        request = pb.CreateLeaderboardRequest(name=BOARD, spec=make_spec(**evolution))
        request.spec.founders.extend(founders)
        answer: pb.CreateLeaderboardResponse = await self.stub.CreateLeaderboard(request)
        return answer.leaderboard

    async def propose(
        self, places: int = 8, request_id: str = "", **fields: Any
    ) -> pb.ProposeCohortResponse:
        request_id = request_id or f"work-{next(self._numbers)}"
        request = pb.ProposeCohortRequest(
            leaderboard=BOARD, request_id=request_id, places=places, **fields
        )
        answer: pb.ProposeCohortResponse = await self.stub.ProposeCohort(request)
        return answer

    def submission(
        self, agent: str, score: float | None, steps: int = 1000, request_id: str = ""
    ) -> Any:
        """A round of 5 device seconds whose candidate has `score` as its lower bound; None: nothing
        was evaluated."""
        number = next(self._numbers)
        request = pb.SubmitCandidateRequest(
            leaderboard=BOARD,
            request_id=request_id or f"round-{number}",
            agent=agent,
            env_steps=steps,
        )
        request.cost.seconds = 5
        if steps:
            request.latest.CopyFrom(checkpoint(agent, f"{number}-latest"))
        if score is not None:
            request.candidate.CopyFrom(
                evaluation(agent, f"e{number}", score, checkpoint(agent, f"{number}-best"))
            )
        return request

    async def submit(
        self, agent: str, score: float | None, **fields: Any
    ) -> pb.SubmitCandidateResponse:
        answer: pb.SubmitCandidateResponse = await self.stub.SubmitCandidate(
            self.submission(agent, score, **fields)
        )
        return answer

    async def run_round(
        self, cohort: pb.ProposeCohortResponse, score: Callable[[agent_pb2.AgentSpec], float | None]
    ) -> None:
        """Every member of a cohort ends its round with the score that is a function of it."""
        for proposal in cohort.proposals:
            await self.submit(proposal.agent.name, score(proposal.agent))

    async def board(self) -> pb.Leaderboard:
        answer: pb.GetLeaderboardResponse = await self.stub.GetLeaderboard(
            pb.GetLeaderboardRequest(name=BOARD)
        )
        return answer.leaderboard

    async def agents(self, **fields: Any) -> list[pb.Agent]:
        answer: pb.ListAgentsResponse = await self.stub.ListAgents(
            pb.ListAgentsRequest(leaderboard=BOARD, page_size=1000, **fields)
        )
        return list(answer.agents)


def checkpoint(agent: str, what: str) -> agent_pb2.CheckpointReference:
    return agent_pb2.CheckpointReference(
        prefix=f"{agent}/checkpoints/{what}/", manifest_sha256="ab" * 32, env_steps=900, fence=7
    )


def evaluation(
    agent: str, identifier: str, score: float, where: agent_pb2.CheckpointReference | None = None
) -> agent_pb2.Evaluation:
    """Eight episodes around `score` + 2, whose interval begins at `score`."""
    returns: Sequence[float] = [score + 2.0] * 8
    return agent_pb2.Evaluation(
        evaluation_id=identifier,
        agent=agent,
        purpose=PROGRESS if where is None else CANDIDATE,
        checkpoint=where,
        returns=returns,
        seeds=range(8),
        mean=score + 2.0,
        lower_bound=score,
        upper_bound=score + 4.0,
    )


@pytest.fixture
async def server(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    """Its database is SQLite's, unless its parameter says `postgresql`."""
    is_sqlite = getattr(request, "param", "sqlite") == "sqlite"
    running = Server(
        tmp_path,
        "" if is_sqlite else request.getfixturevalue("postgresql").create_database("board"),
    )
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
async def driver(server: Server) -> Driver:
    return Driver(await server.stub())


@pytest.fixture
def new_evaluation() -> Callable[..., agent_pb2.Evaluation]:
    return evaluation


@pytest.fixture
def new_spec() -> Callable[..., pb.LeaderboardSpec]:
    return make_spec

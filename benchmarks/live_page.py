"""How long an event takes from the orchestrator to a browser's stream, in a job of 100 agents and
100,000 evaluations.

    python benchmarks/live_page.py [--quick]

The page and gRPC are real; orchestrator and leaderboard are played in the same process. Events come
while the history is still loading, and afterwards."""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from report import Target, finish, print_table, versions

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2_grpc
from podracer.orchestrator.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc
from podracer_client import Client, Connection
from podracer_client.web.application import ACT_HEADER
from podracer_client.web.serving import serve_page
from podracer_platform.rpc.auth import Authorizer
from podracer_platform.rpc.server import create_server
from podracer_platform.rpc.tokens import FileToken, Role, TokenFiles, create_tokens

JOB, BOARD = "projects/default/jobs/j", "projects/default/leaderboards/j"
AGENTS, EVALUATIONS = 100, 100_000
METHODS = {
    "podracer.orchestrator.v1.JobService": ("GetJob", "WatchJob", "GetCapacity", "ListPromotions"),
    "podracer.leaderboard.v1.LeaderboardService": (
        *("GetLeaderboard", "WatchLeaderboard", "ListAgents", "ListEvaluations"),
    ),
}


class ControlPlane(
    job_service_pb2_grpc.JobServiceServicer, leaderboard_service_pb2_grpc.LeaderboardServiceServicer
):
    """One job. `emit` makes an event after which ten agents have changed."""

    def __init__(self) -> None:
        self.job = job_pb2.Job(
            name=JOB, uid="u", leaderboard=BOARD, state=job_pb2.JOB_STATE_RUNNING
        )
        self.evaluations = [self._evaluation(number) for number in range(EVALUATIONS)]
        self.agents = [self._agent(number) for number in range(AGENTS)]
        self.events: list[job_pb2.Event] = []
        self.sent: dict[int, float] = {}
        self._news = threading.Condition()

    def _evaluation(self, number: int) -> agent_pb2.Evaluation:
        mean = random.gauss(number / 1000, 10)
        return agent_pb2.Evaluation(
            agent=f"{JOB}/agents/a{number % AGENTS:04}",
            mean=mean,
            lower_bound=mean - 5,
            upper_bound=mean + 5,
            env_steps=1000 * (number // AGENTS + 1),
            returns=[mean] * 32,
            seeds=range(32),
        )

    def _agent(self, number: int) -> leaderboard_pb2.Agent:
        agent = leaderboard_pb2.Agent(
            name=f"{JOB}/agents/a{number:04}", best_evaluation=self.evaluations[-number - 1]
        )
        agent.spec.algorithm = "ppo"
        for name in range(25):
            agent.spec.hyperparameters[f"h{name}"].number = random.random()
        return agent

    def emit(self) -> None:
        with self._news:
            position = len(self.events) + 1
            for agent in random.sample(self.agents, 10):
                agent.env_steps += 1000
            self.sent[position] = time.monotonic()
            self.events.append(
                job_pb2.Event(position=position, kind="ROUND_COMPLETED", message="a round is over")
            )
            self._news.notify_all()

    def WatchJob(self, request: Any, context: Any) -> Iterator[Any]:
        position = 0
        while context.is_active():
            with self._news:
                if len(self.events) == position:
                    self._news.wait(0.5)
                events, position = self.events[position:], len(self.events)
            yield job_service_pb2.WatchJobResponse(job=self.job, events=events)

    def GetJob(self, request: Any, context: Any) -> Any:
        return job_service_pb2.GetJobResponse(job=self.job)

    def GetCapacity(self, request: Any, context: Any) -> Any:
        return job_service_pb2.GetCapacityResponse(backend="static")

    def ListPromotions(self, request: Any, context: Any) -> Any:
        return job_service_pb2.ListPromotionsResponse()

    def GetLeaderboard(self, request: Any, context: Any) -> Any:
        return leaderboard_pb2.GetLeaderboardResponse(leaderboard=self._board())

    def WatchLeaderboard(self, request: Any, context: Any) -> Iterator[Any]:
        yield leaderboard_pb2.WatchLeaderboardResponse(leaderboard=self._board())
        while context.is_active():
            time.sleep(0.1)

    def _board(self) -> leaderboard_pb2.Leaderboard:
        candidates = [
            leaderboard_pb2.Candidate(rank=rank, agent=agent, evaluation=agent.best_evaluation)
            for rank, agent in enumerate(self.agents[:10], 1)
        ]
        return leaderboard_pb2.Leaderboard(name=BOARD, candidates=candidates)

    def ListAgents(self, request: Any, context: Any) -> Any:
        return leaderboard_pb2.ListAgentsResponse(agents=self.agents)

    def ListEvaluations(self, request: Any, context: Any) -> Any:
        start = int(request.page_token or 0)
        end = start + request.page_size
        token = str(end) if end < EVALUATIONS else ""
        return leaderboard_pb2.ListEvaluationsResponse(
            evaluations=self.evaluations[start:end], next_page_token=token
        )


def open_stream(url: str) -> http.client.HTTPResponse:
    """The job's stream, as a browser opens it."""
    origin, _, key = url.partition("/#key=")
    connection = http.client.HTTPConnection(origin.removeprefix("http://"))
    headers = {"origin": origin, ACT_HEADER: "1", "authorization": f"Bearer {key}"}
    connection.request("POST", "/api/session", headers=headers)
    answer = connection.getresponse()
    cookie = answer.headers["set-cookie"].partition(";")[0]
    answer.read()
    connection.request("GET", "/api/news?job=j", headers={"cookie": cookie})
    return connection.getresponse()


def measure(
    plane: ControlPlane, stream: http.client.HTTPResponse, events: int
) -> tuple[list[list[float]], float]:
    """Seconds from event to frame, of events while the history loads and of those after; seconds
    until it is there."""
    began, loaded_s, rows = time.monotonic(), 0.0, 0
    found: list[list[float]] = [[], []]

    enough = threading.Event()

    def emit() -> None:
        while not enough.wait(random.uniform(0.02, 0.2)):
            plane.emit()

    threading.Thread(target=emit, daemon=True).start()
    while len(found[True]) < events:
        line = stream.readline()
        if not line.startswith(b"data: "):
            continue
        now = time.monotonic()
        logs = json.loads(line.removeprefix(b"data: "))["logs"]
        found[bool(loaded_s)] += [now - plane.sent[event[0]] for event in logs.get("events", [])]
        rows += len(logs.get("evaluations", []))
        if rows >= EVALUATIONS and not loaded_s:
            loaded_s = now - began
    enough.set()
    return found, loaded_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="50 events after it in place of 400")
    events = 50 if parser.parse_args().quick else 400
    plane = ControlPlane()
    tokens = Path(tempfile.mkdtemp(prefix="podracer-live-page-")) / "tokens"
    token = create_tokens(tokens)[Role.CLIENT]
    methods = {
        f"/{service}/{method}": {Role.CLIENT}
        for service, names in METHODS.items()
        for method in names
    }
    services = [
        partial(job_service_pb2_grpc.add_JobServiceServicer_to_server, plane),
        partial(leaderboard_service_pb2_grpc.add_LeaderboardServiceServicer_to_server, plane),
    ]
    server = create_server("127.0.0.1:0", services, Authorizer(methods, TokenFiles(tokens)))
    server.start()
    with serve_page(
        lambda: Client(Connection(server.address, server.address, FileToken(token)))
    ) as url:
        found, loaded_s = measure(plane, open_stream(url), events)
    server.drain(0)
    rows, targets = [], {}
    for name, seconds in zip(("while loading", "afterwards"), found, strict=True):
        p95 = statistics.quantiles(seconds, n=20)[-1]
        rows.append([name, len(seconds), statistics.median(seconds), p95, max(seconds)])
        targets[f"{name}, p95 s"] = Target(p95, 0.5, at_most=True)
    print(versions("starlette", "uvicorn"))
    print_table("Event to page, seconds", ["", "events", "median", "p95", "most"], rows)
    finish(
        "live_page", {"agents": AGENTS, "evaluations": EVALUATIONS, "loaded_s": loaded_s}, targets
    )


if __name__ == "__main__":
    main()

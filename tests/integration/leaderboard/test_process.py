"""The process itself: `python -m podracer_leaderboard`, how it starts, ends, is killed and comes
back."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podracer.leaderboard.v1 import leaderboard_service_pb2 as pb
from podracer.leaderboard.v1.leaderboard_service_pb2_grpc import LeaderboardServiceStub
from podracer_core.errors import Unavailable
from podracer_platform.rpc import FileToken, Role, create_tokens, open_aio_channel

pytestmark = pytest.mark.processes


class Process:
    """Leaderboards in one state folder, one after another."""

    def __init__(self, folder: Path) -> None:
        self.tokens = create_tokens(folder / "tokens")
        self.environment = {
            **os.environ,
            "PODRACER_TOKENS": str(folder / "tokens"),
            "PODRACER_DATABASE": f"sqlite:///{folder}/state/leaderboard.sqlite",
        }
        self.running: list[subprocess.Popen[str]] = []

    def start(self, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "podracer_leaderboard"],
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(process)
        return process

    def address(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on "), line
        return line.removeprefix("listening on ").strip()

    def refusal(self, **environment: str) -> tuple[int, str]:
        """Exit status and the last line of stderr of one that does not start."""
        process = self.start(**environment)
        _, errors = process.communicate(timeout=60)
        return process.returncode, errors.strip().splitlines()[-1]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    processes = Process(tmp_path)
    yield processes
    for each in processes.running:
        each.kill()
        each.communicate()


def test_it_ends_cleanly_when_told_and_imports_no_torch(process):
    running = process.start()
    process.address(running)
    maps = Path(f"/proc/{running.pid}/maps")
    if maps.exists():
        assert "libtorch" not in maps.read_text()
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 0


def test_a_second_one_on_the_same_database_says_who_has_it(process):
    first = process.start()
    process.address(first)
    status, message = process.refusal()
    assert status == 2
    assert f"in use by process {first.pid}" in message


def test_it_says_what_it_needs(process, tmp_path):
    assert process.refusal(PODRACER_DATABASE="")[0] == 2
    assert "PODRACER_DATABASE" in process.refusal(PODRACER_DATABASE="")[1]
    (tmp_path / "file").write_text("")
    status, message = process.refusal(
        PODRACER_DATABASE=f"sqlite:///{tmp_path}/file/leaderboard.sqlite"
    )
    assert (status, "not a folder" in message) == (2, True)
    status, message = process.refusal(PODRACER_LISTEN="0.0.0.0:0")
    assert (status, "0.0.0.0" in message) == (2, True)


async def test_acknowledged_is_durable_whenever_it_is_killed(process, driver):
    """Killed again and again in mid-call: every call is repeated until it is answered, and counts
    once."""
    make_driver, score = type(driver), {}
    stop = asyncio.Event()
    addresses: list[str] = []

    async def keep_killing() -> None:
        for number in range(4):
            running = process.start()
            addresses.append(await asyncio.to_thread(process.address, running))
            if number == 3:
                break
            await asyncio.sleep(0.15 + 0.05 * number)
            running.kill()
            await asyncio.to_thread(running.wait)
        await stop.wait()

    class Stubborn:
        """A stub that repeats each call at whichever server lives, until it is answered."""

        def __getattr__(self, method: str) -> Any:
            async def call(request: Any) -> Any:
                while True:
                    try:
                        address, token = addresses[-1], FileToken(process.tokens[Role.CONTROL])
                        async with open_aio_channel(address, token) as channel:
                            return await getattr(LeaderboardServiceStub(channel), method)(
                                request, timeout=60
                            )
                    except (Unavailable, IndexError):
                        await asyncio.sleep(0.01)

            return call

    killer = asyncio.create_task(keep_killing())
    survivor = make_driver(Stubborn())
    await survivor.create(population=8)
    rounds = 0
    while len(addresses) < 4 or rounds < 10:
        cohort = await survivor.propose(4)
        for proposal in cohort.proposals:
            name = proposal.agent.name
            answer = await survivor.submit(name, float(rounds))
            score[name] = max(score.get(name, -1.0), float(rounds))
            assert answer.admitted or answer.reason
        rounds += 1
    agents = {agent.name: agent for agent in await survivor.agents()}
    evaluations = await survivor.stub.ListEvaluations(
        pb.ListEvaluationsRequest(leaderboard="projects/p/leaderboards/j", page_size=1000)
    )
    identifiers = [evaluation.evaluation_id for evaluation in evaluations.evaluations]
    assert len(identifiers) == len(set(identifiers)) == min(4 * rounds, 1000)
    submitted: dict[str, int] = {}
    for evaluation in evaluations.evaluations:
        submitted[evaluation.agent] = submitted.get(evaluation.agent, 0) + 1
    for name, agent in agents.items():
        inherited = 900 if agent.parents else 0
        assert agent.env_steps == inherited + 1000 * submitted.get(name, 0)
        if name in score:
            assert agent.best_evaluation.lower_bound == score[name]
    assert (await survivor.board()).candidates[0].evaluation.lower_bound == rounds - 1
    stop.set()
    await killer

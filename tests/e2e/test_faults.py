"""Any process may be killed at any moment: the job goes on and its counters are exact."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from safetensors.numpy import load_file

from podracer.common.v1.agent_pb2 import AgentSpec
from podracer_core.storage import Manifest
from support.commands import run_here
from support.documents import blocks
from support.endless_job import (
    assert_ended_at,
    committed,
    end_running,
    rows,
    wait_for_rounds,
    write_job,
)
from support.processes import ROOT, Command, wait_until

pytestmark = pytest.mark.processes
SERVICES = ["worker", "evaluator", "learner", "orchestrator", "leaderboard"]
ROUND = 4
"""Updates of each member in a round."""
REST = 4 * ROUND
"""Updates until the end, once the faults are over: two rounds of two members."""


@pytest.fixture
def start(podracer: Callable[..., Command], tmp_path: Path) -> Callable[[], Command]:
    """InitialAgents `podracer run` of a job in a split pod, or continues it; returns once it
    trains."""

    def start() -> Command:
        before = len(lease_states(tmp_path)) if (tmp_path / "runs").exists() else 0
        job = write_job(tmp_path, "faults", ROUND, members=2, layout="split")
        command = podracer("run", job, "--json")
        wait_until(
            lambda: (
                (tmp_path / "runs" / "connection.json").exists()
                and len(lease_states(tmp_path)) > before
            ),
            120,
            "a lease",
        )
        return command

    return start


def finish(command: Command, folder: Path) -> None:
    """Give the job its end; no step is lost or counted twice there."""
    limit = end_running(folder, REST)
    assert command.wait(120) == 0, command.stderr
    assert command.events[-1]["state"] == "SUCCEEDED"
    assert command.events[-1]["seconds_to_target"] is None
    assert_ended_at(limit, folder, command.events[-1]["env_steps"], members=2)


def test_a_killed_process_costs_nothing_that_was_acknowledged(start, tmp_path):
    command = start()
    for service in SERVICES:
        wait_for_rounds(tmp_path, 1, f"a round before the {service} is killed")
        (victim,) = wait_until(lambda: command.services(f"podracer_{service}"), 60, service)  # noqa: B023
        victim.send_signal(signal.SIGKILL)
    wait_for_rounds(tmp_path, 1, "a round after all that")
    finish(command, tmp_path)


def test_interrupted_then_resumed(start, tmp_path):
    command = start()
    wait_for_rounds(tmp_path, 1, "the first round")
    processes = psutil.Process(command.process.pid).children(recursive=True)
    command.interrupt()
    assert command.wait(60) == 130
    wait_until(lambda: all_gone(processes), 60, "the services to follow")
    assert not list(command.shm.iterdir())
    final = command.events[-1]
    assert (final["event"], final["state"]) == ("job_finished", "SUSPENDED")
    kept = committed(tmp_path)
    assert final["env_steps"] == kept > 0

    again = start()
    assert committed(tmp_path) >= kept
    wait_for_rounds(tmp_path, 1, "a round of the second run")
    finish(again, tmp_path)
    assert rows(tmp_path, "SELECT count(*) FROM jobs") == [(1,)]


@pytest.mark.thorough
def test_a_damaged_checkpoint_costs_no_more_than_the_way_to_the_one_before_it(start, tmp_path):
    command = start()
    wait_for_rounds(tmp_path, 2, "two rounds")
    command.interrupt()
    assert command.wait(60) == 130
    kept = committed(tmp_path)
    newest = "SELECT max(env_steps), prefix FROM checkpoints GROUP BY agent"
    damaged = {prefix for _, prefix in rows(tmp_path, newest)}
    assert len(damaged) >= 2
    for prefix in damaged:
        (file,) = (tmp_path / "runs").rglob(f"{prefix}critic.safetensors")
        file.write_bytes(file.read_bytes()[:-8])
    again = start()
    wait_for_rounds(tmp_path, 2, "two rounds of the second run")
    finish(again, tmp_path)
    assert committed(tmp_path) >= kept
    refused = {
        prefix for (prefix,) in rows(tmp_path, "SELECT prefix FROM checkpoints WHERE refused")
    }
    assert refused and refused <= damaged
    assert len(
        rows(tmp_path, "SELECT message FROM events WHERE kind = 'CHECKPOINT_REFUSED'")
    ) == len(refused)


HELD = """
import sys
from pathlib import Path

if "podracer_orchestrator" in sys.orig_argv:
    from podracer.leaderboard.v1 import leaderboard_service_pb2_grpc as stubs
    from podracer_core.errors import Unavailable

    class HoldsForks(stubs.LeaderboardServiceStub):
        def __init__(self, channel):
            super().__init__(channel)
            self.send, self.ForkAgent = self.ForkAgent, self.fork

        async def fork(self, request, **options):
            if not request.validate_only and Path(__file__).with_name("hold").exists():
                raise Unavailable("forks are held")
            return await self.send(request, **options)

    stubs.LeaderboardServiceStub = HoldsForks
"""
"""The leaderboard can be asked whether a fork is right, and cannot be told of it while there is a
file `hold`."""


@pytest.mark.thorough
def test_a_fork_trains_on_from_its_parents_weights_after_a_killed_orchestrator(
    start, tmp_path, tmp_path_factory, monkeypatch
):
    """It dies between the acknowledgement and the delivery. The fork's learning rate is so small
    that its weights show whose they were."""
    held = tmp_path_factory.mktemp("held")
    (held / "sitecustomize.py").write_text(HELD)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(held), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    command = start()
    wait_for_rounds(tmp_path, 2, "two rounds")
    (held / "hold").touch()
    forked = run_here(
        "agent", "fork", "faults", "a0001", "--set", "learning_rate=1e-7", cwd=tmp_path
    )
    assert forked.returncode == 0, forked.stderr
    assert "the job's events will name the new agent" in forked.stdout
    (orchestrator,) = command.services("podracer_orchestrator")
    orchestrator.kill()
    wait_until(lambda: all_gone([orchestrator]), 60, "the orchestrator to die")
    forks = "SELECT name FROM agents WHERE fork_request != ''"
    assert not rows(tmp_path, forks, "leaderboard")
    (held / "hold").unlink()
    ((made,),) = wait_until(lambda: rows(tmp_path, forks, "leaderboard"), 120, "the fork")
    name = made.rpartition("/")[2]
    query = f"SELECT prefix FROM checkpoints WHERE agent LIKE '%/{name}' ORDER BY env_steps"
    wait_until(lambda: rows(tmp_path, query), 120, "a checkpoint of the fork")
    ((first,), *_) = rows(tmp_path, query)
    ((spec,),) = rows(
        tmp_path, f"SELECT spec FROM agents WHERE name LIKE '%/{name}'", "leaderboard"
    )
    start_from = AgentSpec.FromString(spec).initialization.parents[0]
    assert start_from.agent.endswith("/a0001")
    manifest = Manifest.from_json(
        (checkpoint(tmp_path, first) / "manifest.json").read_bytes(), first
    )
    assert manifest.metadata["hyperparameters"]["learning_rate"] == 1e-7
    assert manifest.metadata["env_steps"] > start_from.checkpoint.env_steps > 0
    before, after = (
        load_file(checkpoint(tmp_path, each) / "actor.safetensors")
        for each in (start_from.checkpoint.prefix, first)
    )
    trained = [key for key in before if before[key].dtype.kind == "f" and "weight" in key]
    assert trained
    for key in trained:
        assert abs(before[key] - after[key]).max() < 1e-4, key
    execute_document(tmp_path)
    finish(command, tmp_path)
    told = rows(tmp_path, "SELECT kind FROM events WHERE kind LIKE 'AGENT_%' ORDER BY position")
    assert [kind for (kind,) in told if kind != "AGENT_PINNED"] == [
        *("AGENT_FORKED", "AGENT_FORKED", "AGENT_UNPINNED", "AGENT_STOPPED"),
    ]


def execute_document(folder: Path) -> None:
    """The commands of docs/steering.md, for two agents that were pinned before: they cannot be
    replaced meanwhile."""
    alive = rows(
        folder,
        "SELECT name FROM agents WHERE state IN ('waiting', 'training') AND best_rung",
        "leaderboard",
    )
    names = [name.rpartition("/")[2] for (name,) in alive]
    pinned = [
        name
        for name in names
        if not run_here("agent", "pin", "faults", name, cwd=folder).returncode
    ]
    (commands,) = blocks((ROOT / "docs" / "steering.md").read_text(), "sh")
    for line in commands.splitlines():
        words = {"JOB": "faults", "a0003": pinned[0], "a0007": pinned[1]}
        arguments = [words.get(word, word) for word in shlex.split(line, comments=True)]
        done = run_here(*arguments[1:], cwd=folder)
        assert not done.returncode, (line, done.stderr)


def checkpoint(folder: Path, prefix: str) -> Path:
    (found,) = (folder / "runs").rglob(prefix.rstrip("/"))
    return found


def test_everything_dies_with_a_killed_command(start):
    command = start()
    processes = psutil.Process(command.process.pid).children(recursive=True)
    command.process.kill()
    command.process.wait(60)
    wait_until(lambda: all_gone(processes), 60, "the services to follow")


def all_gone(processes: list[psutil.Process]) -> bool:
    """The kernel takes a killed process apart after its parent has ended."""
    return not any(
        each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in processes
    )


def lease_states(folder: Path) -> dict[int, str]:
    """The state of each lease by its fence."""
    return dict(rows(folder, "SELECT fence, state FROM leases"))

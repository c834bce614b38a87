"""A server that lies: whatever it answers, a command ends with a result or one clear message,
writes nothing outside its folder, prints no control character, and asks only so often.

PODRACER_FUZZ says how many commands, PODRACER_FUZZ_SEED which; `make fuzz` has many.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from podracer.leaderboard.v1 import leaderboard_service_pb2 as board_pb2
from podracer.orchestrator.v1 import artifact_service_pb2 as artifact_pb2
from podracer.orchestrator.v1 import job_pb2, job_service_pb2
from podracer_client.servers import stubs
from support.commands import run_here
from support.liar import MOST_CALLS, Liar

COUNT = int(os.environ.get("PODRACER_FUZZ", "300")) // 15
SEED = int(os.environ.get("PODRACER_FUZZ_SEED", "3"))
JOB = "projects/default/jobs/j"
TEXTS = (
    JOB, f"{JOB}/agents/a1", f"{JOB}/agents/a1/checkpoints/1-1",
    "projects/default/artifacts/prices", "a.csv", "manifest.json", "../../outside",
    "/tmp/outside-of-podracer", "a/../../outside", "a\0b", "a/b", "a" * 5000, "x" * 300_000,
    "\x1b]0;title\x07\x1b[2J", "\u202egnp", "\x9b31m", "line\nline", "2026-01-01", "CartPole-v1",
    "projects/default/jobs/uid/agents/a1/checkpoints/1-1/",
)  # fmt: skip
COMMANDS = (
    "jobs", "jobs --json", "jobs --experiment a", "job j", "job j --json", "cancel j", "delete j",
    "scale j --max 3", "leaderboard j", "leaderboard j --all", "leaderboard j --json", "promote j",
    "promote j --json", "rollback j", "history j", "history j --json", "capacity",
    "capacity --json", "gc", "gc --json", "agent fork j a1",
    "agent fork j a1 --set learning_rate=0.1", "agent pin j a1", "agent stop j a1", "data list",
    "data list --json", "data show prices", "data show prices --json",
    "data download prices -o out.csv", "data delete prices", "watch j --plain", "watch j --json",
    "submit job.yaml", "report j -o report.html", "export j -o policy.pt2",
    "export j --ensemble 2 -o policy.pt2",
)  # fmt: skip
MOST_GROWTH_BYTES = 256 << 20
PLAIN = re.compile(r"[^\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]*")


class Server(Liar):
    def answer(self, method: Any) -> Any:
        answer = super().answer(method)
        if self.endless and hasattr(answer, "next_page_token"):
            answer.next_page_token = self.chance.choice(("again", str(self.calls)))
        if self.endless and hasattr(answer, "more"):
            answer.more = True
            answer.events.add(position=self.chance.choice((1, 2)))
        return answer

    def be_honest(self, answer: Any) -> None:
        for name, make in {"job": _job, "artifact": _artifact, "leaderboard": _board}.items():
            if (
                name in answer.DESCRIPTOR.fields_by_name
                and answer.DESCRIPTOR.fields_by_name[name].message_type
            ):
                getattr(answer, name).CopyFrom(make(self.chance))
        if isinstance(answer, job_service_pb2.ListEventsResponse):
            answer.events.add(kind="JOB_CREATED", message="created", position=1)
        elif isinstance(answer, board_pb2.ListAgentsResponse):
            answer.agents.append(_board(self.chance).candidates[0].agent)

    def parts(self, method: Any, request: Any, context: Any) -> Iterator[Any]:
        if method.name != "Download":
            yield from super().parts(method, request, context)
            # that of a job which goes on for ever may be watched for ever
            if method.name == "WatchJob":
                yield job_service_pb2.WatchJobResponse(
                    job=job_pb2.Job(name=JOB, state=job_pb2.JOB_STATE_FAILED)
                )
            return
        response = artifact_pb2.DownloadResponse
        yield response(artifact=_artifact(self.chance))
        for _ in range(self.chance.choice((0, 1, 2, 5))):
            path = self.chance.choice(("a.csv", "manifest.json", *TEXTS))
            part = response(
                file=artifact_pb2.ArtifactFile(path=path, size_bytes=3, sha256="0" * 64)
            )
            yield self.messages.mutate(part) if self.chance.random() < 0.3 else part
            for _ in range(self.chance.choice((0, 1, 1, 200))):
                yield response(data=b"x" * self.chance.choice((3, 3, 1 << 20)))


def _job(chance: random.Random) -> job_pb2.Job:
    job = job_pb2.Job(
        name=JOB, uid="uid", leaderboard="projects/default/leaderboards/j", event_position=3
    )
    job.state = chance.choice((job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_SUCCEEDED))
    job.create_time.seconds = 1_760_000_000
    job.spec.environment.id = "CartPole-v1"
    job.spec.objective.target_return = 475.0
    job.outcome = chance.choice((0, 1, 2))
    best = job.progress.best
    best.agent, best.returns[:], best.lengths[:] = f"{JOB}/agents/a1", [1.0, 2.0], [10, 10]
    best.checkpoint.prefix = "projects/default/jobs/uid/agents/a1/checkpoints/1-1/"
    return job


def _artifact(chance: random.Random) -> artifact_pb2.Artifact:
    name = chance.choice(("projects/default/artifacts/prices", f"{JOB}/agents/a1/checkpoints/1-1"))
    kind = artifact_pb2.ARTIFACT_KIND_DATA_SET
    return artifact_pb2.Artifact(
        name=name, kind=kind, sha256="0" * 64, size_bytes=3, uri="artifacts/x/content"
    )


def _board(chance: random.Random) -> board_pb2.Leaderboard:
    board = board_pb2.Leaderboard(name="projects/default/leaderboards/j", revision=2)
    for number in (1, 2):
        candidate = board.candidates.add(rank=number, score=1.0)
        candidate.agent.name = f"{JOB}/agents/a{number}"
        candidate.agent.spec.algorithm = "ppo"
        candidate.evaluation.CopyFrom(_job(chance).progress.best)
    return board


@pytest.fixture(scope="module")
def liar() -> Iterator[tuple[Liar, str]]:
    lies = Server(TEXTS)
    with lies.serving() as address:
        yield lies, address


@pytest.mark.timeout(7200)
def test_whatever_a_server_says_a_command_ends_in_order(liar, tmp_path, monkeypatch):
    lies, address = liar
    monkeypatch.setattr(stubs, "MOST_PAGES", MOST_CALLS // 3)
    folder = tmp_path / "a" / "b" / "c"
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(
        "name: j\nenvironment: {id: CartPole-v1}\nobjective: {target_return: 475}\ndata: {prices: "
        "prices.csv}\n"
    )
    (folder / "prices.csv").write_text("a,b\n")
    before, memory_bytes = _files(tmp_path, folder), psutil.Process().memory_info().rss
    for number in range(COUNT):
        chance = random.Random(f"{SEED}-{number}")
        command = chance.choice(COMMANDS)
        lies.begin(chance)
        try:
            done = run_here(
                *command.split(), cwd=folder, PODRACER_TOKEN="t",
                PODRACER_ORCHESTRATOR=address, PODRACER_LEADERBOARD=address,
            )  # fmt: skip
        except BaseException as error:
            error.add_note(f"number {number}: {command}")
            raise
        what = f"number {number}: {command}: {done}"[:3000]
        assert done.returncode in (0, 1, 2, 3), what
        assert PLAIN.fullmatch(done.stdout) and PLAIN.fullmatch(done.stderr), what
        assert "Traceback" not in done.stderr, what
        assert done.stdout or done.stderr or done.returncode == 0, what
        assert lies.calls <= MOST_CALLS, what
        assert _files(tmp_path, folder) == before, what
    assert not Path("/tmp/outside-of-podracer").exists()
    growth = psutil.Process().memory_info().rss - memory_bytes
    assert growth < MOST_GROWTH_BYTES, f"{growth / 2**20:.0f} MiB"


def _files(tmp_path: Path, folder: Path) -> list[Path]:
    return sorted(path for path in tmp_path.rglob("*") if folder not in path.parents)

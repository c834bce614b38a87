"""`podracer demo` without its training: what is run, that the champion is filmed, and the page
where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from podracer.evaluator.v1 import evaluator_service_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_client.command import run as demo
from podracer_client.display import JobSummary
from podracer_client.local import foreground
from podracer_client.policies import evaluation
from podracer_core.errors import InvalidInput, PreconditionFailed
from podracer_platform.jobs import load_job_file, parse_job
from support.commands import Result, run_here
from support.processes import EXAMPLES


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What stands for the training, which ends with `code`, and for the camera."""
    seen: dict[str, Any] = {"code": 0, "error": None}

    def run_job(spec: Any, folder: Path, display: Any, options: Any, again: Any) -> int:
        seen.update(spec=spec, again=again)
        display.summary = JobSummary(job_pb2.Job(), "objects/best" if seen["code"] != 1 else "")
        return int(seen["code"])

    def record(policies: Any, output: Path, *_: Any) -> evaluator_service_pb2.VideoHeader:
        seen.update(policies=policies)
        if seen["error"]:
            raise seen["error"]
        return evaluator_service_pb2.VideoHeader(
            frame_count=501, episode_return=500.0, complete=True, size_bytes=2048
        )

    monkeypatch.setattr(foreground, "run_job", run_job)
    monkeypatch.setattr(evaluation, "record", record)
    return seen


def command(folder: Path, *arguments: str) -> Result:
    return run_here("demo", "--plain", *arguments, cwd=folder)


def test_the_job_is_that_of_the_example():
    example, ours = load_job_file(EXAMPLES / "cartpole.yaml"), parse_job(demo.JOB)
    assert (ours.search, ours.evolution, ours.pod) == (
        example.search,
        example.evolution,
        example.pod,
    )


def test_the_champion_is_filmed(trained, tmp_path):
    result = command(tmp_path)
    assert (result.returncode, trained["policies"]) == (0, ["objects/best"]), result.stderr
    assert trained["again"] == ["demo", "--dir", "podracer-demo"]
    assert result.lines == [
        "video        podracer-demo/champion.mp4: an episode of 500 steps, return 500.0; 2 KiB"
    ]
    trained["code"] = 3
    assert command(tmp_path).returncode == 3


def test_without_a_champion_or_an_encoder(trained, tmp_path):
    trained["error"] = PreconditionFailed("videos need the extra podracer-core[video]")
    result = command(tmp_path)
    assert (result.returncode, "no video: videos need the extra" in result.stderr) == (0, True)
    trained["code"] = 1
    result = command(tmp_path)
    assert (result.returncode, "filming" in result.stderr) == (1, False)


def test_the_page_is_opened_where_it_can_be_served(trained, monkeypatch, tmp_path):
    def refuse(**options: Any) -> None:
        raise InvalidInput("the live page needs Starlette", reason="NO_WEB")

    monkeypatch.setattr(demo, "web", refuse)
    result = command(tmp_path, "--open")
    assert (result.returncode, "no page: the live page needs Starlette" in result.stderr) == (
        0,
        True,
    )
    opened: list[dict[str, Any]] = []
    monkeypatch.setattr(demo, "web", lambda **options: opened.append(options))
    assert command(tmp_path).returncode == 0
    assert opened == [], "not without a terminal"
    assert "filming" not in command(tmp_path, "--open").stderr, "the page does"
    assert [(each["folder"], each["open_browser"]) for each in opened] == [
        (Path("podracer-demo"), True)
    ]

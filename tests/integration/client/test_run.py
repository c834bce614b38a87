"""`podracer run` between the user and the services: created, resumed, finished, interrupted."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from podracer.orchestrator.v1 import job_pb2
from podracer_client import Client, Connection
from podracer_client.display import JsonDisplay
from podracer_client.local import foreground
from podracer_client.local import foreground as run_module
from podracer_client.processes import ProcessNews
from podracer_core.errors import Unavailable
from podracer_platform.jobs import parse_job
from support.errors import raises

if TYPE_CHECKING:
    pass

SPEC = parse_job(
    "name: cartpole\nenvironment: CartPole-v1\nobjective: {target_return: 475, max_duration: 1m}\n"
)
OTHER = parse_job(
    "name: other\nenvironment: CartPole-v1\nobjective: {target_return: 475, max_duration: 1m}\n"
)


class FakeServices:
    """In place of LocalServices: the control plane of this process."""

    connection: Connection
    on_news: Callable[[ProcessNews], None]
    stopped: list[float]

    def __init__(
        self, state: Any, run_folder: Any, options: Any, on_news: Callable[[ProcessNews], None]
    ) -> None:
        type(self).on_news = staticmethod(on_news)

    def start(self) -> None:
        pass

    def client(self) -> Client:
        return Client(self.connection)

    def stop(self, timeout_s: float) -> None:
        self.stopped.append(timeout_s)

    def kill(self) -> None:
        raise AssertionError("an unexpected second interrupt")


@pytest.fixture
def run(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], tuple[int, list[Any]]]:
    FakeServices.connection, FakeServices.stopped = connection, []
    monkeypatch.setattr(foreground, "LocalServices", FakeServices)
    monkeypatch.chdir(tmp_path)

    def run() -> tuple[int, list[Any]]:
        out = io.StringIO()
        code = run_module.run_job(SPEC, Path("runs"), JsonDisplay(out, io.StringIO()))
        return code, [json.loads(line) for line in out.getvalue().splitlines()]

    return run


def finish(state: int = job_pb2.JOB_STATE_SUCCEEDED) -> Callable[[job_pb2.Job], None]:
    def change(job: job_pb2.Job) -> None:
        job.state = state  # type: ignore[assignment]
        job.progress.best.mean = job.progress.best_score = 480.0
        job.progress.best.checkpoint.prefix = "projects/default/jobs/u/agents/a/checkpoints/1-1/"

    return change


def test_a_job_is_created_and_followed_to_its_end(run, control_plane, tmp_path):
    control_plane.news.put(finish())
    code, lines = run()
    assert code == 0
    assert lines[-1]["event"] == "job_finished"
    assert lines[-1]["state"] == "SUCCEEDED"
    assert (
        lines[-1]["checkpoint"] == "runs/objects/projects/default/jobs/u/agents/a/checkpoints/1-1"
    )
    assert len(FakeServices.stopped) == 1
    assert not (tmp_path / "runs" / "connection.json").exists()


def test_a_failed_job_is_exit_code_1(run, control_plane):
    control_plane.news.put(finish(job_pb2.JOB_STATE_FAILED))
    code, lines = run()
    assert (code, lines[-1]["state"]) == (1, "FAILED")


def test_an_unfinished_job_of_the_same_spec_goes_on_and_others_give_way(run, control_plane):
    done = control_plane.add(SPEC.to_message(), job_pb2.JOB_STATE_SUCCEEDED)
    mine = control_plane.add(SPEC.to_message(), job_pb2.JOB_STATE_SUSPENDED)
    other = control_plane.add(OTHER.to_message(), job_pb2.JOB_STATE_RUNNING)
    control_plane.news.put(lambda job: None)
    control_plane.news.put(lambda job: None)
    control_plane.news.put(finish())
    code, lines = run()
    assert code == 0
    assert len(control_plane.jobs) == 3
    assert (done.state, mine.state, other.state) == (
        job_pb2.JOB_STATE_SUCCEEDED,
        job_pb2.JOB_STATE_SUCCEEDED,
        job_pb2.JOB_STATE_SUSPENDED,
    )
    notes = [line["message"] for line in lines if line["event"] == "note"]
    assert any(f"going on with {mine.name}" in note for note in notes)
    assert any(other.name in note for note in notes)


def test_a_finished_job_is_not_run_again_but_a_new_one(run, control_plane):
    control_plane.add(SPEC.to_message(), job_pb2.JOB_STATE_SUCCEEDED)
    control_plane.news.put(finish())
    run()
    assert len(control_plane.jobs) == 2


def test_ctrl_c_suspends_waits_for_the_pods_and_says_so(run, control_plane):
    control_plane.pods = [job_pb2.Pod(name="p", state=job_pb2.POD_STATE_WORKING)]

    def interrupt(job: job_pb2.Job) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def drained(job: job_pb2.Job) -> None:
        control_plane.pods = []
        job.progress.env_steps = 4096

    control_plane.news.put(interrupt)
    threading.Timer(0.3, lambda: control_plane.news.put(drained)).start()
    code, lines = run()
    assert code == 130
    assert lines[-1]["event"] == "job_finished"
    assert lines[-1]["state"] == "SUSPENDED"
    assert lines[-1]["env_steps"] == 4096
    assert FakeServices.stopped[0] < 4.6  # what the user has waited for already is taken off


def test_pods_that_do_not_drain_do_not_hold_up_ctrl_c(run, control_plane):
    control_plane.pods = [job_pb2.Pod(name="p", state=job_pb2.POD_STATE_WORKING)]
    control_plane.news.put(lambda job: os.kill(os.getpid(), signal.SIGINT))
    code, lines = run()
    assert (code, lines[-1]["state"]) == (130, "SUSPENDED")
    control_plane.news.put(finish())  # lets the server's watcher go


def test_a_service_that_is_given_up_ends_the_run(run, control_plane):
    control_plane.news.put(
        lambda job: FakeServices.on_news(
            ProcessNews("leaderboard", "the leaderboard ended too often", fatal=True)
        )
    )
    with raises(Unavailable, "PROCESS_FAILED"):
        run()
    assert len(FakeServices.stopped) == 1
    control_plane.news.put(finish())  # lets the server's watcher go


def test_a_service_that_is_started_again_is_a_note(run, control_plane):
    control_plane.news.put(
        lambda job: FakeServices.on_news(ProcessNews("orchestrator", "starting it again"))
    )
    control_plane.news.put(finish())
    _, lines = run()
    assert {"event": "note", "message": "starting it again"} in lines

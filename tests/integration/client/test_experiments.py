"""The jobs of a matrix: checked before any is created, created once, followed to the last one's
end."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from podracer.orchestrator.v1 import job_pb2, job_service_pb2
from podracer_client import Client, Connection
from podracer_client.__main__ import main
from podracer_client.display import ExperimentDisplay, JsonExperimentDisplay
from podracer_client.jobs import check_jobs, create_jobs, follow_jobs
from podracer_client.local import foreground
from podracer_client.local import foreground as run_module
from podracer_core.errors import InvalidInput, Unavailable
from podracer_platform.jobs import parse_experiment

if TYPE_CHECKING:
    from conftest import ControlPlane

TEXT = """\
name: grid
environment: CartPole-v1
objective: {target_return: 475, max_duration: 1m}
matrix: {seed: [0, 1, 2]}
"""
EXPERIMENT = parse_experiment(TEXT)


def end_all(control_plane: ControlPlane, state: Any = job_pb2.JOB_STATE_SUCCEEDED) -> None:
    for job in control_plane.jobs.values():
        job.state = state


def act_later(action: Callable[[], object], ready: Callable[[], bool]) -> None:
    """From another thread, a moment after something has become true."""

    def act() -> None:
        deadline = time.monotonic() + 60
        while not ready() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        action()

    threading.Thread(target=act, daemon=True).start()


def created(control_plane: ControlPlane) -> list[Any]:
    return [
        request
        for request in control_plane.requests
        if isinstance(request, job_service_pb2.CreateJobRequest)
    ]


def test_all_are_checked_before_the_first_is_created(client, control_plane):
    control_plane.refused["grid-3"] = "no generator 'x' is installed"
    with pytest.raises(InvalidInput, match="installed; nothing"):
        check_jobs(client, EXPERIMENT.jobs)
    assert not control_plane.jobs
    control_plane.refused.clear()
    specs = check_jobs(client, EXPERIMENT.jobs)
    assert not control_plane.jobs
    names = [job.name for job in create_jobs(client, specs, "s")]
    assert names == list(control_plane.jobs)


def test_a_submission_that_was_cut_off_is_completed_without_doubles(client, control_plane):
    specs = check_jobs(client, EXPERIMENT.jobs)
    begun = create_jobs(client, specs, "s")
    first, second = next(begun), next(begun)
    begun.close()  # the process was killed here
    names = [job.name for job in create_jobs(client, specs, "s")]
    assert names[:2] == [first.name, second.name]
    assert len(control_plane.jobs) == len(set(names)) == 3
    list(create_jobs(client, specs, "another"))
    assert len(control_plane.jobs) == 6


def test_ids_are_numbered(client, control_plane):
    list(create_jobs(client, EXPERIMENT.jobs, "s", job_id="mine"))
    assert [request.job_id for request in created(control_plane)] == ["mine-1", "mine-2", "mine-3"]


def test_files_are_sent_once_for_all_jobs(client, control_plane, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    (tmp_path / "table.csv").write_text("1")
    environment = "environment: {entry_point: mine:Env, code: mine}\ndata: {table: table.csv}"
    text = TEXT.replace("environment: CartPole-v1", environment)
    specs = check_jobs(client, parse_experiment(text, folder=tmp_path).jobs)
    assert len(control_plane.uploads) == 2
    assert len({spec.environment.code for spec in specs}) == 1
    assert all(
        spec.environment.code is not None and not spec.environment.code_path for spec in specs
    )


def test_following_ends_with_the_last_job_and_outlives_a_short_absence(
    client, control_plane, monkeypatch
):
    names = [job.name for job in create_jobs(client, EXPERIMENT.jobs, "s")]
    looks = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 1:
            control_plane.jobs[names[1]].state = job_pb2.JOB_STATE_FAILED
        if len(looks) == 2:
            end_all(control_plane)

    updates = list(follow_jobs(client, names, wait=wait))
    assert [list(update) for update in updates] == [names] * 3
    assert updates[1][names[1]].state == "FAILED"
    assert all(job.ended for job in updates[-1].values())

    def away(*arguments: Any, **options: Any) -> Any:
        raise Unavailable("away")

    monkeypatch.setattr(client, "jobs", away)
    now = iter(range(100))
    with pytest.raises(Unavailable, match="5 s: away"):
        list(
            follow_jobs(
                client,
                names,
                patience_s=5.0,
                clock=lambda: float(next(now)),
                wait=lambda seconds: None,
            )
        )


class TestSubmit:
    """The commands, against the control plane of this process."""

    @pytest.fixture
    def podracer(
        self,
        connection: Connection,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> Callable[..., tuple[int, str, str]]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("podracer_client.jobs.client._INTERVAL_S", 0.05)
        (tmp_path / "token").write_text(connection.token())
        (tmp_path / "token").chmod(0o600)
        (tmp_path / "job.yaml").write_text(TEXT)

        def podracer(*arguments: str) -> tuple[int, str, str]:
            server = ["--orchestrator", connection.orchestrator, "--token-file", "token"]
            monkeypatch.setattr("sys.argv", ["podracer", *arguments, *server])
            with pytest.raises(SystemExit) as end:
                main()
            captured = capsys.readouterr()
            return int(end.value.code or 0), captured.out, captured.err

        return podracer

    def test_names_are_printed_and_a_cut_off_submission_goes_on(self, podracer, control_plane):
        code, out, err = podracer("submit", "job.yaml")
        assert code == 0
        assert out.splitlines() == list(control_plane.jobs)
        assert err.startswith(
            "submitting 3 jobs; if interrupted, repeat the command with --submission "
        )
        submission = err.split("--submission ")[1].split()[0]
        assert podracer("submit", "job.yaml", "--submission", submission)[1] == out
        assert len(control_plane.jobs) == 3
        code, _, err = podracer("submit", "job.yaml", "--submission", "../x")
        assert (code, "'../x' is not a submission id" in err) == (2, True)

    def test_a_mistake_in_one_creates_none(self, podracer, control_plane):
        Path("job.yaml").write_text(TEXT.replace("[0, 1, 2]", "[0, 1, x]"))
        code, out, err = podracer("submit", "job.yaml")
        assert (code, out) == (2, "")
        assert "job.yaml:4: seed: expected a whole number, got 'x' (where seed = x)" in err
        assert not control_plane.requests

    def test_watching_ends_with_the_last_job_and_compares_them(self, podracer, control_plane):
        act_later(lambda: end_all(control_plane), lambda: len(control_plane.jobs) == 3)
        code, out, _ = podracer("submit", "job.yaml", "--watch")
        assert code == 0
        assert "seed  state" in out
        assert out.count("succeeded") == 3

    def test_the_jobs_of_one_experiment_are_listed(self, podracer, control_plane):
        podracer("submit", "job.yaml")
        control_plane.add((parse_experiment(TEXT.replace("grid", "other")).jobs[0]).to_message())
        _, out, _ = podracer("jobs", "--experiment", "grid")
        assert [line.split()[0] for line in out.splitlines()[1:]] == [
            "grid-3-2",
            "grid-2-1",
            "grid-1-0",
        ]
        assert "other" in podracer("jobs")[1]


class FakeServices:
    """In place of LocalServices: the control plane of this process."""

    connection: Connection

    def __init__(self, state: Any, run_folder: Any, options: Any, on_news: Any) -> None:
        pass

    def start(self) -> None:
        pass

    def client(self) -> Client:
        return Client(self.connection)

    def stop(self, timeout_s: float) -> None:
        pass

    def kill(self) -> None:
        raise AssertionError("an unexpected second interrupt")


class TestRun:
    @pytest.fixture
    def run(
        self, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[], tuple[int, list[Any]]]:
        FakeServices.connection = connection
        monkeypatch.setattr(foreground, "LocalServices", FakeServices)
        monkeypatch.setattr("podracer_client.jobs.client._INTERVAL_S", 0.05)
        monkeypatch.chdir(tmp_path)

        def run() -> tuple[int, list[Any]]:
            out = io.StringIO()
            display = JsonExperimentDisplay(EXPERIMENT.axes, out, io.StringIO())
            code = run_module.run_experiment(EXPERIMENT, Path("runs"), display)
            return code, [json.loads(line) for line in out.getvalue().splitlines()]

        return run

    def test_all_are_created_and_compared_at_the_end(self, run, control_plane):
        act_later(lambda: end_all(control_plane), lambda: len(control_plane.jobs) == 3)
        code, lines = run()
        assert code == 0
        assert lines[-1]["event"] == "experiment_finished"
        assert [job["state"] for job in lines[-1]["jobs"]] == ["SUCCEEDED"] * 3
        assert [job["matrix"] for job in lines[-1]["jobs"]] == [
            {"seed": "0"},
            {"seed": "1"},
            {"seed": "2"},
        ]

    def test_an_interrupted_run_goes_on_and_what_has_ended_stays(self, run, control_plane):
        done, suspended, missing = (spec.to_message() for spec in EXPERIMENT.jobs)
        control_plane.add(done, job_pb2.JOB_STATE_SUCCEEDED)
        mine = control_plane.add(suspended, job_pb2.JOB_STATE_SUSPENDED)
        other = control_plane.add(
            (parse_experiment(TEXT.replace("grid", "x")).jobs[0]).to_message()
        )
        act_later(lambda: end_all(control_plane), lambda: len(control_plane.jobs) == 4)
        code, lines = run()
        assert code == 0
        assert len(created(control_plane)) == 3 + 1  # all were checked, one was created
        assert created(control_plane)[-1].spec == missing
        assert [job["matrix"]["seed"] for job in lines[-1]["jobs"]] == ["0", "1", "2"]
        changes = [request for request in control_plane.requests if hasattr(request, "suspend")]
        assert [(change.name, change.suspend) for change in changes] == [
            (other.name, True),
            (mine.name, False),
        ]

    def test_a_finished_experiment_is_run_anew(self, run, control_plane):
        for spec in EXPERIMENT.jobs:
            control_plane.add(spec.to_message(), job_pb2.JOB_STATE_SUCCEEDED)
        act_later(lambda: end_all(control_plane), lambda: len(control_plane.jobs) == 6)
        run()
        assert len(control_plane.jobs) == 6

    def test_ctrl_c_suspends_all(self, run, control_plane):
        act_later(lambda: os.kill(os.getpid(), signal.SIGINT), lambda: len(control_plane.jobs) == 3)
        code, lines = run()
        assert code == 130
        assert {job.state for job in control_plane.jobs.values()} == {job_pb2.JOB_STATE_SUSPENDED}
        assert lines[-1]["event"] == "experiment_finished"

    @pytest.mark.usefixtures("run")
    def test_who_interrupts_is_told_how_to_go_on(self, control_plane):
        act_later(lambda: os.kill(os.getpid(), signal.SIGINT), lambda: len(control_plane.jobs) == 3)
        out = io.StringIO()
        display = ExperimentDisplay(EXPERIMENT.axes, out, io.StringIO())
        run_module.run_experiment(
            EXPERIMENT, Path("runs"), display, None, ["podracer report grid"], "podracer run x"
        )
        assert out.getvalue().endswith("\nnext\n  podracer run x\n  podracer report grid\n")

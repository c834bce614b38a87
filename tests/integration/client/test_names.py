"""A job may be given by the name in its file wherever an id does, while only one job has that
name."""

from __future__ import annotations

from pathlib import Path

import pytest

from podracer.orchestrator.v1 import job_pb2
from podracer_client.servers import Connection
from podracer_core.errors import InvalidInput, NotFound
from support.commands import Result, run_here
from support.errors import raises


def spec(name: str) -> job_pb2.JobSpec:
    return job_pb2.JobSpec(display_name=name)


def command(connection: Connection, *arguments: str, cwd: Path) -> Result:
    (cwd / "token").write_text(connection.token())
    (cwd / "token").chmod(0o600)
    address = ("--orchestrator", connection.orchestrator, "--leaderboard", connection.leaderboard)
    return run_here(*arguments, *address, "--token-file", "token", cwd=cwd)


def test_a_unique_name_is_as_good_as_an_id(client, control_plane):
    control_plane.add(spec("cartpole"))
    pendulum = control_plane.add(spec("pendulum"))
    for text in ("pendulum", "pendulum-1", "projects/default/jobs/pendulum", pendulum.name):
        assert client.full_name(text) == client.job(text).name == pendulum.name


def test_an_id_goes_before_a_name(client, control_plane):
    first = control_plane.add(spec("a"))
    control_plane.add(spec("a-0"))
    assert client.job("a-0").name == first.name


def test_an_ambiguous_name_lists_the_candidates(client, control_plane):
    for state in (
        job_pb2.JOB_STATE_RUNNING,
        job_pb2.JOB_STATE_SUCCEEDED,
        job_pb2.JOB_STATE_RUNNING,
    ):
        control_plane.add(spec("pendulum"), state).create_time.GetCurrentTime()
    with raises(InvalidInput, "AMBIGUOUS_NAME") as error:
        client.job("pendulum")
    first, *lines = error.value.message.splitlines()
    assert first == "3 jobs are called pendulum; name one by its id:"
    assert [(line.split()[0], line.split()[-1]) for line in lines] == [
        ("pendulum-2", "RUNNING"),
        ("pendulum-1", "SUCCEEDED"),
        ("pendulum-0", "RUNNING"),
    ]


def test_an_unknown_name_names_the_nearest(client, control_plane):
    with raises(NotFound, "JOB_NOT_FOUND", match="jobs` lists"):
        client.job("pendulum")
    control_plane.add(spec("pendulum"))
    with raises(NotFound, "JOB_NOT_FOUND", match="mean pendulum"):
        client.job("pendulm")


@pytest.mark.parametrize(
    "words", [("job", "pendulum"), ("cancel", "pendulum"), ("watch", "pendulum", "--plain")]
)
def test_commands(words, connection, control_plane, tmp_path):
    job = control_plane.add(spec("pendulum"), job_pb2.JOB_STATE_SUCCEEDED)
    result = command(connection, *words, cwd=tmp_path)
    assert (result.returncode, result.stdout.split(":")[0]) == (0, job.name), result.stderr
    control_plane.add(spec("pendulum"))
    for name, said in (
        ("pendulum", "2 jobs are called pendulum"),
        ("pendulums", "did you mean pendulum"),
    ):
        result = command(connection, words[0], name, cwd=tmp_path)
        assert (result.returncode, said in result.stderr) == (2, True), result.stderr
        assert result.stderr.count(said) == 1


def test_watch_says_that_the_target_was_missed(connection, control_plane, tmp_path):
    job = control_plane.add(spec("pendulum"), job_pb2.JOB_STATE_SUCCEEDED)
    job.outcome = job_pb2.JOB_OUTCOME_BUDGET_USED
    assert command(connection, "watch", "pendulum", "--plain", cwd=tmp_path).returncode == 0, (
        "there was no target"
    )
    job.spec.objective.target_return = 10.0
    result = command(connection, "watch", "pendulum", "--plain", cwd=tmp_path)
    assert (result.returncode, "budget used, target missed" in result.stdout) == (3, True)

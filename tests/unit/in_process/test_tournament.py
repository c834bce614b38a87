"""`podracer.run`, with a command that only pretends: what it tells becomes a result."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

import podracer
from podracer_client import job_run as tournament
from podracer_core.errors import InvalidInput, PreconditionFailed
from tests.unit.in_process.tiny import FAST

COMMAND = """
import json, os, signal, sys, time

def tell(**event):
    print(json.dumps(event), flush=True)

def progress(env_steps, best):
    tell(event="progress", state="RUNNING", env_steps=env_steps, live_env_steps=env_steps, best_return=best,
         env_steps_per_second=10.0, train_seconds=env_steps / 100)

def end(code, checkpoint="best", reached=None):
    tell(event="job_finished", checkpoint=checkpoint, seconds_to_target=reached)
    sys.exit(code)

assert sys.argv[1:] == ["run", "job.yaml", "--dir", "runs", "--json"], sys.argv
"""
PROGRESS = "for step in ((0, None), (10, 5.0), (10, 5.0), (20, 4.0)): progress(*step)\n"
JOB = "name: lights\nenvironment: {id: CartPole-v1}\nobjective: {target_return: 7}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the pretended command and its checkpoint are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tournament, "_CLIENT", "pretended_client")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.syspath_prepend(tmp_path)
    podracer.train(
        "CartPole-v1", members=1, envs_per_member=2, steps=64, hyperparameters=FAST, progress=False
    ).save("best")
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def pretend(folder: Path, code: str) -> None:
    (folder / "pretended_client.py").write_text(COMMAND + textwrap.dedent(code))


def test_the_champion_is_the_result(folder, capsys):
    pretend(folder, PROGRESS + "end(0, reached=3.0)")
    result = podracer.run("job.yaml")
    assert (result.stopped_by, result.environment) == ("target", "CartPole-v1")
    assert [(look.env_steps, look.returns, look.best) for look in result.history] == [
        (10, (5.0,), 5.0),
        (20, (4.0,), 5.0),
    ]
    assert result.evaluate(2).episodes == 2
    assert "20 steps  10 steps/s  best 4" in capsys.readouterr().err


def test_a_missed_target_has_a_result_too(folder):
    pretend(folder, PROGRESS + "end(3)")
    result = podracer.run("job.yaml", progress=False)
    assert (result.stopped_by, len(result.history)) == ("", 2)


def test_an_interrupt_suspends_the_job_and_gives_the_best_so_far(folder):
    code = """
    signal.signal(signal.SIGINT, lambda *_: end(130))
    os.kill(os.getppid(), signal.SIGINT)
    while True: time.sleep(0.1)
    """
    pretend(folder, PROGRESS + textwrap.dedent(code))
    result = podracer.run("job.yaml", progress=False)
    assert (result.stopped_by, len(result.history)) == ("interrupt", 2)


def test_what_the_command_says_of_a_failure_is_raised(folder):
    pretend(
        folder,
        "print('problem      USER_CODE_FAILED: no', file=sys.stderr)\nend(1, checkpoint=None)",
    )
    with pytest.raises(PreconditionFailed, match="USER_CODE_FAILED: no"):
        podracer.run("job.yaml", progress=False)


def test_a_wrong_job_file_starts_nothing(folder):
    pretend(folder, "")
    (folder / "job.yaml").write_text(JOB.replace("target_return", "target"))
    with pytest.raises(InvalidInput, match=r"job\.yaml:3"):
        podracer.run("job.yaml")

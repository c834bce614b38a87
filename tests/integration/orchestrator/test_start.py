"""`python -m podracer_orchestrator`: it says where it listens, or in one line why it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest

from podracer_orchestrator.config import OrchestratorConfig
from podracer_orchestrator.server import serve
from podracer_platform.rpc.probe import probe
from podracer_platform.rpc.tokens import create_tokens
from podracer_platform.service.process import run_service


@pytest.fixture
def environment(tmp_path):
    create_tokens(tmp_path / "tokens")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PODRACER_")}
    return {
        **inherited,
        "PODRACER_TOKENS": str(tmp_path / "tokens"),
        "PODRACER_DATABASE": f"sqlite:///{tmp_path}/orchestrator.sqlite",
        "PODRACER_STORE": f"file://{tmp_path}/store",
        "PODRACER_LEADERBOARD": "127.0.0.1:1",
    }


@pytest.fixture
def fail(environment, monkeypatch, capsys):
    """What the service says that cannot start with such settings; it runs in this process."""

    def fail(**changes) -> str:
        for name in os.environ:
            if name.startswith(("PODRACER_", "KUBERNETES_")):
                monkeypatch.delenv(name)
        for name, value in {**environment, **changes}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["podracer_orchestrator"])
        monkeypatch.setattr("podracer_platform.service.process.configure_logging", lambda *_: None)
        assert run_service("orchestrator", OrchestratorConfig, serve) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        assert line.startswith("podracer_orchestrator: ")
        return line

    return fail


def test_it_says_where_it_listens_and_ends_on_sigterm(environment):
    with subprocess.Popen(
        [sys.executable, "-m", "podracer_orchestrator"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline().startswith("listening on 127.0.0.1:")
        process.terminate()
        assert process.wait(60) == 0
        assert process.stdout.read() == ""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"PODRACER_LEASE_TERM": "soon"}, "PODRACER_LEASE_TERM"),
        ({"PODRACER_LEASE_TERM": "0.1s"}, "expected 0.5 s to 1 h"),
        ({"PODRACER_POOL": "magic"}, "local or static or kubernetes"),
        ({"PODRACER_POOL": "local"}, "PODRACER_STATE_DIR"),
        ({"PODRACER_POD_TEMPLATE": "/etc/podracer/template.yaml"}, "PODRACER_POD_TEMPLATE"),
        ({"PODRACER_GPU_RESOURCE": "gpu"}, "expected a name such as nvidia.com/gpu"),
        ({"PODRACER_POOL": "kubernetes"}, "this process is in no cluster"),
        ({"PODRACER_KUEUE_QUEUE": "Not a name"}, "PODRACER_KUEUE_QUEUE"),
        ({"PODRACER_HEALTH_LISTEN": "nonsense"}, "nonsense"),
        ({"PODRACER_DATABASE": ""}, "PODRACER_DATABASE"),
        ({"PODRACER_DATABASE": "mysql://x"}, "sqlite"),
        ({"PODRACER_STORE": "ftp://x"}, "file:///"),
        ({"PODRACER_LISTEN": "0.0.0.0:0"}, "not a loopback address"),
        ({"PODRACER_LEADERBOARD": "nonsense"}, "nonsense"),
        ({"PODRACER_TOKENS": "/nowhere"}, "no token"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line(fail, changes, expected):
    assert expected in fail(**changes)


def test_its_health_is_told_to_everybody(environment):
    with (
        tempfile.TemporaryDirectory() as folder,  # the path of a socket has to be short
        subprocess.Popen(
            [sys.executable, "-m", "podracer_orchestrator"],
            env={**environment, "PODRACER_HEALTH_LISTEN": (address := f"unix://{folder}/health")},
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdout.readline().startswith("listening on 127.0.0.1:")
        assert (probe(address), probe(address, "liveness")) == ("SERVING", "SERVING")
        process.terminate()
        assert process.wait(60) == 0


def test_a_folder_that_cannot_be_written_is_told(fail, tmp_path):
    (tmp_path / "file").touch()
    assert "cannot be written" in fail(PODRACER_DATABASE=f"sqlite:///{tmp_path}/file/o.sqlite")
    line = fail(
        PODRACER_POOL="local",
        PODRACER_STATE_DIR=f"{tmp_path}/file/state",
        PODRACER_RUN_DIR=str(tmp_path / "run"),
    )
    assert f"{tmp_path}/file/state" in line

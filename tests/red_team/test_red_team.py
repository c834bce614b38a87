"""Hostile users' code in its box comes back with nothing, and honest code does not notice it."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from podracer_core.box import limits as box
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments.processes import ChildOutput, PreprocessVecEnv
from podracer_core.errors import UserCodeFailed

CODE = str(Path(__file__).parent / "code")
pytestmark = pytest.mark.skipif(bool(box.missing()), reason="this machine lacks a part of the box")


@pytest.fixture(autouse=True)
def service(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process starts environments as a service does."""
    monkeypatch.setattr(ChildOutput, "is_kept", True)


@pytest.fixture
def short_folder() -> Iterator[str]:
    """A path of a socket is short."""
    with tempfile.TemporaryDirectory(prefix="red-") as folder:
        yield folder


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def _message_of(spec: EnvironmentSpec) -> str:
    with pytest.raises(UserCodeFailed) as caught:
        PreprocessVecEnv(spec, 1)
    return str(caught.value.message)


def test_the_red_team_comes_back_with_nothing(tmp_path, port, monkeypatch, short_folder):
    monkeypatch.setenv("PODRACER_S3_SECRET_KEY", "SECRET")
    monkeypatch.setenv("MY_TOKEN", "SECRET")
    secrets = [
        tmp_path / "tokens/pod",
        tmp_path / "tls/key.pem",
        tmp_path / "cache/others-code/victim/__init__.py",
    ]
    for file in secrets:
        file.parent.mkdir(parents=True)
        file.write_text("SECRET")
        file.chmod(0o600)
    own = tmp_path / "own.csv"
    own.write_text("a table")
    path, abstract = f"{short_folder}/evaluator.sock", f"\0podracer-red-team-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as hidden:
        for listening, address in ((named, path), (hidden, abstract)):
            listening.bind(address)
            listening.listen()
        kwargs = {
            "secrets": list(map(str, secrets)),
            "folders": [str(file.parent) for file in secrets] + [str(tmp_path), short_folder],
            "server": os.getpid(),
            "addresses": [f"127.0.0.1:{port}"],
            "socket_path": path,
            "abstract": abstract,
        }
        message = _message_of(
            EnvironmentSpec(
                entry_point="red_team:RedTeam",
                code_path=CODE,
                kwargs=kwargs,
                data={"own": str(own)},
            )
        )
    assert "raised ValueError: loot: []" in message, message
    assert [stat.S_IMODE(file.stat().st_mode) for file in secrets] == [0o600] * 3
    assert own.read_text() == "a table"
    assert not _left_over(str(own))


def _left_over(word: str) -> list[psutil.Process]:
    """What runs with this in its command line; a process that is about to end has a moment for
    it."""
    deadline = time.monotonic() + 60
    while True:
        found = [each for each in psutil.process_iter() if _is_named(each, word)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


def _is_named(process: psutil.Process, word: str) -> bool:
    try:
        return any(word in each for each in process.cmdline()[1:])
    except psutil.Error:
        return False


PARENT = """
import os, sys, torch
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.box import limits as box
from podracer_core.environments.processes import PreprocessVecEnv
spec = EnvironmentSpec(entry_point="red_team:Daemon", code_path=sys.argv[1], kwargs={"word": sys.argv[2]})
environment = PreprocessVecEnv(spec, 2, processes=2)
os.kill(os.getpid(), 9)
"""


def test_what_code_has_started_ends_even_if_its_service_is_killed(tmp_path):
    word = f"daemon-of-{tmp_path}"
    assert subprocess.run([sys.executable, "-c", PARENT, CODE, word], check=False).returncode == -9
    assert not _left_over(word)


def test_honest_code_does_not_notice_it(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("a table")
    spec = EnvironmentSpec(
        entry_point="red_team:Honest", code_path=CODE, data={"table": str(table)}
    )
    environment = PreprocessVecEnv(spec, 2, processes=2)
    try:
        environment.reset(torch.arange(2))
        assert environment.step(torch.zeros(2, dtype=torch.int64)).valid.all()
    finally:
        environment.close()


def test_code_that_is_a_package_opens_no_folder_beside_it(tmp_path):
    """To import it, its parent is on the import path: in a pod that is the cache."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    _, _, readable, _ = box.box_for(
        EnvironmentSpec(entry_point="package:A", code_path=str(package)), str(tmp_path)
    )
    assert {str(package), str(tmp_path)} & set(readable.split(os.pathsep)) == {str(package)}


def test_a_job_may_ask_for_the_network(port):
    kwargs: dict[str, Any] = {"port": port}
    refused = _message_of(
        EnvironmentSpec(entry_point="red_team:calls_a_port", code_path=CODE, kwargs=kwargs)
    )
    assert "`environment: {network: true}`" in refused
    allowed = EnvironmentSpec(
        entry_point="red_team:calls_a_port", code_path=CODE, kwargs=kwargs, network=True
    )
    assert "connected" in _message_of(allowed)

"""The state folder: made, locked, cleaned."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from podracer_client import processes
from podracer_client.local import LocalServices, ServiceOptions, StateFolder
from podracer_client.processes import RunFolder
from podracer_client.servers import Connection, ConnectionFile, find_connection
from podracer_core.errors import InvalidInput, NotFound, PreconditionFailed
from support.errors import raises


def test_it_is_made_private_with_its_parents(tmp_path):
    with StateFolder.open(tmp_path / "a" / "b") as state:
        assert state.path == tmp_path / "a" / "b"
        assert state.path.stat().st_mode & 0o777 == 0o700


def test_a_second_one_is_told_who_has_it(tmp_path):
    code = (
        "import sys; from pathlib import Path; from podracer_client.local import "
        "StateFolder\nstate = StateFolder.open(Path(sys.argv[1])); print('open', flush=True); "
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with raises(PreconditionFailed, "STATE_FOLDER_IN_USE", match=f"process {other.pid}"):
            StateFolder.open(tmp_path)
        other.kill()
    StateFolder.open(tmp_path).close()


def test_it_can_be_opened_again_after_it_was_closed(tmp_path):
    for _ in range(2):
        with StateFolder.open(tmp_path):
            pass


@pytest.mark.parametrize("where", ["file", "file/runs", "file/a/b"])
def test_a_place_that_cannot_be_written_leaves_nothing(tmp_path, where):
    (tmp_path / "file").write_text("")
    with raises(InvalidInput, "UNWRITABLE_FOLDER"):
        StateFolder.open(tmp_path / where)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_nothing_is_made_for_reading(tmp_path):
    with pytest.raises(NotFound):
        StateFolder.open(tmp_path / "runs", create=False)
    assert not (tmp_path / "runs").exists()


def test_the_connection_file_of_a_killed_launcher_is_removed(tmp_path):
    path = ConnectionFile("unix:///o", "unix:///l", "t", 1).write(tmp_path)
    with StateFolder.open(tmp_path):
        assert not path.exists()


def test_a_killed_launchers_run_folder_goes_when_the_next_one_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_LONGEST_PARENT_BYTES", 1000)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    killed = (
        "import os; from podracer_client import processes as module\n"
        "module._LONGEST_PARENT_BYTES = 1000; module.RunFolder(); os._exit(9)"
    )
    subprocess.run(
        [sys.executable, "-c", killed],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        timeout=60,
        check=False,
    )
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / "podracer-precious").mkdir()  # no lock in it: not ours
    with RunFolder() as living:
        for folder in tmp_path.iterdir():
            os.utime(folder, (0, 0))
        with RunFolder() as another:
            left = {path.name for path in tmp_path.iterdir()}
            assert left == {"podracer-precious", living.path.name, another.path.name}


def test_a_socket_in_a_run_folder_has_a_short_path(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with RunFolder() as folder:
        assert len(folder.socket("x" * 40)) < 100
        assert folder.path.stat().st_mode & 0o777 == 0o700
    assert not folder.path.exists()


def test_the_connection_file_is_private_and_is_found(tmp_path):
    token = tmp_path / "token"
    token.write_text("secret\n")
    path = ConnectionFile("127.0.0.1:1", "127.0.0.1:2", str(token), os.getpid()).write(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    found = find_connection(folder=tmp_path)
    assert (found.orchestrator, found.leaderboard, found.token()) == (
        "127.0.0.1:1",
        "127.0.0.1:2",
        "secret",
    )


def test_a_launcher_that_is_gone_is_no_server(tmp_path):
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        pass
    ConnectionFile("127.0.0.1:1", "127.0.0.1:2", "t", process.pid).write(tmp_path)
    with pytest.raises(NotFound, match="podracer up"):
        find_connection(folder=tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": "x"}', "\x00"])
def test_a_damaged_connection_file(tmp_path, text):
    (tmp_path / "connection.json").write_text(text)
    with pytest.raises(InvalidInput, match="a connection file"):
        find_connection(folder=tmp_path)


def test_the_environment_names_a_server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PODRACER_TOKEN_FILE", raising=False)
    monkeypatch.setenv("PODRACER_ORCHESTRATOR", "127.0.0.1:7")
    with raises(InvalidInput, "NO_TOKEN"):
        find_connection()
    monkeypatch.setenv("PODRACER_TOKEN", "secret")
    found: Connection = find_connection()
    assert (found.orchestrator, found.leaderboard, found.token()) == ("127.0.0.1:7", "", "secret")
    assert find_connection("127.0.0.1:8").orchestrator == "127.0.0.1:8"
    with pytest.raises(NotFound):
        find_connection(folder=tmp_path)  # a folder that is named wins over the environment


def test_the_services_get_addresses_tokens_and_no_client_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("PODRACER_TOKEN", "a client's")
    monkeypatch.setenv("PODRACER_LOG_LEVEL", "debug")
    with StateFolder.open(tmp_path) as state, RunFolder() as folder:
        services = LocalServices(state, folder, ServiceOptions("127.0.0.1:0", "", max_pods=3))
        environment = services.orchestrator._plan.environment
        assert environment["PODRACER_LISTEN"].startswith("127.0.0.1:")
        # it has to be found again after a restart
        assert not environment["PODRACER_LISTEN"].endswith(":0")
        assert environment["PODRACER_LEADERBOARD"] == folder.socket("leaderboard")
        assert environment["PODRACER_STORE"] == f"file://{tmp_path}/objects"
        assert environment["PODRACER_MAX_PODS"] == "3"
        assert environment["PODRACER_LOG_LEVEL"] == "debug"
        assert "PODRACER_TOKEN" not in environment
        assert sorted(path.name for path in state.tokens.iterdir()) == ["client", "control", "pod"]
        assert json.loads(json.dumps(dict(environment)))  # all text

"""The command line: fast, without torch, with one message and the right exit code for a deliberate
error."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from podracer.evaluator.v1 import evaluator_service_pb2
from podracer_client.__main__ import main
from podracer_client.command import exit_code, failure_text
from podracer_client.policies import write_pieces
from podracer_core.errors import (
    DataCorrupted,
    Fenced,
    FieldViolation,
    InvalidInput,
    NotFound,
    PodracerError,
    PreconditionFailed,
    Unauthenticated,
    Unavailable,
    UserCodeFailed,
)
from podracer_platform.telemetry import PrintableStream
from support.commands import run_here

COMMANDS = (
    *(
        "run",
        "up",
        "algorithms",
        "environments",
        "submit",
        "jobs",
        "job",
        "watch",
        "scale",
        "capacity",
        "cancel",
    ),
    *("context", "delete", "web", "agent"),
    *("leaderboard", "report", "export", "evaluate", "serve", "video", "init", "doctor", "demo"),
)


LONG = "a" * 300
# others may listen at the usual ports
ANYWHERE = ("--listen", "127.0.0.1:0", "--leaderboard-listen", "127.0.0.1:0")
"""Too long for the name of a file."""


@dataclass(frozen=True)
class Result:
    """What a command printed, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def podracer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    """Runs a command in this process, in the test's own folder."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("PODRACER_"):
            monkeypatch.delenv(name)

    def podracer(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["podracer", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return Result(int(end.value.code or 0), captured.out, captured.err)

    return podracer


def write_token(folder: Path) -> None:
    path = folder / "token"
    path.write_text("secret\n")
    path.chmod(0o600)


@pytest.mark.parametrize(
    ("arguments", "also_absent"),
    [
        (("--help",), ("grpc", "google.protobuf", "sqlalchemy")),
        (("algorithms", "ppo", "--json"), ()),
        (("environments", "--json"), ()),
        (("environments", "CartPole-v1", "--json"), ()),
    ],
    ids=" ".join,
)
def test_what_shows_names_imports_nothing_heavy(arguments, also_absent):
    heavy = {"torch", "numpy", "gymnasium", "mujoco", "pyarrow", "matplotlib", *also_absent}
    code = (
        "import sys\n"
        f"sys.argv = ['podracer', *{arguments}]\n"
        "from podracer_client.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        f"assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    for name in COMMANDS if arguments == ("--help",) else ():
        assert f" {name} " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "Usage"),
        (("fly",), "fly"),
        (("run",), "JOB.yaml"),
        (("run", "job.yaml", "--fast"), "--fast"),
        (("algorithms", "saac"), "unknown algorithm 'saac'; did you mean sac"),
        (("jobs",), "no server runs for the state folder runs; start one with `podracer up`"),
        (("jobs", "--dir", "elsewhere"), "`podracer up --dir elsewhere`"),
        (
            ("job", "Not A Name", "--orchestrator", "127.0.0.1:1", "--token-file", "token"),
            "not the name of a job",
        ),
        (("jobs", "--orchestrator", "nonsense", "--token-file", "token"), "address 'nonsense'"),
        (("jobs", "--orchestrator", "10.0.0.1:7700", "--token-file", "token"), "without TLS"),
        (("jobs", "--orchestrator", "127.0.0.1:1", "--token-file", "missing"), "missing"),
        (("jobs", "--orchestrator", "127.0.0.1:1"), "no token for 127.0.0.1:1"),
        (("evaluate", "missing"), "there is no checkpoint missing"),
        (("evaluate", "."), "no manifest.json"),
        (("evaluate", "token"), "expected a folder with a manifest.json"),
        (("export", "."), "no manifest.json"),
        (("video", "."), "no manifest.json"),
        (("video", ".", "-o", "x.avi"), "expected a name that ends with .mp4 or .gif"),
        (
            ("export", ".", "--output", "no/such/folder/policy.pt2"),
            "cannot write no/such/folder/policy.pt2",
        ),
        (("leaderboard", "j"), "no server runs"),
        (("report", LONG), "cannot write aaa"),
        (("export", "j", "--output", LONG), "cannot write aaa"),
        (("evaluate", LONG), "there is no checkpoint aaa"),
        (("serve", "missing"), "there is no checkpoint missing"),
        (("serve", "p=."), "no manifest.json"),
        (("serve", ".", "."), "policy is there twice; give each its own NAME="),
        (("serve", "p=.", "--ensemble", "2", "q=."), "--ensemble: expects exactly one job"),
        (("serve", "j@champion"), "no server runs"),
        (("serve", ".", "--listen", "0.0.0.0:7710"), "loopback"),
        (("up", "--dir", LONG, *ANYWHERE), "cannot write the state folder"),
        (("up", "--listen", "nonsense"), "address 'nonsense'"),
        (("up", "--listen", "0.0.0.0:7700"), "loopback"),
        (
            ("up", "--listen", "127.0.0.1:7705", "--leaderboard-listen", "127.0.0.1:7705"),
            "must differ",
        ),
    ],
)
def test_bad_usage_has_one_message_and_makes_nothing(arguments, expected, tmp_path, podracer):
    write_token(tmp_path)
    result = podracer(*arguments)
    assert result.returncode == 2, (result.stdout, result.stderr)
    assert expected in result.stderr or expected in result.stdout
    assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


@pytest.mark.parametrize("command", ["leaderboard", "report", "jobs"])
def test_a_server_that_is_named_is_not_replaced_by_the_folder(command, tmp_path, podracer):
    for service in ("leaderboard", "orchestrator"):
        (tmp_path / f"{service}.sqlite").touch()
    name = [] if command == "jobs" else ["j"]
    result = podracer(command, *name, "--orchestrator", "127.0.0.1:1", "--dir", str(tmp_path))
    assert (result.returncode, "no token for 127.0.0.1:1" in result.stderr) == (2, True), (
        result.stderr
    )


def test_a_board_at_rest_is_not_watched(tmp_path, podracer):
    (tmp_path / "leaderboard.sqlite").touch()
    result = podracer("leaderboard", "j", "--watch", "--dir", str(tmp_path))
    assert (result.returncode, "no server runs" in result.stderr) == (2, True), result.stderr


def test_a_taken_port(tmp_path, podracer):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = podracer("up", "--listen", address)
    assert result.returncode == 2
    begin, _, free = result.stderr.partition("; these are free: ")
    assert (
        begin
        == f"podracer: cannot listen at {address}: Address already in use by process {os.getpid()} "
        "(python)"
    )
    options = free.split()
    assert options[::2] == ["--listen", "--leaderboard-listen"]
    assert options[1] != options[3]
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_away_is_a_failure(tmp_path, podracer):
    write_token(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    result = podracer("cancel", "j", "--orchestrator", address, "--token-file", "token")
    assert result.returncode == 1
    assert result.stderr.startswith("podracer: ")
    assert address in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInput("x"), 2),
        (NotFound("x"), 2),
        (Unauthenticated("x"), 2),
        (PreconditionFailed("x"), 2),
        (Fenced("x"), 1),
        (Unavailable("x"), 1),
        (UserCodeFailed("x"), 1),
        (PodracerError("x"), 1),
    ],
)
def test_exit_codes(error, code):
    assert exit_code(error) == code


def test_no_output_controls_the_terminal(tmp_path):
    ended = run_here("token", "revoke", "anna", "--dir", "a\x1b[2J\x9bb", cwd=tmp_path)
    assert "was issued from a\\u001b[2J\\u009bb" in ended.stderr
    stream = PrintableStream(io.StringIO())
    stream.writelines(["a\tb\n", "\r"])
    assert stream.getvalue() == "a\tb\n\\u000d"


def test_failure_texts():
    violations = [FieldViolation("seed", "must be a number"), FieldViolation("name", "is bad")]
    assert failure_text(InvalidInput("name: is bad", violations=violations)) == (
        "podracer: name: is bad\n  seed: must be a number\n"
    )
    assert failure_text(UserCodeFailed("it raised", user_traceback="ValueError: 3\n")) == (
        "podracer: it raised\n\nValueError: 3\n"
    )


def pieces(data: bytes, sha256: str = "") -> list[evaluator_service_pb2.ExportPolicyResponse]:
    header = evaluator_service_pb2.ExportHeader(
        size_bytes=len(data), sha256=sha256 or hashlib.sha256(data).hexdigest()
    )
    return [
        evaluator_service_pb2.ExportPolicyResponse(header=header),
        *(
            evaluator_service_pb2.ExportPolicyResponse(data=data[start : start + 4])
            for start in range(0, len(data), 4)
        ),
    ]


def test_an_exported_policy_is_written_whole(tmp_path):
    output = tmp_path / "policy.pt2"
    output.write_text("an older one")
    write_pieces(pieces(b"0123456789"), output)
    assert output.read_bytes() == b"0123456789"
    assert [path.name for path in tmp_path.iterdir()] == ["policy.pt2"]


def test_a_damaged_policy_leaves_the_older_one(tmp_path):
    output = tmp_path / "policy.pt2"
    output.write_text("an older one")
    for damaged in (pieces(b"0123456789", "0" * 64), []):
        with pytest.raises(DataCorrupted):
            write_pieces(damaged, output)
    assert output.read_text() == "an older one"
    assert [path.name for path in tmp_path.iterdir()] == ["policy.pt2"]

"""`podracer doctor`: each probe alone, with a deadline; the exit code says whether something
required is missing."""

from __future__ import annotations

import socket
import threading

import pytest

from podracer_client.local import Finding, examine, machine
from support.commands import run_here

GOOD = Finding("memory", "16 GiB", required=True)
ABSENT = Finding("GPU", "", "no CUDA device is visible")
MISSING = Finding("torch", "", "pip install 'podracer-core[torch]'", required=True)


def test_findings_of_this_machine(tmp_path):
    found = {each.name: each for each in examine(tmp_path)}
    assert (
        found["Python"].state
        == found["Podracer"].state
        == found["disk"].state
        == found["torch"].state
        == "ok"
    )
    assert {
        "GPU",
        "cores",
        "memory",
        "mujoco",
        "av",
        "drawing MuJoCo",
        "Docker",
        "kubectl",
        "port 7700",
    } <= found.keys()


@pytest.mark.parametrize(("findings", "code"), [([GOOD, ABSENT], 0), ([GOOD, MISSING], 1)])
def test_the_exit_code(findings, code, monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "examine", lambda folder, store: findings)
    result = run_here("doctor", cwd=tmp_path)
    assert (result.returncode, len(result.lines)) == (code, 3)
    assert result.lines[1].split() == ["memory", "ok", "16", "GiB"]
    result = run_here("doctor", "--json", cwd=tmp_path)
    assert (result.returncode, result.events[0]["state"]) == (code, "ok")
    assert result.events[1]["advice"] == findings[1].advice


def test_a_probe_that_hangs_or_breaks_leaves_the_others(monkeypatch, tmp_path):
    over = threading.Event()

    def hang() -> list[Finding]:
        over.wait()
        return []

    def break_down() -> list[Finding]:
        raise RuntimeError("no such device")

    for name in (
        "_distributions",
        "_packages",
        "_rendering",
        "_programs",
        "_ports",
        "_running",
        "_contexts",
    ):
        monkeypatch.setattr(machine, name, lambda: [])
    monkeypatch.setattr(machine, "_torch", hang)
    monkeypatch.setattr(machine, "_python", break_down)
    found = {each.name: each for each in examine(tmp_path, deadline_s=0.2)}
    over.set()
    assert found["torch"] == Finding("torch", "", "no answer within 0.2 s", required=True)
    assert found["Python"].advice == "could not be examined: RuntimeError: no such device"


def test_torch_that_does_not_start(monkeypatch):
    monkeypatch.setattr(machine, "_TORCH", "raise ImportError('libcudart is missing')")
    (found,) = machine._torch()
    assert (found.state, "libcudart is missing" in found.advice) == ("missing", True)


def test_a_taken_port_and_a_bad_folder_and_store(monkeypatch, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(machine, "_PORTS", {port: "podracer up"})
        (found,) = machine._ports()
    assert (found.state, found.advice.startswith("podracer up: in use by process")) == (
        "absent",
        True,
    )
    (tmp_path / "file").touch()
    disk = {each.name: each for each in machine._machine(tmp_path / "file" / "runs")}["disk"]
    assert (disk.state, "choose another --dir" in disk.advice) == ("missing", True)
    (store,) = machine._store(f"file://{tmp_path}/nowhere")
    assert (store.state, "nowhere" in store.advice) == ("missing", True)
    (store,) = machine._store(f"file://{tmp_path}")
    assert store.state == "ok"

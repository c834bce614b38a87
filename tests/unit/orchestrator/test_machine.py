"""Looking at the machine."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pynvml
import pytest

from podracer_orchestrator.pool import Gpu, Gpus, Machine, machine


@pytest.fixture
def busy():
    """A process in a session of its own, with a child, that computes."""
    program = (
        "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'while True: "
        "pass'])\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, start_new_session=True
    ) as process:
        yield process.pid
        os.killpg(process.pid, signal.SIGKILL)


def test_a_pod_uses_what_all_processes_of_its_sessions_do(busy):
    looker = Machine()
    first = looker.read({"pod": [busy], "gone": [2**22 - 1]}, 100.0)
    seconds = itertools.count(101)
    deadline = time.monotonic() + 10
    while True:
        second = looker.read({"pod": [busy], "gone": [2**22 - 1]}, next(seconds))
        if second.pods["pod"].cores > 0.0 and second.pods["pod"].memory_bytes > 4 << 20:
            break
        assert time.monotonic() < deadline, "its child does not compute, or is too small for Python"
        time.sleep(0.02)
    assert first.pods["pod"].cores == 0.0
    assert second.pods["gone"].memory_bytes == 0
    assert 0 < second.available_bytes <= second.memory_bytes
    assert second.cores >= 1


def test_a_containers_limit_counts(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(str(1 << 30))
    (tmp_path / "memory.current").write_text(str(600 << 20))
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {100 << 20}\n")
    monkeypatch.setattr(
        machine, "_CGROUPS", ((tmp_path / "memory.max", tmp_path / "memory.current"),)
    )
    reading = Machine().read({}, 0.0)
    assert (reading.memory_bytes, reading.available_bytes) == (1 << 30, (1024 - 500) << 20)
    (tmp_path / "memory.max").write_text("max")
    assert Machine().read({}, 0.0).memory_bytes > 1 << 30


def test_no_library_no_gpu_said_once(monkeypatch, caplog):
    def fail():
        raise pynvml.NVMLError_LibraryNotFound

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    caplog.set_level(logging.INFO)
    gpus = Gpus()
    assert gpus.read() == gpus.read() == ()
    assert len([record for record in caplog.records if "no GPU" in record.message]) == 1


@pytest.fixture
def two_gpus(monkeypatch):
    """Two devices, the second of which another program uses."""
    used = [2, 50]
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: f"GPU-{'ab'[handle]}")
    monkeypatch.setattr(
        pynvml,
        "nvmlDeviceGetMemoryInfo",
        lambda handle: SimpleNamespace(used=used[handle], total=100),
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        (None, "ab"),
        ("1", "b"),
        ("1,0", "ba"),
        ("GPU-b", "b"),
        ("", ""),
        ("7,0", ""),
        ("0,-1,1", "a"),
    ],
)
def test_the_gpus_that_we_may_hand_on(two_gpus, monkeypatch, setting, found):
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert [gpu.uuid for gpu in Gpus().read()] == [f"GPU-{letter}" for letter in found]


def test_a_library_that_breaks_later_takes_no_gpu_away(two_gpus, monkeypatch):
    gpus = Gpus()
    assert gpus.read() == (Gpu("GPU-a", False), Gpu("GPU-b", True))

    def fail(handle):
        raise pynvml.NVMLError_GpuIsLost

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", fail)
    assert len(gpus.read()) == 2

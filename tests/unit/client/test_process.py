"""Processes under supervision: small Python children."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from queue import SimpleQueue

import psutil
import pytest

from podracer_client.processes import ManagedProcess, ProcessNews, ProcessPlan
from podracer_core.errors import DeadlineExpired, Unavailable
from support.errors import raises
from support.processes import wait_until

SERVE = "import time; print('listening on unix:///x', flush=True); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SERVE

Start = Callable[..., tuple[ManagedProcess, "SimpleQueue[ProcessNews]"]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[ManagedProcess] = []

    def start(code: str, restarts: int = 10) -> tuple[ManagedProcess, SimpleQueue[ProcessNews]]:
        news: SimpleQueue[ProcessNews] = SimpleQueue()
        plan = ProcessPlan(
            "child",
            (sys.executable, "-S", "-c", code),
            dict(os.environ),
            tmp_path / "child.log",
            restarts,
        )
        process = ManagedProcess(plan, news.put)
        made.append(process)
        process.start()
        return process, news

    yield start
    for process in made:
        process.stop(0.2)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


def test_the_address_is_what_the_child_says(start):
    process, _ = start(SERVE)
    assert process.wait_ready(10) == "unix:///x"


def test_a_child_has_a_session_of_its_own_and_knows_its_parent(start, tmp_path):
    code = (
        "import os; print(os.getsid(0) == os.getpid(), os.environ['PODRACER_PARENT_PID'], "
        "flush=True); " + SERVE
    )
    process, _ = start(code)
    process.wait_ready(10)
    assert (tmp_path / "child.log").read_text() == f"True {os.getpid()}\n"


def test_a_killed_child_is_started_again(start):
    process, news = start(SERVE)
    process.wait_ready(10)
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    message = news.get(timeout=5)
    assert "SIGKILL" in message.message
    assert not message.fatal
    deadline = time.monotonic() + 5
    while process.pid in (None, first) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.pid not in (None, first)


def test_a_child_that_cannot_start_is_given_up_with_its_last_words(start):
    process, news = start("import sys; sys.exit('the port is taken')")
    with raises(Unavailable, "PROCESS_FAILED", match=r"\(exit code 1\)"):
        process.wait_ready(10)
    assert news.get(timeout=5).fatal


def test_a_child_that_dies_again_and_again_is_given_up(start):
    process, news = start("print('listening on x', flush=True); raise SystemExit(3)", restarts=1)
    assert not news.get(timeout=5).fatal
    last = news.get(timeout=5)
    assert last.fatal
    assert "ended too often (exit code 3)" in last.message
    assert process.pid is None


def test_a_program_that_is_not_there(tmp_path):
    process = ManagedProcess(ProcessPlan("child", ("/no/such/program",), {}, tmp_path / "log"))
    process.start()
    with raises(Unavailable, "PROCESS_FAILED", match="file"):
        process.wait_ready(10)


def test_a_log_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    log = tmp_path / "file" / "log"
    process = ManagedProcess(ProcessPlan("child", (sys.executable,), {}, log))
    process.start()
    with raises(Unavailable, "PROCESS_FAILED", match=str(log.parent)):
        process.wait_ready(10)


def test_a_large_log_is_put_aside_at_the_next_start(start, tmp_path):
    with (tmp_path / "child.log").open("wb") as log:
        log.truncate((16 << 20) + 1)
    process, _ = start("print('new', flush=True); " + SERVE)
    process.wait_ready(10)
    assert (tmp_path / "child.log").read_text() == "new\n"
    assert (tmp_path / "child.log.1").stat().st_size == (16 << 20) + 1


def test_what_a_child_leaves_behind_ends_with_it(start, tmp_path):
    code = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    _, news = start(code)
    assert news.get(timeout=10).fatal
    left = int((tmp_path / "child.log").read_text())
    wait_until(lambda: gone(left) or psutil.Process(left).status() == "zombie", 10, "its end")


def test_a_silent_child_misses_its_deadline(start):
    process, _ = start("import time; time.sleep(60)")
    with pytest.raises(DeadlineExpired, match="child"):
        process.wait_ready(0.2)


def test_a_slow_child_gets_longer_while_it_computes(start, tmp_path, monkeypatch):
    """It is ready once the message has come."""
    used = count(0.02, 0.011)
    monkeypatch.setattr(ManagedProcess, "_processor_seconds", lambda self: next(used))
    go = tmp_path / "go"
    process, news = start(
        f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n{SERVE}"
    )
    with ThreadPoolExecutor() as threads:
        address = threads.submit(process.wait_ready, 1.0)
        message = news.get(timeout=60)
        go.touch()
        assert address.result() == "unix:///x"
    assert (message.message[:30], message.fatal) == ("the child is still starting: i", False)


def test_stop_ends_it_without_news(start):
    process, news = start(SERVE)
    process.wait_ready(10)
    pid = process.pid
    assert pid is not None
    process.stop(5)
    assert gone(pid)
    assert news.empty()


def test_stop_kills_what_does_not_listen(start):
    process, _ = start(STUBBORN)
    process.wait_ready(10)
    pid = process.pid
    assert pid is not None
    process.stop(0.3)
    assert gone(pid)


def test_stop_before_it_has_started(start):
    process, news = start(SERVE)
    process.stop(5)
    assert process.join(0)
    assert news.empty()

"""Real processes: signals drain a server, and a child dies with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from podracer_platform.rpc import open_channel

pytestmark = pytest.mark.processes

SERVER = """
import asyncio, signal, sys
from pathlib import Path
from podracer_platform.service import exit_with_parent_if_asked, stop_event_on_signals
from podracer_platform.rpc import create_aio_server, create_server
from podracer_platform.rpc import Authorizer
from podracer_platform.rpc import TokenFiles

exit_with_parent_if_asked()
authorizer = Authorizer({}, TokenFiles(Path(sys.argv[1])))
if sys.argv[2] == "aio":
    async def main():
        rpc_server = await create_aio_server("127.0.0.1:0", [], authorizer)
        print(rpc_server.address, flush=True)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await rpc_server.start()
        await stop.wait()
        await rpc_server.drain(1.0)
    asyncio.run(main())
else:
    rpc_server = create_server("127.0.0.1:0", [], authorizer)
    print(rpc_server.address, flush=True)
    stop = stop_event_on_signals()
    rpc_server.start()
    stop.wait()
    rpc_server.drain(1.0)
print("drained", flush=True)
"""

PARENT = """
import os, subprocess, sys, time
environment = dict(os.environ, PODRACER_PARENT_PID=str(os.getpid()))
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], *sys.argv[2:]], env=environment, stdout=subprocess.PIPE)
print(child.pid, child.stdout.readline().decode().strip(), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["sync", "aio"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(kind, number, tmp_path):
    (tmp_path / "pod").write_text("pod-token\n")
    command = [sys.executable, "-c", SERVER, str(tmp_path), kind]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with open_channel(address, "pod-token") as channel:
            health = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert health(b"", wait_for_ready=True) == b"\x08\x01"  # SERVING
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    assert (output, process.returncode) == ("drained\n", 0), errors


def test_child_dies_with_its_killed_parent(tmp_path):
    (tmp_path / "pod").write_text("pod-token\n")
    command = [sys.executable, "-c", PARENT, SERVER, str(tmp_path), "sync"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid_text, address = parent.stdout.readline().split()
        pid = int(pid_text)
        assert address.startswith("127.0.0.1:")
        parent.kill()
    deadline = time.monotonic() + 60
    while _runs(pid):
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.02)


def test_child_whose_parent_has_gone_already_exits(tmp_path):
    environment = dict(os.environ, PODRACER_PARENT_PID="1")
    if os.getpid() == 1:
        pytest.skip("we are process 1")
    command = [sys.executable, "-c", SERVER, str(tmp_path), "sync"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "the parent process 1 has gone" in done.stderr


def _runs(pid: int) -> bool:
    """Whether the process lives; a zombie that its new parent has not reaped yet does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return status != "Z"

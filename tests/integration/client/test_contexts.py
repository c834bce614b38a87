"""Contexts: servers in a cluster, by a kubectl that is played."""

from __future__ import annotations

import base64
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from podracer.orchestrator.v1 import job_pb2
from podracer_client import Client
from podracer_client.secrets import create_secrets
from podracer_core.errors import InvalidInput, PodracerError, Unavailable
from podracer_platform.rpc import TlsFolder
from support.commands import run_here
from support.errors import raises
from support.processes import wait_until
from tests.integration.client.conftest import ControlPlane, start_server

KUBECTL = """#!{python}
import os, pathlib, socket, sys, threading
folder = pathlib.Path({folder!r})
words = sys.argv[1:]
with (folder / "calls").open("a") as calls:
    calls.write(" ".join(words) + "\\n")
if words == ["config", "current-context"]:
    print("kind-test")
elif "get" in words:
    if "elsewhere" in words:
        sys.exit('Error from server (NotFound): secrets "podracer-tokens-client" not found')
    print((folder / "secrets.json").read_text())
else:
    local, remote = words[-1].split(":")
    assert remote == "grpc", words
    target = (folder / words[-2].removeprefix("service/")).read_text().rpartition(":")
    listener = socket.create_server(("127.0.0.1", int(local)))
    (folder / f"pid-{{os.getpid()}}").touch()
    print(f"Forwarding from 127.0.0.1:{{local}} -> 50051", flush=True)

    def pump(source, sink):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.close()

    while True:
        near, _ = listener.accept()
        print(f"Handling connection for {{local}}", flush=True)
        far = socket.create_connection((target[0], int(target[2])))
        for ends in ((near, far), (far, near)):
            threading.Thread(target=pump, args=ends, daemon=True).start()
"""


@pytest.fixture
def cluster(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The folder of the kubectl that is found; the server behind it speaks TLS, under the names of
    both services."""
    secrets, folder = tmp_path / "secrets", tmp_path / "bin"
    create_secrets(secrets, ["leaderboard.podracer"])
    folder.mkdir()
    server = start_server(
        control_plane, secrets / "tokens", TlsFolder(secrets / "tls" / "orchestrator")
    )
    for service in ("orchestrator", "leaderboard"):
        (folder / f"podracer-{service}").write_text(server.address)
    names = {"ca.crt": "ca.pem", "tls.crt": "cert.pem", "tls.key": "key.pem"}
    data = {
        "podracer-tokens-client": {"client": secrets / "tokens" / "client"},
        "podracer-tls-client": {
            key: secrets / "tls" / "client" / file for key, file in names.items()
        },
    }
    items = [
        {
            "metadata": {"name": name},
            "data": {key: base64.b64encode(path.read_bytes()).decode() for key, path in of.items()},
        }
        for name, of in data.items()
    ]
    (folder / "secrets.json").write_text(json.dumps({"kind": "List", "items": items}))
    (folder / "kubectl").write_text(KUBECTL.format(python=sys.executable, folder=str(folder)))
    (folder / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield folder
    server.drain(0)


@pytest.fixture
def podracer(cluster: Path, tmp_path: Path) -> Callable[..., str]:
    """Runs a command that has to succeed; what it prints."""

    def run(*arguments: str, **variables: str) -> str:
        result = run_here(*arguments, cwd=tmp_path, **variables)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


def forwards(cluster: Path) -> list[psutil.Process]:
    """The kubectl processes that forward ports now."""
    pids = [int(path.name.removeprefix("pid-")) for path in cluster.glob("pid-*")]
    found = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def test_one_command_and_every_other_goes_to_the_cluster(
    cluster, control_plane, podracer, tmp_path
):
    control_plane.add(job_pb2.JobSpec(display_name="cartpole"))
    assert "the namespace podracer of kind-test, used from now on" in podracer(
        "context", "add", "lab", "--kubernetes"
    )
    kept = tmp_path / "config" / "podracer" / "contexts.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "cartpole-0" in podracer("jobs", "--filter", "state=RUNNING")
    assert control_plane.filters == {"state=RUNNING"}
    assert forwards(cluster) == []
    calls = (cluster / "calls").read_text().splitlines()
    assert all(call.startswith("--context kind-test --namespace podracer ") for call in calls[1:])
    assert "a0001" in podracer("leaderboard", "cartpole-0")

    podracer(
        "context",
        "add",
        "other",
        "--kubernetes",
        "--namespace",
        "elsewhere",
        "--kube-context",
        "prod",
    )
    listed = [line.split() for line in podracer("context", "list").splitlines()[1:]]
    assert listed == [["lab", "podracer", "kind-test"], ["*", "other", "elsewhere", "prod"]]
    for arguments, variables in ((["--context", "lab"], {}), ([], {"PODRACER_CONTEXT": "lab"})):
        assert "cartpole-0" in podracer("jobs", *arguments, **variables)
    refused = run_here("jobs", cwd=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr == (
        "podracer: cannot read a client's Secrets in the namespace elsewhere of prod: Error from "
        "server (NotFound): "
        'secrets "podracer-tokens-client" not found\n'
    )
    podracer("context", "use", "lab")
    assert "cartpole-0" in podracer("jobs")
    podracer("context", "remove", "lab")
    assert "no server runs" in run_here("jobs", cwd=tmp_path).stderr
    unknown = run_here("jobs", "--context", "lab", cwd=tmp_path)
    assert unknown.returncode == 2
    assert "there is no context lab; known are other" in unknown.stderr


def test_a_forward_that_ends_is_started_again_and_none_outlives_its_command(
    cluster, podracer, tmp_path
):
    podracer("context", "add", "lab", "--kubernetes")
    with Client.connect(context="lab") as client:
        assert client.jobs() == []
        address = client.connection.orchestrator
        before = forwards(cluster)
        for process in before:
            process.kill()

        def answers() -> bool:
            try:
                return client.jobs() == []
            except Unavailable:
                return False

        wait_until(answers, 60, "an answer through a new forward")
        assert client.connection.orchestrator == address
        assert client.leaderboard("projects/default/leaderboards/j").candidates
        assert not {process.pid for process in before} & {
            process.pid for process in forwards(cluster)
        }
    assert forwards(cluster) == []

    script = (
        "from podracer_client import Client; Client.connect(context='lab').jobs(); "
        "print('up', flush=True); input()"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert command.stdout is not None and command.stdin is not None
    assert command.stdout.readline() == "up\n"
    assert len(forwards(cluster)) == 2
    command.send_signal(signal.SIGKILL)
    command.wait(60)
    command.stdout.close()
    command.stdin.close()
    wait_until(lambda: not forwards(cluster), 60, "the end of its forwards")


def test_without_kubectl_or_with_a_broken_file_there_is_one_message(
    podracer, tmp_path, monkeypatch
):
    podracer("context", "add", "lab", "--kubernetes")
    monkeypatch.setenv("PATH", str(tmp_path))
    with raises(InvalidInput, "NO_KUBECTL"):
        Client.connect(context="lab")
    (tmp_path / "config" / "podracer" / "contexts.json").write_text("{")
    with pytest.raises(PodracerError, match="`podracer context`"):
        Client.connect(context="lab")


def test_servers_at_addresses_go_by_a_name(cluster, control_plane, podracer, tmp_path):
    control_plane.add(job_pb2.JobSpec(display_name="cartpole"))
    orchestrator, leaderboard = (
        (cluster / f"podracer-{name}").read_text() for name in ("orchestrator", "leaderboard")
    )
    token, tls = tmp_path / "secrets" / "tokens" / "client", tmp_path / "secrets" / "tls" / "client"
    servers = [
        "--address",
        orchestrator,
        "--leaderboard",
        leaderboard,
        "--token-file",
        str(token),
        "--tls",
        str(tls),
    ]
    podracer("context", "add", "other", "--kubernetes", "--namespace", "elsewhere")
    assert f"lab: {orchestrator}, used from now on" in podracer("context", "set", "lab", *servers)
    kept = (tmp_path / "config" / "podracer" / "contexts.json").read_text()
    assert str(token) in kept
    assert token.read_text().split()[0] not in kept
    assert "cartpole-0" in podracer("jobs")
    assert "a0001" in podracer("leaderboard", "cartpole-0")
    assert ["*", "lab", orchestrator] in [
        line.split() for line in podracer("context", "list").splitlines()
    ]
    podracer("context", "use", "other")
    assert "cartpole-0" in podracer("jobs", PODRACER_CONTEXT="lab")
    assert "cartpole-0" in podracer("jobs", "--context", "lab", PODRACER_CONTEXT="other")
    given = ["--orchestrator", orchestrator, "--token-file", str(token), "--tls", str(tls)]
    assert "cartpole-0" in podracer("jobs", *given, PODRACER_CONTEXT="other")
    assert forwards(cluster) == []
    missing = run_here(
        "context", "set", "bad", "--address", "host:1", "--token-file", "nowhere", cwd=tmp_path
    )
    assert missing.returncode == 2 and "nowhere" in missing.stderr

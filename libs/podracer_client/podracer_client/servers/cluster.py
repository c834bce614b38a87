"""Servers in a cluster, through kubectl with the user's rights: it reads Secrets and forwards
ports."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from podracer_client.processes.ports import FixedAddress
from podracer_client.processes.process import ManagedProcess, ProcessPlan
from podracer_client.servers.connection import Connection, Place
from podracer_core.errors import InvalidInput, Unavailable
from podracer_platform.rpc.tls import TlsMaterial

TOKENS, CERTIFICATES = "podracer-tokens-client", "podracer-tls-client"
_READY_TIMEOUT_S = 90.0
"""kubectl itself waits a minute for a pod that is starting."""
_STOP_S = 2.0
_END_WITH_PARENT = (
    "import os, sys; from podracer_platform.service.lifetime import exit_with_parent_if_asked; "
    "exit_with_parent_if_asked(); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


def connect(place: Place) -> Connection:
    """Connect to the servers of a namespace, until the connection is closed. The key is held in
    memory only.

    Raises InvalidInput without kubectl, Unavailable with kubectl's message if it is refused or
    finds nothing."""
    if shutil.which("kubectl") is None:
        raise InvalidInput(
            "kubectl is not on PATH: a cluster is reached by it", reason="NO_KUBECTL"
        )
    context = ["--context", place.kube_context] if place.kube_context else []
    kubectl = ["kubectl", *context, "--namespace", place.namespace]
    secrets = _read_secrets(kubectl, place)
    token = _entry(secrets, TOKENS, "client").decode().split()[0]
    tls = TlsMaterial(
        *(_entry(secrets, CERTIFICATES, key) for key in ("ca.crt", "tls.crt", "tls.key"))
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="podracer-kubectl-")))
        forwards = [
            _forward(kubectl, service, folder, stack) for service in ("orchestrator", "leaderboard")
        ]
        for process, _ in forwards:
            process.wait_ready(_READY_TIMEOUT_S)
        (_, orchestrator), (_, leaderboard) = forwards
        return Connection(orchestrator, leaderboard, lambda: token, tls, stack.pop_all().close)


def current_kube_context() -> str:
    """kubectl's current context; empty if it has none, as in a pod."""
    if shutil.which("kubectl") is None:
        return ""
    command = ["kubectl", "config", "current-context"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _read_secrets(kubectl: Sequence[str], place: Place) -> Mapping[str, Mapping[str, str]]:
    command = [
        *kubectl,
        "--request-timeout",
        "30s",
        "get",
        "secret",
        TOKENS,
        CERTIFICATES,
        "--output",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        where = f" of {place.kube_context}" if place.kube_context else ""
        message = (
            f"cannot read a client's Secrets in the namespace {place.namespace}{where}: "
            f"{done.stderr.strip()}"
        )
        raise Unavailable(message, reason="KUBECTL_FAILED")
    return {
        item["metadata"]["name"]: item.get("data", {}) for item in json.loads(done.stdout)["items"]
    }


def _entry(secrets: Mapping[str, Mapping[str, str]], name: str, key: str) -> bytes:
    content = base64.b64decode(secrets[name].get(key, ""))
    if not content.strip():
        raise InvalidInput(f"the Secret {name} holds no {key}", reason="BAD_SECRET")
    return content


def _forward(
    kubectl: Sequence[str], service: str, folder: Path, stack: ExitStack
) -> tuple[ManagedProcess, str]:
    """Forward a local port to a service until `stack` ends it; returns the process and the port's
    address.

    If kubectl ends, because its pod or the API server is gone, it is started again with the same
    port."""
    fixed = stack.enter_context(closing(FixedAddress("127.0.0.1:0")))
    port = fixed.address.rpartition(":")[2]
    command = [
        *kubectl,
        "port-forward",
        "--address",
        "127.0.0.1",
        f"service/podracer-{service}",
        f"{port}:grpc",
    ]
    plan = ProcessPlan(
        name=f"kubectl port-forward to the {service}",
        command=(sys.executable, "-P", "-c", _END_WITH_PARENT, *command),
        environment=os.environ,
        log=folder / service,
        restarts=sys.maxsize,
        log_lasts=False,
        ready="Forwarding from ",
    )
    process = ManagedProcess(plan)
    process.start()
    stack.callback(process.stop, _STOP_S)
    return process, fixed.address

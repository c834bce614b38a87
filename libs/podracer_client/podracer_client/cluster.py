"""Servers in a cluster, reached by kubectl with its user's rights: it reads Secrets and forwards ports."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from podracer_client.connection import Connection
from podracer_client.contexts import ClusterPlace
from podracer_client.local.ports import FixedAddress
from podracer_client.local.process import ManagedProcess, ProcessPlan
from podracer_core.errors import InvalidInput, Unavailable
from podracer_core.rpc.tls import TlsMaterial

TOKENS, CERTIFICATES = "podracer-tokens-client", "podracer-tls-client"
_READY_TIMEOUT_S = 90.0
"""kubectl itself waits a minute for a pod that is starting."""
_STOP_S = 2.0
_END_WITH_PARENT = (
    "import os, sys; from podracer_core.lifetime import exit_with_parent_if_asked; exit_with_parent_if_asked(); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


def connect(place: ClusterPlace) -> Connection:
    """The servers of a namespace, reachable until the connection is closed; keys are held in memory only.

    A forward that ends, as its pod or the API server is gone, is started again at the same local port.
    Raises InvalidInput without kubectl, Unavailable with kubectl's words where it is refused or finds nothing.
    """
    if shutil.which("kubectl") is None:
        message = "kubectl is not on PATH: a context of a cluster needs it, and the rights that it has there"
        raise InvalidInput(message, reason="NO_KUBECTL")
    context = ["--context", place.kube_context] if place.kube_context else []
    kubectl = ["kubectl", *context, "--namespace", place.namespace]
    secrets = _read_secrets(kubectl, place)
    token, authority, certificate, key = (
        _entry(secrets, *where)
        for where in (
            (TOKENS, "client"),
            (CERTIFICATES, "ca.crt"),
            (CERTIFICATES, "tls.crt"),
            (CERTIFICATES, "tls.key"),
        )
    )
    word = token.decode().split()[0]
    with ExitStack() as stack:
        log_folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="podracer-kubectl-")))
        ready = [_forward(kubectl, service, log_folder, stack) for service in ("orchestrator", "leaderboard")]
        addresses = []
        for process, address in ready:
            process.wait_ready(_READY_TIMEOUT_S)
            addresses.append(address)
        return Connection(*addresses, lambda: word, TlsMaterial(authority, certificate, key), stack.pop_all().close)


def current_kube_context() -> str:
    """What kubectl uses now; empty where it has none, as in a pod."""
    if shutil.which("kubectl") is None:
        return ""
    command = ["kubectl", "config", "current-context"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _read_secrets(kubectl: Sequence[str], place: ClusterPlace) -> Mapping[str, Mapping[str, str]]:
    command = [*kubectl, "--request-timeout", "30s", "get", "secret", TOKENS, CERTIFICATES, "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        where = f" of {place.kube_context}" if place.kube_context else ""
        words = "; ".join(line for line in done.stderr.splitlines() if line)
        message = f"cannot read a client's Secrets in the namespace {place.namespace}{where}: {words}"
        raise Unavailable(message, reason="KUBECTL_FAILED")
    return {item["metadata"]["name"]: item.get("data", {}) for item in json.loads(done.stdout)["items"]}


def _entry(secrets: Mapping[str, Mapping[str, str]], name: str, key: str) -> bytes:
    try:
        return base64.b64decode(secrets[name][key])
    except (KeyError, ValueError) as error:
        raise InvalidInput(f"the Secret {name} holds no {key}", reason="BAD_SECRET") from error


def _forward(kubectl: Sequence[str], service: str, log_folder: Path, stack: ExitStack) -> tuple[ManagedProcess, str]:
    """Start to forward a port of this machine, which stays the same, to a service; ended by `stack`."""
    fixed = FixedAddress("127.0.0.1:0")
    port = fixed.address.rpartition(":")[2]
    command = [*kubectl, "port-forward", "--address", "127.0.0.1", f"service/podracer-{service}", f"{port}:grpc"]
    plan = ProcessPlan(
        name=f"kubectl port-forward to the {service}",
        command=(sys.executable, "-P", "-c", _END_WITH_PARENT, *command),
        environment=os.environ,
        log=log_folder / service,
        restarts=sys.maxsize,
        log_lasts=False,
        ready="Forwarding from ",
    )
    process = ManagedProcess(plan)
    process.start()
    stack.callback(process.stop, _STOP_S)
    stack.callback(fixed.close)
    return process, fixed.address

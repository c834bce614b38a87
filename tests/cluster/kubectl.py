"""kubectl as a test calls it: JSON comes back as objects, and every call has a deadline."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from support import processes


def wait_until(condition: Callable[[], Any], limit_s: float, what: str) -> Any:
    """The first true answer; a question is a process of kubectl, so not too often."""
    return processes.wait_until(condition, limit_s, what, every_s=0.5)


class Kubectl:
    """Calls in one namespace of the cluster that KUBECONFIG names."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def __call__(self, *words: str, data: str | None = None, timeout_s: float = 120.0) -> str:
        """What it prints. Fails the test where kubectl fails."""
        done = self.attempt(*words, data=data, timeout_s=timeout_s)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr.decode()[-2000:]}"
        return done.stdout.decode()

    def attempt(
        self, *words: str, data: str | None = None, timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[bytes]:
        """The same, whatever comes of it."""
        command = ["kubectl", "--namespace", self.namespace, *words]
        content = None if data is None else data.encode()
        return subprocess.run(
            command, input=content, capture_output=True, timeout=timeout_s, check=False
        )

    def get(self, *words: str) -> Any:
        """An object, or the items of a list."""
        found = json.loads(self("get", *words, "--output", "json"))
        return found["items"] if found["kind"].endswith("List") else found

    def apply(self, *objects: dict[str, Any]) -> None:
        """Make them, or change them."""
        self("apply", "-f", "-", data="\n".join(json.dumps(each) for each in objects))

    def python(self, pod: str, container: str, program: str, *arguments: str) -> bytes:
        """Run a Python program in a container; its standard output."""
        done = self.attempt(
            "exec", pod, "--container", container, "--", "python", "-c", program, *arguments
        )
        assert done.returncode == 0, f"{pod}, {container}: {done.stderr.decode()[-2000:]}"
        return done.stdout

    @contextmanager
    def forward(self, target: str, port: int) -> Iterator[str]:
        """The local address at which a port of `service/…` or `pod/…` is reached meanwhile."""
        command = ["kubectl", "--namespace", self.namespace, "port-forward", target, f":{port}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()  # Forwarding from 127.0.0.1:38415 -> 9000
                yield line.split()[2]
            finally:
                process.terminate()

    def kill_process(
        self, component: str, container: str, module: str, only: str = "", limit_s: float = 60.0
    ) -> None:
        """kill -9 of `python -m module` in the first pod of a component that has it, or in the pod
        `only`; its pods share their processes."""

        def killed() -> bool:
            for pod in self.pods(component):
                if only not in ("", pod["metadata"]["name"]):
                    continue
                words = (
                    "exec",
                    pod["metadata"]["name"],
                    "--container",
                    container,
                    "--",
                    "python",
                    "-c",
                    _KILL,
                    module,
                )
                # 137: its own container was faster to end
                if self.attempt(*words).returncode in (0, 137):
                    return True
            return False

        wait_until(killed, limit_s, f"a process {module}")

    def pods(self, component: str) -> list[dict[str, Any]]:
        """Those of a component that run and are not on their way out."""
        selector = f"app.kubernetes.io/component={component}"
        return [
            pod
            for pod in self.get("pods", "--selector", selector)
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]

    def wait_ready(self, *names: str, limit_s: float = 180.0) -> None:
        """Until every StatefulSet or Deployment has its new pods, ready."""
        for name in names:
            self("rollout", "status", name, f"--timeout={limit_s:.0f}s", timeout_s=limit_s + 30)

    def wait_gone(self, kind: str, name: str, limit_s: float = 180.0) -> None:
        wait_until(
            lambda: self.attempt("get", kind, name).returncode != 0, limit_s, f"{kind} {name} to go"
        )


_KILL = """
import os, signal, sys
from pathlib import Path
own = os.getpid()
for folder in Path("/proc").glob("[0-9]*"):
    try:
        words = (folder / "cmdline").read_bytes().split(b"\\0")
    except OSError:
        continue
    if int(folder.name) != own and sys.argv[1].encode() in words:
        os.kill(int(folder.name), signal.SIGKILL)
        break
else:
    sys.exit(f"no process {sys.argv[1]}")
"""

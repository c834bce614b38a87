"""A kubelet that runs the containers of pods as processes of this machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from support.kubernetes_cluster import container_status, ended
from support.kubernetes_store import Item, now

_REFERENCE = re.compile(r"\$\((\w+)\)")
_TAIL = 1500


@dataclass
class _Pod:
    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    told_to_end: bool = False


class Processes:
    """Each container is `python -m podracer_<its name>`; emptyDirs are folders of the pod's own.

    A port of 0.0.0.0 is one of the pod's address, and so is that of metrics on its loopback: pods
    have networks of their own."""

    def __init__(self) -> None:
        self._pods: dict[str, _Pod] = {}

    def start(self, pod: Item) -> None:
        uid = pod["metadata"]["uid"]
        if uid in self._pods:
            return
        # short: unix sockets live there
        known = self._pods[uid] = _Pod(Path(tempfile.mkdtemp(prefix="kp-")))
        volumes = {each["name"] for each in pod["spec"].get("volumes", []) if "emptyDir" in each}
        for each in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            mounts = {
                m["mountPath"]: known.folder / m["name"] / m.get("subPath", "")
                for m in each.get("volumeMounts", [])
                if m["name"] in volumes
            }
            for folder in mounts.values():
                folder.mkdir(parents=True, exist_ok=True)
            environment = {
                key: value for key, value in os.environ.items() if not key.startswith("PODRACER_")
            }
            environment |= _environment(pod, each, mounts) | {"OMP_NUM_THREADS": "1"}
            module = "podracer_" + each["name"].partition("-")[0]
            with (known.folder / f"{each['name']}.log").open("wb") as log:
                known.processes[each["name"]] = subprocess.Popen(
                    [sys.executable, "-P", "-m", module],
                    env=environment,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                )

    def statuses(self, pod: Item) -> tuple[str, list[Item], list[Item]]:
        known = self._pods[pod["metadata"]["uid"]]
        running = {"running": {"startedAt": now()}}
        code = known.processes["learner"].poll()
        sidecars = [
            container_status(name, running) for name in known.processes if name != "learner"
        ]
        if code is None:
            return "Running", sidecars, [container_status("learner", running)]
        self._signal(known, signal.SIGTERM)  # sidecars end with the pod
        log = (known.folder / "learner.log").read_text(errors="replace")[-_TAIL:]
        state = ended(code if code >= 0 else 128 - code, log)
        return "Failed" if code else "Succeeded", sidecars, [container_status("learner", state)]

    def stop(self, pod: Item) -> bool:
        known = self._pods.get(pod["metadata"]["uid"])
        if known is None:
            return True
        if not known.told_to_end:
            known.told_to_end = True
            self._signal(known, signal.SIGTERM)
        if any(process.poll() is None for process in known.processes.values()):
            return False
        shutil.rmtree(known.folder, ignore_errors=True)
        del self._pods[pod["metadata"]["uid"]]
        return True

    def learner(self, pod: Item) -> subprocess.Popen[bytes]:
        return self._pods[pod["metadata"]["uid"]].processes["learner"]

    def logs(self) -> str:
        """Of all pods that are there, for whom a test has failed."""
        found = [path for known in self._pods.values() for path in known.folder.glob("*.log")]
        return "\n".join(f"{path}:\n{path.read_text(errors='replace')[-3000:]}" for path in found)

    def close(self) -> None:
        """Kill all that are left."""
        for known in self._pods.values():
            self._signal(known, signal.SIGKILL)
            for process in known.processes.values():
                process.wait(60)
            shutil.rmtree(known.folder, ignore_errors=True)

    @staticmethod
    def _signal(known: _Pod, number: signal.Signals) -> None:
        for process in known.processes.values():
            if process.poll() is None:
                process.send_signal(number)


def own_address(value: str, host: str) -> str:
    """A variable's value in a pod whose network is `host` alone."""
    return value.replace("0.0.0.0:", f"{host}:").replace("127.0.0.1:9464", f"{host}:9464")


def _environment(pod: Item, container: Item, mounts: dict[str, Path]) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in container.get("env", []):
        if "valueFrom" in entry:
            assert entry["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
            found[entry["name"]] = pod["status"]["podIP"]
            continue
        value = _REFERENCE.sub(
            lambda match: found.get(match[1], match[0]), str(entry.get("value") or "")
        )
        value = own_address(value, pod["status"]["podIP"])
        # what lies beneath another one first
        for path, folder in sorted(mounts.items(), reverse=True):
            value = value.replace(path, str(folder))
        found[entry["name"]] = value
    return found

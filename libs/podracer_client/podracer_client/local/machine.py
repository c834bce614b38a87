"""Probes of this machine for Podracer's requirements, each with a deadline."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from podracer_client.local.services import TRAINING
from podracer_client.processes import describe_process, listener_of
from podracer_client.servers import Contexts
from podracer_core.errors import PodracerError
from podracer_core.native import missing as missing_for_kernels

_DEADLINE_S = 60.0
"""Deadline of each probe; they run side by side. The first import of torch from a cold disk takes
most of a minute."""
_PROGRAM_S = 10.0
_GIB = 2**30
_OURS = ("core", "client", *TRAINING, "policy")
_EXTRAS = {
    "gymnasium": ("gymnasium", "torch", "its environments"),
    "mujoco": ("mujoco-core", "mujoco", "MuJoCo tasks"),
    "Box2D": ("box2d", "box2d", "LunarLander, BipedalWalker, CarRacing"),
    "av": ("av", "video", "podracer video"),
    "matplotlib": ("matplotlib", "", "podracer report"),
    "onnx": ("onnx", "onnx", "podracer export --format onnx"),
}
_REQUIRED = frozenset({"Python", "Podracer", "torch", "machine", "object store"})
_PORTS = {
    7700: "podracer up, orchestrator",
    7701: "podracer up, leaderboard",
    7710: "podracer serve",
}
_TORCH = """import json, torch
devices = [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())]
devices = devices if torch.cuda.is_available() else []
print(json.dumps([torch.__version__, torch.version.cuda, devices]))"""


@dataclass(frozen=True, slots=True)
class Finding:
    """`found`: the version or amount, empty if missing; `advice`: what to do."""

    name: str
    found: str
    advice: str = ""
    required: bool = False

    @property
    def state(self) -> str:
        """`ok`, `missing` (and required), `absent` (and optional)."""
        if self.found:
            return "ok"
        return "missing" if self.required else "absent"


Probe = Callable[[], Iterable[Finding]]


def examine(folder: Path, store: str = "", deadline_s: float = _DEADLINE_S) -> list[Finding]:
    """All findings; `folder`: the state folder to check, `store`: the URL of an object store to
    check."""
    probes: dict[str, Probe] = {
        "Python": _python,
        "Podracer": _distributions,
        "torch": _torch,
        "machine": lambda: _machine(folder),
        "packages": _packages,
        "box": _box,
        "rendering": _rendering,
        "programs": _programs,
        "object store": lambda: _store(store),
        "ports": _ports,
        "running here": _running,
        "contexts": _contexts,
    }
    return [finding for found in _all(probes, deadline_s) for finding in found]


def _all(probes: dict[str, Probe], deadline_s: float) -> Iterator[list[Finding]]:
    """Run the probes in daemon threads: one that hangs must not keep this process."""
    answers = {
        name: [Finding(name, "", f"no answer within {deadline_s:g} s", name in _REQUIRED)]
        for name in probes
    }

    def answer(name: str, probe: Probe) -> None:
        try:
            answers[name] = list(probe())
        except Exception as error:  # noqa: BLE001 - whatever a machine has in store for one probe, the others go on
            problem = f"could not be examined: {type(error).__name__}: {error}"
            answers[name] = [Finding(name, "", problem, name in _REQUIRED)]

    threads = [threading.Thread(target=answer, args=each, daemon=True) for each in probes.items()]
    for thread in threads:
        thread.start()
    end = time.monotonic() + deadline_s
    for name, thread in zip(probes, threads, strict=True):
        thread.join(max(0.0, end - time.monotonic()))
        yield answers[name]


def _python() -> Iterator[Finding]:
    found = ".".join(map(str, sys.version_info[:3]))
    yield Finding(
        "Python", found if sys.version_info >= (3, 11) else "", "needs 3.11 or newer", required=True
    )


def _distributions() -> Iterator[Finding]:
    versions = {name: _version(f"podracer-{name}", f"podracer_{name}") for name in _OURS}
    found = (
        ", ".join(sorted(set(filter(None, versions.values()))))
        if all(versions[name] for name in TRAINING)
        else ""
    )
    yield Finding(
        "Podracer",
        found,
        "`podracer run` needs pip install 'podracer-client[local]'",
        required=True,
    )


def _torch() -> Iterator[Finding]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", _TORCH],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it does not start"])[-1]
        yield Finding("torch", "", f"pip install 'podracer-core[torch]' ({last})", required=True)
        return
    number, cuda, devices = json.loads(done.stdout.splitlines()[-1])
    yield Finding("torch", f"{number}, {f'CUDA {cuda}' if cuda else 'CPU only'}", required=True)
    why = "no CUDA device is visible" if cuda else "this torch is built without CUDA"
    yield Finding("GPU", ", ".join(devices), f"{why}; everything runs on the CPU")
    if devices:
        lacks = missing_for_kernels()
        advice = f"gradient steps on the GPU are slower than they could be: install {lacks}"
        yield Finding("kernels", "" if lacks else "compiled when they are first used", advice)


def _machine(folder: Path) -> Iterator[Finding]:
    cores = psutil.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    yield Finding("cores", f"{usable} of {cores}" if usable < cores else str(cores), required=True)
    memory = psutil.virtual_memory()
    text = f"{memory.available / _GIB:.1f} GiB free of {memory.total / _GIB:.1f} GiB"
    yield Finding(
        "memory",
        text if memory.available >= _GIB else "",
        f"only {text}; a pod needs 1 GiB",
        required=True,
    )
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    free = shutil.disk_usage(there).free
    text = f"{free / _GIB:.1f} GiB free at {there}"
    is_good = free >= _GIB and there.is_dir() and os.access(there, os.W_OK)
    yield Finding(
        "disk",
        text if is_good else "",
        f"{text}; choose another --dir that can be written",
        required=True,
    )


def _packages() -> Iterator[Finding]:
    for module, (distribution, extra, what) in _EXTRAS.items():
        install = (
            f"pip install 'podracer-core[{extra}]'" if extra else f"pip install {distribution}"
        )
        yield Finding(module, _version(distribution, module), f"for {what}: {install}")


def _version(distribution: str, module: str) -> str:
    """A module's version; empty if it cannot be imported."""
    if importlib.util.find_spec(module) is None:
        return ""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "there"


def _box() -> Iterator[Finding]:
    from podracer_core.box import missing

    lacks = "; ".join(missing())
    yield Finding(
        "box of users' code",
        "" if lacks else "complete",
        f"user code is not shut in: this needs {lacks}",
    )


def _rendering() -> Iterator[Finding]:
    from podracer_core.native import working_backend

    if importlib.util.find_spec("mujoco") is not None:
        try:
            yield Finding("drawing MuJoCo", working_backend())
        except PodracerError as error:
            yield Finding("drawing MuJoCo", "", error.message)


def _programs() -> Iterator[Finding]:
    compose = _output("docker", "compose", "version", "--short")
    server = compose and _output("docker", "info", "--format", "{{.ServerVersion}}")
    advice = (
        "start its daemon, or join its group"
        if compose
        else "for `docker compose up`: install Docker Compose"
    )
    yield Finding("Docker", server and f"{server}, compose {compose}", advice)
    context = _output("kubectl", "config", "current-context") or "no current context"
    yield Finding(
        "kubectl", context if shutil.which("kubectl") else "", "for clusters: install kubectl"
    )


def _output(*command: str) -> str:
    """A program's output; empty if it is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROGRAM_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _store(url: str) -> Iterator[Finding]:
    if not url:
        yield Finding(
            "MinIO",
            shutil.which("minio") or "",
            "for an S3 store of your own; a folder does without",
        )
        return
    from podracer_platform.storage import open_store

    try:
        open_store(url, create=False).check()
        yield Finding("object store", url, required=True)
    except PodracerError as error:
        yield Finding("object store", "", error.message, required=True)


def _ports() -> Iterator[Finding]:
    for port, purpose in _PORTS.items():
        try:
            socket.create_server(("127.0.0.1", port)).close()
            yield Finding(f"port {port}", "free")
        except OSError:
            owner = listener_of(port) or "another process"
            yield Finding(
                f"port {port}", "", f"{purpose}: in use by {owner}; choose one with --listen"
            )


def _running() -> Iterator[Finding]:
    for process in psutil.process_iter():
        try:
            if "podracer_orchestrator" in process.cmdline():
                yield Finding("running here", describe_process(process))
        except psutil.Error:
            continue  # it has ended, or is another user's


def _contexts() -> Iterator[Finding]:
    contexts = Contexts.read()
    if contexts.known:
        names = ", ".join(
            f"{name} (current)" if name == contexts.current else name
            for name in sorted(contexts.known)
        )
        yield Finding("contexts", names)

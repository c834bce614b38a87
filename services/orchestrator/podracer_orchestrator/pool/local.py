"""Pods as processes of this machine."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from podracer_core.errors import InvalidInput
from podracer_orchestrator.names import last_part
from podracer_orchestrator.pool.backend import Capacity, PodObserver, PodPlan, PoolBackend
from podracer_orchestrator.pool.pod import LEARNER, LocalPod, PodProcesses
from podracer_orchestrator.pool.process import PodProcess

logger = logging.getLogger(__name__)

PASSED_ON = (
    "PODRACER_LOG_LEVEL",
    "PODRACER_LOG_JSON",
    "PODRACER_SHM_DIR",
    "PODRACER_ALLOW_USER_CODE",
    "PODRACER_CACHE_DIR",
    "PODRACER_CACHE_SIZE",
)
"""Settings of ours that are also the pods' settings; no other PODRACER_ variable reaches them."""


@dataclass(frozen=True, slots=True)
class LocalPoolSettings:
    """Where pods find things. `run_dir` is short and private: unix sockets live there."""

    orchestrator: str
    tokens: Path
    store: str
    state_dir: Path
    run_dir: Path
    max_pods: int


class LocalPool(PoolBackend):
    """Starts pods in sessions of their own, that die with this process; keeps them running."""

    name = "local"
    dies_with_us = True

    def __init__(self, settings: LocalPoolSettings, observer: PodObserver) -> None:
        """Raises InvalidInput where the folders for logs and sockets cannot be written."""
        self._settings = settings
        self._observer = observer
        self._pods: dict[str, LocalPod] = {}
        self._stopping: dict[str, asyncio.Task[None]] = {}
        self._logs = settings.state_dir / "logs"
        for folder in (self._logs, settings.run_dir):
            _make_folder(folder)

    @property
    def capacity(self) -> Capacity:
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Capacity(float(len(os.sched_getaffinity(0))), memory_bytes, self._settings.max_pods)

    async def reconcile(self, wanted: Sequence[PodPlan]) -> None:
        names = {plan.name for plan in wanted}
        for name in [name for name in self._pods if name not in names and name not in self._stopping]:
            self._stopping[name] = asyncio.create_task(self._stop_pod(name), name=f"stop-{name}")
        for plan in wanted:
            if plan.name not in self._pods:
                self._start(plan)

    def restart(self, pod: str) -> None:
        if pod in self._pods:
            self._pods[pod].kill_learner()

    async def stop(self) -> None:
        for name in self._pods:
            if name not in self._stopping:
                self._stopping[name] = asyncio.create_task(self._stop_pod(name), name=f"stop-{name}")
        await asyncio.gather(*self._stopping.values(), return_exceptions=True)

    def _start(self, plan: PodPlan) -> None:
        sockets = self._settings.run_dir / hashlib.sha256(plan.name.encode()).hexdigest()[:8]
        _make_folder(sockets)
        processes = {
            role: PodProcess(module, environment, self._logs / f"{last_part(plan.name)}-{role}.log")
            for role, module, environment in _commands(plan, self._settings, sockets)
        }
        pod = LocalPod(PodProcesses(plan.name, processes), self._observer)
        self._pods[plan.name] = pod
        pod.start()
        logger.info("pod %s is starting: %s", plan.name, ", ".join(processes))

    async def _stop_pod(self, name: str) -> None:
        try:
            await self._pods[name].stop()
        finally:
            self._pods.pop(name, None)
            self._stopping.pop(name, None)
        sockets = self._settings.run_dir / hashlib.sha256(name.encode()).hexdigest()[:8]
        shutil.rmtree(sockets, ignore_errors=True)
        await self._observer.pod_stopped(name)


# A layer's results are large enough for the C library to give them back to the system each time, which costs wide
# networks a tenth of their speed. (glibc's own names; whatever else there is ignores them.)
_KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}


def _commands(
    plan: PodPlan, settings: LocalPoolSettings, sockets: Path
) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """(role, module, environment) of each process of a pod."""
    # Threads that spin while they wait for one another starve whatever else runs on the same cores.
    inherited = {"OMP_WAIT_POLICY": "PASSIVE"} | _KEPT_MEMORY
    inherited |= {key: value for key, value in os.environ.items() if not key.startswith("PODRACER_")}
    common = inherited | {"PODRACER_CACHE_DIR": str(settings.state_dir / "cache")}  # one for all pods
    common |= {key: os.environ[key] for key in PASSED_ON if key in os.environ}
    common |= {"PODRACER_TOKENS": str(settings.tokens), "PODRACER_THREADS": str(plan.threads)}

    def address(role: str) -> str:
        return f"unix://{sockets / role}.sock"

    worker_roles = [] if plan.is_fused else [f"worker{index}" for index in range(plan.workers)]
    evaluator_roles = [] if plan.is_fused else ["evaluator"]
    for role in worker_roles:
        yield role, "podracer_worker", common | {"PODRACER_LISTEN": address(role)}
    for role in evaluator_roles:
        yield role, "podracer_evaluator", common | {"PODRACER_LISTEN": address(role), "PODRACER_STORE": settings.store}
    yield (
        LEARNER,
        "podracer_learner",
        common
        | {
            "PODRACER_LISTEN": address(LEARNER),
            "PODRACER_ORCHESTRATOR": settings.orchestrator,
            "PODRACER_POD": plan.name,
            "PODRACER_STORE": settings.store,
            "PODRACER_WORKERS": ",".join(address(role) for role in worker_roles),
            "PODRACER_EVALUATORS": ",".join(address(role) for role in evaluator_roles),
            "PODRACER_LAYOUT": "fused" if plan.is_fused else "split",
        },
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"the folder {folder} cannot be made: {error.strerror}", reason="FOLDER_UNWRITABLE"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidInput(f"the folder {folder} cannot be written", reason="FOLDER_UNWRITABLE")

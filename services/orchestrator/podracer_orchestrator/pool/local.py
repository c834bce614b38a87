"""Pods as processes of this machine."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from podracer_core.errors import InvalidInput
from podracer_core.native import NATIVE_SETTINGS
from podracer_orchestrator.config import OrchestratorConfig
from podracer_orchestrator.pool.backend import Capacity, PodObserver, PodPlan, PoolBackend
from podracer_orchestrator.pool.local_pod import LEARNER, LocalPod, start_service
from podracer_orchestrator.pool.machine import Machine, Reading
from podracer_platform.rpc import last_part
from podracer_platform.service import SupervisedProcess
from podracer_platform.shared_folder import SharedFolder

logger = logging.getLogger(__name__)

PASSED_ON = (
    "PODRACER_LOG_LEVEL",
    "PODRACER_LOG_JSON",
    "PODRACER_SHM_DIR",
    "PODRACER_ALLOW_USER_CODE",
    "PODRACER_OWN_USER_CODE",
    "PODRACER_CACHE_DIR",
    "PODRACER_CACHE_SIZE",
    "PODRACER_COLLECT_AHEAD",
    "PODRACER_DEVICE",
    "PODRACER_TRACE_DIR",
    "PODRACER_TRACE_SIZE",
)
"""Settings of the orchestrator that pods get, too; no other PODRACER_ variable reaches them."""


class LocalPool(PoolBackend):
    """Starts pods in their own sessions and keeps them running; they end with this process."""

    name = "local"
    dies_with_us = True

    def __init__(
        self, config: OrchestratorConfig, orchestrator: str, observer: PodObserver
    ) -> None:
        """`orchestrator`: its address. Raises InvalidInput if the folders for logs and sockets
        cannot be written."""
        assert config.state_dir is not None and config.run_dir is not None, "a local pool has both"
        self._config, self._state_dir, self._run_dir = config, config.state_dir, config.run_dir
        self._orchestrator = orchestrator
        self._observer = observer
        shared = os.environ.get("PODRACER_SHM_DIR")
        self._shared_folder = SharedFolder(Path(shared) if shared else None)
        self._machine = Machine()
        self._reading: Reading | None = None
        self._pods: dict[str, LocalPod] = {}
        self._gpus: dict[str, Sequence[str]] = {}  # pod: the GPUs that are its own
        self._stopping: dict[str, asyncio.Task[None]] = {}
        self._logs = config.state_dir / "logs"
        for folder in (self._logs, config.run_dir):
            _make_folder(folder)

    @property
    def capacity(self) -> Capacity | None:
        reading = self._reading
        if reading is None:
            return None
        taken = sum(map(len, self._gpus.values()))
        return Capacity(
            cores=reading.cores,
            memory_bytes=reading.memory_bytes,
            max_pods=self._config.max_pods,
            used_cores=reading.used_cores,
            available_bytes=reading.available_bytes,
            gpus=len(reading.gpus),
            usable_gpus=taken + len(self._free_gpus(reading)),
            pods={
                name: replace(use, gpus=len(self._gpus.get(name, ())))
                for name, use in reading.pods.items()
            },
        )

    async def start(self, former: Sequence[str]) -> None:
        await self.measure()  # a job's hyperparameters depend on whether there is a GPU

    async def measure(self) -> None:
        sessions = {name: pod.sessions for name, pod in self._pods.items()}
        self._reading = await asyncio.to_thread(self._machine.read, sessions, time.monotonic())

    async def reconcile(self, wanted: Sequence[PodPlan]) -> None:
        names = {plan.name for plan in wanted}
        for name in [
            name for name in self._pods if name not in names and name not in self._stopping
        ]:
            self._begin_to_stop(name)
        for plan in wanted:
            if plan.name not in self._pods:
                self._start(plan)

    def restart(self, pod: str) -> None:
        if pod in self._pods:
            self._pods[pod].kill_learner()

    async def stop(self) -> None:
        for name, pod in self._pods.items():
            pod.hurry()
            if name not in self._stopping:
                self._begin_to_stop(name)
        await asyncio.gather(*self._stopping.values(), return_exceptions=True)

    def _free_gpus(self, reading: Reading) -> Sequence[str]:
        taken = {uuid for uuids in self._gpus.values() for uuid in uuids}
        return [gpu.uuid for gpu in reading.gpus if gpu.uuid not in taken and not gpu.is_in_use]

    def _begin_to_stop(self, name: str) -> None:
        self._stopping[name] = asyncio.create_task(self._stop_pod(name), name=f"stop-{name}")

    def _start(self, plan: PodPlan) -> None:
        if plan.kind.gpus:
            free = self._free_gpus(self._reading) if self._reading is not None else []
            if len(free) < plan.kind.gpus:
                return  # the pod that has it is still draining: at the next look
            self._gpus[plan.name] = free[: plan.kind.gpus]
        sockets = self._run_dir / hashlib.sha256(plan.name.encode()).hexdigest()[:8]
        _make_folder(sockets)
        gpus = self._gpus.get(plan.name, ())
        processes = {
            role: partial(
                SupervisedProcess,
                name := f"{last_part(plan.name)}-{role}",
                self._logs / f"{name}.log",
                partial(start_service, module, environment, bool(gpus)),
            )
            for role, module, environment in self._commands(plan, sockets, gpus)
        }
        pod = LocalPod(plan.name, processes, self._observer)
        self._pods[plan.name] = pod
        pod.start()
        logger.info("pod %s is starting: %s", plan.name, ", ".join(processes))

    async def _stop_pod(self, name: str) -> None:
        try:
            await self._pods[name].stop()
        finally:
            self._pods.pop(name, None)
            self._gpus.pop(name, None)
            self._stopping.pop(name, None)
        self._shared_folder.sweep()  # what the pod had there, if it had to be killed
        sockets = self._run_dir / hashlib.sha256(name.encode()).hexdigest()[:8]
        shutil.rmtree(sockets, ignore_errors=True)
        await self._observer.pod_stopped(name)

    def _commands(
        self, plan: PodPlan, sockets: Path, gpus: Sequence[str]
    ) -> Iterator[tuple[str, str, Mapping[str, str]]]:
        """(role, module, environment) of each process of a pod."""
        kind = plan.kind
        inherited = NATIVE_SETTINGS | {
            key: value for key, value in os.environ.items() if not key.startswith("PODRACER_")
        }
        # one a project
        common = inherited | {"PODRACER_CACHE_DIR": str(self._state_dir / "cache" / kind.owner)}
        common |= {key: os.environ[key] for key in PASSED_ON if key in os.environ}
        common |= {
            "PODRACER_TOKENS": str(self._config.tokens),
            "PODRACER_THREADS": str(plan.threads),
        }
        # A pod that asks for no GPU sees what we see: its learner uses one where its environment
        # runs on it.
        common |= {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}

        def address(role: str) -> str:
            return f"unix://{sockets / role}.sock"

        worker_roles = [] if kind.is_fused else [f"worker{index}" for index in range(kind.workers)]
        evaluator_roles = [] if kind.is_fused else ["evaluator"]
        for role in worker_roles:
            yield role, "podracer_worker", common | {"PODRACER_LISTEN": address(role)}
        for role in evaluator_roles:
            yield (
                role,
                "podracer_evaluator",
                common | {"PODRACER_LISTEN": address(role), "PODRACER_STORE": self._config.store},
            )
        yield (
            LEARNER,
            "podracer_learner",
            common
            | {
                "PODRACER_LISTEN": address(LEARNER),
                "PODRACER_ORCHESTRATOR": self._orchestrator,
                "PODRACER_POD": plan.name,
                "PODRACER_STORE": self._config.store,
                "PODRACER_WORKERS": ",".join(address(role) for role in worker_roles),
                "PODRACER_EVALUATORS": ",".join(address(role) for role in evaluator_roles),
                "PODRACER_LAYOUT": "fused" if kind.is_fused else "split",
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

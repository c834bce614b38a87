"""The worker's process and its rpc methods: gRPC serves beside the main thread, which collects."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial

import grpc

from podracer.worker.v1 import worker_service_pb2, worker_service_pb2_grpc
from podracer_core.environments.processes import ChildOutput
from podracer_platform.attachments import FileCache, FileReceiver
from podracer_platform.rpc import (
    Authorizer,
    Context,
    RpcServer,
    Session,
    SessionSlots,
    TokenFiles,
    WorkQueue,
    create_server,
    methods_of,
)
from podracer_platform.service import PodSettings, announce, own_build, stop_event_on_signals
from podracer_platform.shared_folder import SharedFolder


@dataclass(frozen=True)
class WorkerConfig(PodSettings):
    """
    max_sessions     learners at a time
    device           to collect on: cpu, cuda, cuda:0, or auto: a GPU if there is one and the
                     environment supports it
    """

    max_sessions: int = 1
    device: str = "auto"


def create_worker_server(config: WorkerConfig, work: WorkQueue) -> RpcServer:
    """A bound server whose sessions compute in the thread that runs `work`."""
    service = WorkerService(
        work, config.max_sessions, config.device, config.file_cache(), config.shared_folder()
    )
    authorizer = Authorizer(methods_of("worker"), TokenFiles(config.tokens))
    server = create_server(
        config.listen,
        [partial(worker_service_pb2_grpc.add_WorkerServiceServicer_to_server, service)],
        authorizer,
        config.server_options(),
    )
    authorizer.accept_shown("worker", config.advertise or server.address)
    server.on_drain(service.drain)
    return server


def serve(config: WorkerConfig) -> int:
    """Serve until SIGTERM or SIGINT. Only from the main thread."""
    stop = stop_event_on_signals()
    ChildOutput.is_kept = True
    work = WorkQueue()
    server = create_worker_server(config, work)
    server.start()
    announce(server.address)
    # Late: torch takes a second, and the learner can connect meanwhile.
    import podracer_worker.session  # noqa: F401 - else the first session would wait for it
    from podracer_core.device import set_up_torch
    from podracer_core.environments import require_device

    set_up_torch(config.threads)
    try:
        if config.device != "auto":
            require_device(config.device)
        work.run(stop)
    finally:
        server.drain()
    return 0


class WorkerService(worker_service_pb2_grpc.WorkerServiceServicer):
    """The sessions' computation runs in `work`."""

    def __init__(
        self,
        work: WorkQueue,
        max_sessions: int,
        device: str,
        cache: FileCache,
        folder: SharedFolder,
    ) -> None:
        """`device`: the default device of sessions; `cache`: the files of users' environments;
        `folder`: for shared tensors."""
        self._work, self._device, self._cache, self._folder = work, device, cache, folder
        self._files = FileReceiver(cache)
        self._slots = SessionSlots(max_sessions)
        self._meter = StepMeter()

    async def Collect(  # type: ignore[override]
        self, request_iterator: AsyncIterator[worker_service_pb2.CollectRequest], context: Context
    ) -> None:
        def make_session() -> Session:
            from podracer_worker.session import CollectSession  # late: it imports torch

            return CollectSession(
                self._work, self._meter.add, self._device, self._cache, self._folder
            )

        await self._slots.serve(make_session, request_iterator, context)

    def PutFile(
        self,
        request_iterator: Iterator[worker_service_pb2.PutFileRequest],
        context: grpc.ServicerContext,
    ) -> worker_service_pb2.PutFileResponse:
        return worker_service_pb2.PutFileResponse(
            already_there=self._files.receive(request_iterator)
        )

    def GetStatus(
        self, request: worker_service_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> worker_service_pb2.GetStatusResponse:
        return worker_service_pb2.GetStatusResponse(
            build=own_build(),
            session_count=self._slots.count,
            max_sessions=self._slots.limit,
            env_steps=self._meter.total,
            env_steps_per_second=self._meter.per_second(),
        )

    def drain(self) -> None:
        """Tell every open session that the worker is about to stop, and end it."""
        self._slots.drain()


class StepMeter:
    """Totals since the start and the rate over the last `window_s` seconds. Safe to use from
    several threads."""

    def __init__(self, window_s: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s, self._clock = window_s, clock
        self._lock = threading.Lock()
        self._entries: deque[tuple[float, int]] = deque()
        self.total = 0

    def add(self, steps: int) -> None:
        with self._lock:
            self.total += steps
            self._entries.append((self._clock(), steps))
            self._forget()

    def per_second(self) -> float:
        """The rate; 0 if there were no steps within the window."""
        with self._lock:
            self._forget()
            return sum(steps for _, steps in self._entries) / self._window_s

    def _forget(self) -> None:
        oldest = self._clock() - self._window_s
        while self._entries and self._entries[0][0] < oldest:
            self._entries.popleft()

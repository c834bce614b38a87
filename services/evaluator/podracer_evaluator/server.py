"""The evaluator's process and its rpc methods: gRPC serves beside the main thread, which
computes."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import grpc

from podracer.evaluator.v1 import evaluator_service_pb2, evaluator_service_pb2_grpc
from podracer_core.environments.processes import ChildOutput
from podracer_core.errors import InvalidInput, Unavailable
from podracer_platform.attachments import FileCache, FileReceiver, place_environment
from podracer_platform.messages import environment_from_message, seconds_from_duration
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
from podracer_platform.telemetry import EPISODES, EVALUATION

if TYPE_CHECKING:
    from podracer_core.checkpoint import Checkpoint

_INSPECT_TIMEOUT_S = 120.0
_MAX_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class EvaluatorConfig(PodSettings):
    """
    max_sessions    learners at a time
    store           URL of the object store, for checkpoints that are named by reference; unset:
                    none
    allow_folders   read checkpoints from any folder of this machine that a caller names: only for a
                    private evaluator of this machine's own user
    """

    max_sessions: int = 1
    store: str = ""
    allow_folders: bool = False


def create_evaluator_server(
    config: EvaluatorConfig, work: WorkQueue, stop: threading.Event
) -> RpcServer:
    """A bound server whose computations run in the thread that runs `work`; `stop` cancels long
    ones."""
    service = EvaluatorService(work, config, config.file_cache(), stop)
    authorizer = Authorizer(methods_of("evaluator"), TokenFiles(config.tokens))
    server = create_server(
        config.listen,
        [partial(evaluator_service_pb2_grpc.add_EvaluatorServiceServicer_to_server, service)],
        authorizer,
        config.server_options(),
    )
    authorizer.accept_shown("evaluator", config.advertise or server.address)
    server.on_drain(service.drain)
    return server


def serve(config: EvaluatorConfig) -> int:
    """Serve until SIGTERM or SIGINT. Only from the main thread."""
    stop = stop_event_on_signals()
    ChildOutput.is_kept = True
    work = WorkQueue()
    server = create_evaluator_server(config, work, stop)
    server.start()
    announce(server.address)
    # Late: torch takes a second, and the learner can connect meanwhile.
    import podracer_evaluator.session  # noqa: F401 - else the first session would wait for it
    from podracer_core.device import set_up_torch

    set_up_torch(config.threads)
    work.run(stop)
    server.drain()
    return 0


class EvaluatorService(evaluator_service_pb2_grpc.EvaluatorServiceServicer):
    """Computation runs in `work`; inspection waits for another process, in its call's own thread.

    The modules for it are imported late, as they import torch: the server listens before.
    """

    def __init__(
        self, work: WorkQueue, config: EvaluatorConfig, cache: FileCache, stop: threading.Event
    ) -> None:
        """`stop`: set when the process is about to end."""
        self._work, self._config, self._cache, self._stop = work, config, cache, stop
        self._folder = config.shared_folder()
        self._files = FileReceiver(cache)
        self._slots = SessionSlots(config.max_sessions)
        self._episodes = EpisodeCounter()

    async def Evaluate(  # type: ignore[override]
        self,
        request_iterator: AsyncIterator[evaluator_service_pb2.EvaluateRequest],
        context: Context,
    ) -> None:
        def make_session() -> Session:
            from podracer_evaluator.session import EvaluateSession

            return EvaluateSession(self._work, self._episodes.add, self._cache, self._folder)

        await self._slots.serve(make_session, request_iterator, context)

    def EvaluateCheckpoint(
        self,
        request: evaluator_service_pb2.EvaluateCheckpointRequest,
        context: grpc.ServicerContext,
    ) -> evaluator_service_pb2.EvaluateCheckpointResponse:
        from podracer_evaluator.checkpoints import evaluate_request
        from podracer_evaluator.session import purpose_name

        checkpoints = self._load(request.checkpoints)
        task = partial(evaluate_request, checkpoints, request, self._cache, self._check(context))
        purpose = purpose_name(request.purpose)
        with EVALUATION.timed(purpose=purpose):
            response = self._work.submit(task).result()
        self._episodes.add(len(response.evaluation.returns), purpose)
        return response

    def Backtest(
        self, request: evaluator_service_pb2.BacktestRequest, context: grpc.ServicerContext
    ) -> Iterator[evaluator_service_pb2.BacktestResponse]:
        from podracer_evaluator.checkpoints import backtest_function, describe

        backtest = backtest_function()
        checkpoints = self._load(request.checkpoints)
        descriptions = [describe(checkpoint) for checkpoint in checkpoints]
        task = partial(
            backtest, checkpoints, descriptions, request, self._cache, self._check(context)
        )
        yield from self._work.submit(task).result()

    def Inspect(
        self, request: evaluator_service_pb2.InspectRequest, context: grpc.ServicerContext
    ) -> evaluator_service_pb2.InspectResponse:
        from podracer_platform.training_messages import inspected

        timeout_s = seconds_from_duration(request.timeout) or _INSPECT_TIMEOUT_S
        if not 0 < timeout_s <= _MAX_TIMEOUT_S:
            problem = f"expected 0 to {_MAX_TIMEOUT_S:.0f} s, got {timeout_s:g} s"
            raise InvalidInput.of("timeout", problem)
        with place_environment(
            environment_from_message(request.environment), self._cache
        ) as placed:
            return inspected(placed.spec, timeout_s)

    def ExportPolicy(
        self, request: evaluator_service_pb2.ExportPolicyRequest, context: grpc.ServicerContext
    ) -> Iterator[evaluator_service_pb2.ExportPolicyResponse]:
        from podracer_evaluator.checkpoints import exported_policy, file_responses

        checkpoints = self._load(request.checkpoints)
        task = partial(exported_policy, checkpoints, request.format, request.ensemble, self._cache)
        header, data = self._work.submit(task).result()
        yield from file_responses(evaluator_service_pb2.ExportPolicyResponse, header, data)

    def RecordVideo(
        self, request: evaluator_service_pb2.RecordVideoRequest, context: grpc.ServicerContext
    ) -> Iterator[evaluator_service_pb2.RecordVideoResponse]:
        from podracer_evaluator.checkpoints import file_responses, recorded_video

        checkpoints = self._load(request.checkpoints)
        task = partial(recorded_video, checkpoints, request, self._cache, self._check(context))
        header, data = self._work.submit(task).result()
        yield from file_responses(evaluator_service_pb2.RecordVideoResponse, header, data)

    def PutFile(
        self,
        request_iterator: Iterator[evaluator_service_pb2.PutFileRequest],
        context: grpc.ServicerContext,
    ) -> evaluator_service_pb2.PutFileResponse:
        return evaluator_service_pb2.PutFileResponse(
            already_there=self._files.receive(request_iterator)
        )

    def GetStatus(
        self, request: evaluator_service_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> evaluator_service_pb2.GetStatusResponse:
        return evaluator_service_pb2.GetStatusResponse(
            build=own_build(),
            session_count=self._slots.count,
            max_sessions=self._slots.limit,
            episodes=self._episodes.total,
        )

    def _check(self, context: grpc.ServicerContext) -> Callable[[], None]:
        """A check that raises once the call's work is no longer wanted."""

        def check() -> None:
            if self._stop.is_set() or not context.is_active():
                raise Unavailable(
                    "the evaluation was cancelled: the evaluator is stopping, or the client has "
                    "disconnected"
                )

        return check

    def _load(self, named: Sequence[evaluator_service_pb2.CheckpointSource]) -> list[Checkpoint]:
        from podracer_evaluator.checkpoints import Sources

        return Sources(self._config.store, self._config.allow_folders, self._cache).load(named)

    def drain(self) -> None:
        """Tell every open session that the evaluator is about to stop, and end it."""
        self._slots.drain()


class EpisodeCounter:
    """Episodes since the start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.total = 0

    def add(self, episodes: int, purpose: str) -> None:
        """`purpose`: as `purpose_name` gives it."""
        with self._lock:
            self.total += episodes
        EPISODES.add(episodes, purpose=purpose)

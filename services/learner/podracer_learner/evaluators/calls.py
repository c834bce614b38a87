"""Single calls to the first evaluator that answers, and INSPECT, by an evaluator or in this
process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from podracer.common.v1 import environment_pb2
from podracer.evaluator.v1 import evaluator_service_pb2
from podracer.evaluator.v1.evaluator_service_pb2_grpc import EvaluatorServiceStub
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.catalogue.messages import environment_from_message
from podracer_core.errors import InvalidInput, PreconditionFailed, Unavailable, UserCodeFailed
from podracer_core.jobs.messages import seconds_from_duration
from podracer_core.rpc.backoff import Backoff
from podracer_core.rpc.status import translated_errors
from podracer_core.training.messages import inspected
from podracer_learner.background import BackgroundTask, pause
from podracer_learner.config import LearnerConfig
from podracer_learner.peers import Peers
from podracer_learner.user_files import FetchedFiles, UserFiles, wants_files

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_RETRY_S = (0.05, 1.0)
_INSPECTION_S, _SLACK_S = 120.0, 15.0


class EvaluatorCall:
    """One unary call, with the files that its evaluator may lack. `check` is called while waiting
    and raises to cancel the call."""

    def __init__(self, files: FetchedFiles, timeout_s: float, check: Callable[[], None]) -> None:
        self._files, self._timeout_s, self.check = files, timeout_s, check

    def ask(self, stub: EvaluatorServiceStub, method: str, request: Any) -> Any:
        """The answer of one evaluator. Raises its errors, and Unavailable if it is lost."""
        try:
            return self._answer(stub, method, request)
        except PreconditionFailed as error:
            if not wants_files(error):
                raise
        self._files.deliver(stub.PutFile, evaluator_service_pb2.PutFileRequest).result(self.check)
        return self._answer(stub, method, request)

    def _answer(self, stub: EvaluatorServiceStub, method: str, request: Any) -> Any:
        done = threading.Event()
        with translated_errors(method=method):
            call = getattr(stub, method).future(request, timeout=self._timeout_s)
            call.add_done_callback(lambda _: done.set())
            try:
                while not done.wait(_POLL_S):
                    self.check()
                return call.result()
            finally:
                call.cancel()


def answer_of_any(
    stubs: Sequence[EvaluatorServiceStub],
    call: EvaluatorCall,
    method: str,
    request: Any,
    patience_s: float,
) -> Any:
    """The answer of the first evaluator that answers. Retries for `patience_s` since the first one
    was lost, then raises Unavailable (EVALUATOR_LOST)."""
    if not stubs:
        raise InvalidInput(
            "the split layout needs evaluators (PODRACER_EVALUATORS)", reason="NO_EVALUATORS"
        )
    deadline: float | None = None
    waits = Backoff(*_RETRY_S)
    while True:
        for stub in stubs:
            try:
                return call.ask(stub, method, request)
            except Unavailable as error:
                logger.warning("lost an evaluator: %s", error.message)
                deadline = deadline or time.monotonic() + patience_s
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"no evaluator has answered for {patience_s:.0f} s: {error.message}",
                        reason="EVALUATOR_LOST",
                    ) from error
        pause(next(waits), call.check)


def inspect_environment_for(
    work: pod_service_pb2.InspectWork, config: LearnerConfig, peers: Peers, files: UserFiles
) -> evaluator_service_pb2.InspectResponse:
    """The environment's description, and warnings. Raises UserCodeFailed with the user's traceback,
    InvalidInput if the environment of `retrain` does not fit, and the errors of `files`."""
    found = _inspect(work, work.environment, config, peers, files)
    if work.HasField("retrain_environment"):
        try:
            later = _inspect(work, work.retrain_environment, config, peers, files)
        except InvalidInput as error:
            raise InvalidInput(f"retrain.kwargs: {error.message}", reason=error.reason) from error
        except UserCodeFailed as error:
            message = f"retrain.kwargs: {error.message}"
            raise UserCodeFailed(
                message, user_traceback=error.user_traceback, reason=error.reason
            ) from error
        spaces = [
            (each.description.observation_space, each.description.action_space)
            for each in (found, later)
        ]
        if spaces[0] != spaces[1]:
            raise InvalidInput(
                "retrain.kwargs: these change the environment's observations or actions"
            )
    return found


def _inspect(
    work: pod_service_pb2.InspectWork,
    environment: environment_pb2.EnvironmentSpec,
    config: LearnerConfig,
    peers: Peers,
    files: UserFiles,
) -> evaluator_service_pb2.InspectResponse:
    timeout_s = seconds_from_duration(work.timeout) or _INSPECTION_S
    if config.layout == "fused":
        require_user_code_allowed(environment, config)
    with files.fetch(environment_from_message(environment)) as fetched:
        if config.layout == "split":
            request = evaluator_service_pb2.InspectRequest(
                environment=environment, timeout=work.timeout
            )
            call = EvaluatorCall(fetched, timeout_s + _SLACK_S, files.check)
            response: evaluator_service_pb2.InspectResponse = answer_of_any(
                peers.evaluators, call, "Inspect", request, config.peer_patience
            )
            return response
        return BackgroundTask(lambda: _here(fetched, timeout_s), "inspection").result(files.check)


def require_user_code_allowed(
    environment: environment_pb2.EnvironmentSpec, config: LearnerConfig
) -> None:
    """Raise InvalidInput if this fused pod may not start the environment."""
    if environment.entry_point and not config.runs_user_code:
        raise InvalidInput(
            f"this fused pod does not run user code ({environment.entry_point}); use the split "
            "layout, or allow it (PODRACER_ALLOW_USER_CODE, on Linux with Landlock)",
            reason="USER_CODE_NOT_ALLOWED",
        )


def _here(fetched: FetchedFiles, timeout_s: float) -> evaluator_service_pb2.InspectResponse:
    with fetched.place() as placed:
        return inspected(placed.spec, timeout_s)

"""One INSPECT lease: the environment is started once, by an evaluator or in a process of this learner's own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from podracer.common.v1 import environment_pb2
from podracer.evaluator.v1 import evaluator_service_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.catalogue.messages import environment_from_message
from podracer_core.errors import InvalidInput, PodracerError, UserCodeFailed
from podracer_core.jobs.messages import seconds_from_duration
from podracer_core.training.inspection import inspected
from podracer_learner.config import LearnerConfig
from podracer_learner.evaluator_calls import EvaluatorCall, answer_of_any
from podracer_learner.peers import Peers
from podracer_learner.user_files import FetchedFiles, UserFiles

__all__ = ["inspect_environment_for", "require_user_code_allowed"]

_TIMEOUT_S = 60.0
_SLACK_S = 15.0
_POLL_S = 0.2


def inspect_environment_for(
    work: pod_service_pb2.InspectWork, config: LearnerConfig, peers: Peers, files: UserFiles
) -> environment_pb2.EnvironmentDescription:
    """What the environment is. Raises UserCodeFailed with the user's own traceback, InvalidInput where the one of
    `retrain` does not fit, and what `files` does."""
    found = _inspect(work, work.environment, config, peers, files)
    if work.HasField("retrain_environment"):
        try:
            later = _inspect(work, work.retrain_environment, config, peers, files)
        except InvalidInput as error:
            raise InvalidInput(f"retrain.kwargs: {error.message}", reason=error.reason) from error
        except UserCodeFailed as error:
            message = f"retrain.kwargs: {error.message}"
            raise UserCodeFailed(message, user_traceback=error.user_traceback, reason=error.reason) from error
        if (later.observation_space, later.action_space) != (found.observation_space, found.action_space):
            raise InvalidInput("retrain.kwargs: with these the environment has other observations or actions")
    return found


def _inspect(
    work: pod_service_pb2.InspectWork,
    environment: environment_pb2.EnvironmentSpec,
    config: LearnerConfig,
    peers: Peers,
    files: UserFiles,
) -> environment_pb2.EnvironmentDescription:
    timeout_s = seconds_from_duration(work.timeout) or _TIMEOUT_S
    if config.layout == "fused":
        require_user_code_allowed(environment, config)
    with files.fetch(environment_from_message(environment)) as fetched:
        if config.layout == "split":
            request = evaluator_service_pb2.InspectRequest(environment=environment, timeout=work.timeout)
            call = EvaluatorCall(fetched, timeout_s + _SLACK_S, files.check)
            response: evaluator_service_pb2.InspectResponse = answer_of_any(
                peers.evaluators, call, "Inspect", request, config.peer_patience
            )
            return response.description
        return _waited_for(lambda: _here(fetched, timeout_s), files.check)


def require_user_code_allowed(environment: environment_pb2.EnvironmentSpec, config: LearnerConfig) -> None:
    """Raise InvalidInput where this fused pod may not start the environment."""
    if environment.entry_point and not config.allow_user_code:
        raise InvalidInput(
            f"this fused pod does not run user code ({environment.entry_point}); use the split layout, or allow it "
            "(PODRACER_ALLOW_USER_CODE)",
            reason="USER_CODE_NOT_ALLOWED",
        )


def _here(fetched: FetchedFiles, timeout_s: float) -> environment_pb2.EnvironmentDescription:
    with fetched.place() as placed:
        return inspected(placed.spec, timeout_s)


def _waited_for(
    task: Callable[[], environment_pb2.EnvironmentDescription], check: Callable[[], None]
) -> environment_pb2.EnvironmentDescription:
    """What `task` gives, in a thread of its own: it may take a minute, and a signal must not wait for it."""
    answers: queue.SimpleQueue[environment_pb2.EnvironmentDescription | PodracerError] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(task())
        except PodracerError as error:
            answers.put(error)

    threading.Thread(target=run, name="inspection", daemon=True).start()
    while True:
        check()
        try:
            answer = answers.get(timeout=_POLL_S)
        except queue.Empty:
            continue
        if isinstance(answer, PodracerError):
            raise answer
        return answer

"""One INSPECT lease: the environment is started once, by an evaluator or in a process of this learner's own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from podracer.common.v1 import environment_pb2
from podracer.evaluator.v1 import evaluator_service_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.errors import InvalidInput, PodracerError, Unavailable
from podracer_core.jobs.messages import seconds_from_duration
from podracer_core.rpc.backoff import Backoff
from podracer_core.training.inspection import inspected
from podracer_learner.config import LearnerConfig
from podracer_learner.peers import Peers

__all__ = ["inspect_environment_for"]

_TIMEOUT_S = 60.0
_SLACK_S = 15.0
_POLL_S = 0.2


def inspect_environment_for(
    work: pod_service_pb2.InspectWork, config: LearnerConfig, peers: Peers, check: Callable[[], None]
) -> environment_pb2.EnvironmentDescription:
    """What the environment is. Raises UserCodeFailed with the user's own traceback; `check` may raise to give up."""
    timeout_s = seconds_from_duration(work.timeout) or _TIMEOUT_S
    if config.layout == "split":
        return _waited_for(lambda: _by_evaluator(work, peers, timeout_s, config.peer_patience), check)
    if work.environment.entry_point and not config.allow_user_code:
        raise InvalidInput(
            f"this fused pod does not run user code ({work.environment.entry_point}); use the split layout, or allow "
            "it (PODRACER_ALLOW_USER_CODE)",
            reason="USER_CODE_NOT_ALLOWED",
        )
    return _waited_for(lambda: inspected(work.environment, timeout_s), check)


def _by_evaluator(
    work: pod_service_pb2.InspectWork, peers: Peers, timeout_s: float, patience_s: float
) -> environment_pb2.EnvironmentDescription:
    """Ask whichever evaluator answers."""
    request = evaluator_service_pb2.InspectRequest(environment=work.environment, timeout=work.timeout)
    deadline = time.monotonic() + patience_s
    waits = Backoff(0.05, 1.0)
    while True:
        for stub in peers.evaluators:
            try:
                return stub.Inspect(request, timeout=timeout_s + _SLACK_S).description
            except Unavailable as error:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"no evaluator has answered for {patience_s:.0f} s: {error.message}", reason="EVALUATOR_LOST"
                    ) from error
        time.sleep(next(waits))


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

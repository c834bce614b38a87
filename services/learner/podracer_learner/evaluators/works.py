"""The works INSPECT and EVALUATE, each by the first evaluator that answers, or in this process."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from podracer.common.v1 import agent_pb2, environment_pb2
from podracer.evaluator.v1 import evaluator_service_pb2
from podracer.evaluator.v1.evaluator_service_pb2_grpc import EvaluatorServiceStub
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.catalogue.extensions import GREEDY_EPISODES
from podracer_core.checkpoint import (
    POLICY_GROUPS,
    Checkpoint,
    evaluate_checkpoints,
    pack_policy,
    rule_of,
)
from podracer_core.environments.registry import device_for, evaluation_device
from podracer_core.errors import (
    DeadlineExpired,
    InvalidInput,
    PreconditionFailed,
    Unavailable,
    UserCodeFailed,
)
from podracer_core.evaluate import EvaluationResult
from podracer_core.training.phases import processor_seconds
from podracer_learner.background import BackgroundTask, pause
from podracer_learner.checkpoints import read_references
from podracer_learner.config import LearnerConfig
from podracer_learner.lease.held_lease import HeldLease
from podracer_learner.peers import Peers
from podracer_learner.user_files import FetchedFiles, UserFiles, wants_files
from podracer_platform.messages.catalogue import environment_from_message
from podracer_platform.messages.sections import seconds_from_duration, seconds_to_duration
from podracer_platform.messages.training import inspected, result_from_message, result_to_message
from podracer_platform.rpc.backoff import Backoff
from podracer_platform.rpc.status import translated_errors

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_RETRY_S = (0.05, 1.0)
_INSPECTION_S, _INSPECTION_SLACK_S = 120.0, 15.0
_EVALUATION_S, _EVALUATION_SLACK_S = 600.0, 5.0


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
            call = EvaluatorCall(fetched, timeout_s + _INSPECTION_SLACK_S, files.check)
            response: evaluator_service_pb2.InspectResponse = answer_of_any(
                peers.evaluators, call, "Inspect", request, config.peer_patience
            )
            return response
        return BackgroundTask(lambda: _inspect_here(fetched, timeout_s), "inspection").result(
            files.check
        )


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


def _inspect_here(fetched: FetchedFiles, timeout_s: float) -> evaluator_service_pb2.InspectResponse:
    with fetched.place() as placed:
        return inspected(placed.spec, timeout_s)


class EvaluationTooLong(DeadlineExpired):
    """The evaluation has not ended within its limit, and would not elsewhere."""

    reason = "EVALUATION_TOO_LONG"


def evaluate_for(
    held: HeldLease, config: LearnerConfig, peers: Peers, files: UserFiles
) -> pod_service_pb2.EvaluateResult:
    """The result of the lease's EvaluateWork. Its cost counts from when the lease was received.

    The same seeds give the same returns as in an evaluation of training. Raises DataCorrupted for a
    checkpoint that differs from what was committed, InvalidInput for policies that cannot act in
    the environment or together, UserCodeFailed, and EvaluationTooLong."""
    lease, received_at, work = held.lease, held.received_at, held.lease.evaluate
    if not work.policies or not work.seeds:
        raise InvalidInput(
            "an evaluation needs at least one policy and one seed", reason="NOTHING_TO_EVALUATE"
        )
    if config.layout == "fused":
        require_user_code_allowed(work.environment, config)
    files = dataclasses.replace(files, check=_limited(files.check, received_at, _limit_s(work)))
    references = [policy.checkpoint for policy in work.policies]
    checkpoints = read_references(files.store, references, POLICY_GROUPS)
    rule = rule_of(checkpoints, work.ensemble)
    with files.fetch(environment_from_message(work.environment)) as fetched:
        start, elsewhere_s = time.monotonic(), 0.0
        if config.layout == "fused":
            result = _evaluate_here(work, checkpoints, config, fetched, files.check)
        else:
            result, elsewhere_s = _at_an_evaluator(
                work, checkpoints, config, peers, fetched, files.check
            )
        duration_s = time.monotonic() - start
    on_gpu = (
        config.layout == "fused"
        and device_for(config.device, environment_from_message(work.environment)) != "cpu"
    )
    used_s = (
        time.monotonic() - received_at
        if on_gpu
        else processor_seconds() - held.used_before + elsewhere_s
    )
    return pod_service_pb2.EvaluateResult(
        evaluation=_message(lease, result, duration_s),
        cost=seconds_to_duration(max(0.0, used_s)),
        ensemble=rule if len(checkpoints) > 1 else "",
    )


def _limited(check: Callable[[], None], since: float, limit_s: float) -> Callable[[], None]:
    def limited() -> None:
        check()
        if time.monotonic() > since + limit_s:
            raise EvaluationTooLong(f"the evaluation has not ended within {limit_s:.0f} s")

    return limited


def _limit_s(work: pod_service_pb2.EvaluateWork) -> float:
    return seconds_from_duration(work.timeout) or _EVALUATION_S


def _evaluate_here(
    work: pod_service_pb2.EvaluateWork,
    checkpoints: Sequence[Checkpoint],
    config: LearnerConfig,
    fetched: FetchedFiles,
    check: Callable[[], None],
) -> EvaluationResult:
    spec = environment_from_message(work.environment)
    device = evaluation_device(spec, device_for(config.device, spec))
    with fetched.place() as placed:
        return evaluate_checkpoints(
            checkpoints,
            placed.spec,
            work.seeds,
            rule=work.ensemble,
            device=device,
            check=check,
            evaluator=work.evaluator,
        )


def _at_an_evaluator(
    work: pod_service_pb2.EvaluateWork,
    checkpoints: Sequence[Checkpoint],
    config: LearnerConfig,
    peers: Peers,
    fetched: FetchedFiles,
    check: Callable[[], None],
) -> tuple[EvaluationResult, float]:
    """Evaluate at an evaluator. It has no keys of the store, so the policies are sent to it. Also
    returns its processor seconds."""
    packed = [fetched.add(pack_policy(checkpoint)) for checkpoint in checkpoints]
    request = evaluator_service_pb2.EvaluateCheckpointRequest(
        checkpoints=[
            evaluator_service_pb2.CheckpointSource(file_sha256=sha256) for sha256 in packed
        ],
        ensemble=work.ensemble,
        environment=work.environment,
        seeds=work.seeds,
        purpose=work.purpose,
        evaluator=work.evaluator or GREEDY_EPISODES,
    )
    call = EvaluatorCall(fetched, _limit_s(work) + _EVALUATION_SLACK_S, check)
    response: evaluator_service_pb2.EvaluateCheckpointResponse = answer_of_any(
        peers.evaluators, call, "EvaluateCheckpoint", request, config.peer_patience
    )
    return result_from_message(response.evaluation), seconds_from_duration(
        response.evaluation.duration
    )


def _message(
    lease: pod_service_pb2.Lease, result: EvaluationResult, duration_s: float
) -> agent_pb2.Evaluation:
    work = lease.evaluate
    message = result_to_message(result)
    message.evaluation_id, message.purpose = f"{lease.fence}-1", work.purpose
    if len(work.policies) == 1:
        (policy,) = work.policies
        message.agent, message.env_steps = policy.agent, policy.checkpoint.env_steps
        message.checkpoint.CopyFrom(policy.checkpoint)
    message.duration.CopyFrom(seconds_to_duration(duration_s))
    message.create_time.GetCurrentTime()
    return message

"""One EVALUATE lease: a stored policy or an ensemble, evaluated here or by an evaluator."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from podracer.common.v1 import agent_pb2
from podracer.evaluator.v1 import evaluator_service_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.catalogue.extensions import GREEDY_EPISODES
from podracer_core.catalogue.messages import environment_from_message
from podracer_core.checkpoint import (
    POLICY_GROUPS,
    Checkpoint,
    evaluate_checkpoints,
    pack_policy,
    rule_of,
)
from podracer_core.environments.registry import device_for, evaluation_device
from podracer_core.errors import DeadlineExpired, InvalidInput
from podracer_core.evaluate import EvaluationResult
from podracer_core.jobs.messages import seconds_from_duration, seconds_to_duration
from podracer_core.training.messages import result_from_message, result_to_message
from podracer_core.training.phases import processor_seconds
from podracer_learner.checkpoints import read_references
from podracer_learner.config import LearnerConfig
from podracer_learner.evaluators.calls import (
    EvaluatorCall,
    answer_of_any,
    require_user_code_allowed,
)
from podracer_learner.lease.held_lease import HeldLease
from podracer_learner.peers import Peers
from podracer_learner.user_files import FetchedFiles, UserFiles

_TIMEOUT_S = 600.0
_SLACK_S = 5.0


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
            result = _here(work, checkpoints, config, fetched, files.check)
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
    return seconds_from_duration(work.timeout) or _TIMEOUT_S


def _here(
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
    call = EvaluatorCall(fetched, _limit_s(work) + _SLACK_S, check)
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

"""The round's own values as messages to the orchestrator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.errors import DataCorrupted, PodracerError, UserCodeFailed
from podracer_core.evaluate.messages import result_to_message
from podracer_core.jobs.messages import seconds_to_duration
from podracer_core.storage.layout import CheckpointRef
from podracer_core.training.session import Progress
from podracer_core.training.snapshots import Judgement

__all__ = ["evaluation_message", "member_progress", "problem_message", "progress_report", "reference_message"]

_PURPOSES = {
    "progress": agent_pb2.EVALUATION_PURPOSE_PROGRESS,
    "candidate": agent_pb2.EVALUATION_PURPOSE_CANDIDATE,
}


def problem_message(error: PodracerError, detail: str = "") -> cohort_pb2.Problem:
    """An error as part of a result; of a user's code with the user's own traceback, of a bad object with its key."""
    if isinstance(error, UserCodeFailed):
        detail = error.user_traceback
    subject = error.metadata.get("file", "") if isinstance(error, DataCorrupted) else ""
    return cohort_pb2.Problem(reason=error.reason, message=error.message, detail=detail, subject=subject)


def reference_message(reference: CheckpointRef, env_steps: int, fence: int) -> agent_pb2.CheckpointReference:
    """A checkpoint that has been written just now; `env_steps` are the lineage's."""
    message = agent_pb2.CheckpointReference(
        prefix=reference.prefix,
        manifest_sha256=reference.manifest_sha256,
        size_bytes=reference.size_bytes,
        env_steps=env_steps,
        fence=fence,
    )
    message.create_time.GetCurrentTime()
    return message


def evaluation_message(
    judgement: Judgement, evaluation_id: str, agent: str, base_env_steps: int
) -> agent_pb2.Evaluation:
    """A judgement; `base_env_steps` are the lineage's before this round."""
    message = result_to_message(judgement.result)
    message.evaluation_id, message.agent = evaluation_id, agent
    message.policy_version = judgement.version
    message.purpose = _PURPOSES[judgement.purpose]
    message.env_steps = base_env_steps + judgement.env_steps
    message.train_time.CopyFrom(seconds_to_duration(judgement.train_time_s))
    message.confirm_time.CopyFrom(seconds_to_duration(judgement.confirm_time_s))
    message.duration.CopyFrom(seconds_to_duration(judgement.duration_s))
    message.create_time.GetCurrentTime()
    return message


def member_progress(
    agent: str, env_steps: int, used_s: float, evaluation_s: float, members: int, failed: bool
) -> pod_service_pb2.MemberProgress:
    """What counts of a member at one moment: steps and cost since the lease began."""
    return pod_service_pb2.MemberProgress(
        agent=agent,
        env_steps=env_steps,
        cost=seconds_to_duration(used_s / members),
        evaluation_cost=seconds_to_duration(min(evaluation_s, used_s) / members),
        failed=failed,
    )


def progress_report(
    agents: Sequence[str], progress: Progress, env_steps_per_second: float
) -> pod_service_pb2.RenewLeaseRequest:
    """The live figures of all members, for a renewal."""
    report = pod_service_pb2.RenewLeaseRequest(
        env_steps_per_second=env_steps_per_second,
        train_time=seconds_to_duration(progress.elapsed_s),
    )
    for index, agent in enumerate(agents):
        member = member_progress(
            agent,
            progress.env_steps[index],
            progress.used_s,
            progress.evaluation_s,
            len(agents),
            failed=not progress.active[index],
        )
        if math.isfinite(progress.returns[index]):
            member.training_return = progress.returns[index]
        member.metrics.update(
            {name: values[index] for name, values in progress.metrics.items() if _finite(values[index])}
        )
        report.members.append(member)
    return report


def _finite(value: Any) -> bool:
    return math.isfinite(float(value))

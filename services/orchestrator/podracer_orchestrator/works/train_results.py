"""Results of training as pods send them: what is in one, whether it may be, and what of it
counts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from podracer.common.v1 import agent_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import InvalidInput
from podracer_orchestrator.tables import LeaseRow, MemberRow
from podracer_orchestrator.works.checkpoints import MemberCommit, commit
from podracer_orchestrator.works.works import Change
from podracer_platform.messages.sections import seconds_from_duration

_ORDERED = (
    agent_pb2.EVALUATION_PURPOSE_CHALLENGE,
    agent_pb2.EVALUATION_PURPOSE_REQUESTED,
    agent_pb2.EVALUATION_PURPOSE_FINAL,
)


def member_commit(message: pod_pb2.MemberCheckpoint) -> MemberCommit:
    """A member's progress and checkpoint, decoded."""
    progress = message.progress
    return MemberCommit(
        agent=progress.agent,
        env_steps=progress.env_steps,
        cost_s=seconds_from_duration(progress.cost),
        evaluation_cost_s=seconds_from_duration(progress.evaluation_cost),
        checkpoint=message.checkpoint,
    )


def evaluations_of(result: pod_pb2.MemberResult) -> Sequence[agent_pb2.Evaluation]:
    """Evaluations that a member brings, the candidate last; each once."""
    found = [*result.evaluations, *([result.candidate] if result.HasField("candidate") else ())]
    return list({evaluation.evaluation_id: evaluation for evaluation in found}.values())


def check_evaluations(evaluations: Iterable[agent_pb2.Evaluation], agents: Collection[str]) -> None:
    """Raise InvalidInput for one that a pod may not say, or of an agent that is not in its
    cohort."""
    for evaluation in evaluations:
        if evaluation.purpose in _ORDERED:
            purpose = agent_pb2.EvaluationPurpose.Name(evaluation.purpose)
            message = (
                f"evaluation {evaluation.evaluation_id!r} says {purpose}, which only an "
                "EVALUATE work can ask for"
            )
            raise InvalidInput(message, reason="WRONG_EVALUATION")
        if not evaluation.evaluation_id or evaluation.agent not in agents:
            raise InvalidInput(
                f"evaluation {evaluation.evaluation_id!r} of {evaluation.agent!r}: expected an id, "
                f"and one of {', '.join(sorted(agents))}",
                reason="WRONG_EVALUATION",
            )


def commit_result(
    change: Change, lease: LeaseRow, result: pod_pb2.TrainResult
) -> Sequence[MemberRow]:
    """Commit what a round has come to; returns the members, which stand there now.

    Raises InvalidInput where the result is not of this cohort.
    """
    members = change.work.members
    if len(result.members) != len(members):
        message = (
            f"a result of {len(result.members)} members for a {lease.kind} lease of {len(members)}"
        )
        raise InvalidInput(message, reason="WRONG_RESULT")
    for member, each in zip(members, result.members, strict=True):
        _check(member, each)
    candidates = [
        (member.agent, each.candidate.checkpoint)
        for member, each in zip(members, result.members, strict=True)
        if each.HasField("candidate")
    ]
    finals = [member_commit(each.final) for each in result.members if each.HasField("final")]
    commit(change.session, lease, finals, change.now, candidates)
    change.session.flush()
    return members


def _check(member: MemberRow, result: pod_pb2.MemberResult) -> None:
    """Raise InvalidInput for a result that is not this member's, or that says what it may not."""
    if result.HasField("final") and result.final.progress.agent != member.agent:
        raise InvalidInput(
            f"the result of {result.final.progress.agent!r} at the place of {member.agent}",
            reason="WRONG_RESULT",
        )
    if result.HasField("candidate") and not result.candidate.HasField("checkpoint"):
        raise InvalidInput(
            f"the candidate of {member.agent} has no checkpoint", reason="WRONG_RESULT"
        )
    check_evaluations(evaluations_of(result), {member.agent})

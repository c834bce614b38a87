"""Pieces of work: what each kind of them is, those that wait, and the proposals that fill them; and
results of training as pods send them: which may be, and what of them counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import InvalidInput
from podracer_orchestrator import outbox
from podracer_orchestrator.jobs import BudgetSplit, Grant, JobPlan, Remainder, RoundLimits
from podracer_orchestrator.stored_messages import encode
from podracer_orchestrator.tables import JobRow, LeaseRow, MemberRow, WorkKind, WorkRow, WorkState
from podracer_orchestrator.transactions import WORK, job_topic, touch
from podracer_orchestrator.works.checkpoints import MemberCommit, commit
from podracer_platform.messages import seconds_from_duration
from podracer_platform.rpc import last_part

GENERATOR_FAILED = "GENERATOR_FAILED"
MAX_GENERATOR_PROBLEMS = 20
"""Events of a job about its generator, whose message may be another one each time."""
MOST_TOLD = 4_000
"""The characters of a traceback and its output, from the end, that an event tells."""
BudgetLeft = Callable[[], tuple[Remainder, BudgetSplit]]
"""The rest of a job's budget now, and the number of teams that share it."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happens now to a piece of work, which `pod` gets, has or had."""

    session: Session
    job: JobRow
    work: WorkRow
    pod: str
    now: datetime

    def record(self, kind: str, message: str, *, subject: str = "", **details: object) -> None:
        """Append an event about the work to the job's log."""
        details["work"] = self.work.id
        outbox.record(
            self.session, self.job, kind, message, now=self.now, subject=subject, **details
        )


class Work(ABC):
    """A kind of work: what a pod is granted and told, and what its end means for the job."""

    kind: ClassVar[WorkKind]
    results: ClassVar[tuple[type[Any], ...]] = ()
    """The message that completes a lease of it, besides Problem."""

    def grant(self, change: Change, budget: BudgetLeft) -> Grant | None:
        """The reservations of a lease; None if the work has to wait."""
        return Grant(RoundLimits())

    @abstractmethod
    def encode(self, change: Change, lease: LeaseRow, message: pod_pb2.Lease) -> None:
        """Say in `message` what the pod has to do."""

    def complete(self, change: Change, lease: LeaseRow, result: Any) -> None:
        """Take the result of a lease that has just ended. Raises InvalidInput for a wrong one."""
        change.work.state, change.work.end_time = WorkState.DONE, change.now

    def fail(self, change: Change, problem: cohort_pb2.Problem) -> None:
        """Take it that the work cannot be done."""
        change.work.state, change.work.end_time = WorkState.FAILED, change.now
        change.work.problem = encode(problem)
        told = {"traceback": problem.detail[-MOST_TOLD:]} if problem.detail else {}
        change.record("WORK_FAILED", f"{self.kind} failed: {problem.message}", **told)

    def can_go_on(self, change: Change) -> bool:
        """Whether another pod can go on with a work after one of its checkpoints was refused."""
        return False

    def is_overdue(self, grant_time: datetime, now: datetime) -> bool:
        """Whether a pod that keeps its lease alive must have hung."""
        return False


class Stage(Work):
    """The kind of work of a stage after training: while a job has one open, nothing else is done
    for it."""

    @abstractmethod
    def is_wanted(self, session: Session, job: JobRow) -> bool:
        """Whether the job, which has no work of this kind yet, goes through it."""

    @abstractmethod
    def begin(self, session: Session, job: JobRow, now: datetime) -> None:
        """Make its work."""


_WITH_READY = select(WorkRow.job_uid).where(WorkRow.state == WorkState.READY).distinct()
_OF_JOB = (
    select(WorkRow)
    .where(WorkRow.job_uid == bindparam("job"))
    .order_by(WorkRow.create_time, WorkRow.id)
)
_READY = _OF_JOB.where(WorkRow.state == WorkState.READY)
_BEFORE_STAGES = (WorkKind.INSPECT, WorkKind.TRAIN, WorkKind.CHALLENGE)
_OF_STAGES = (
    select(WorkRow.id)
    .where(WorkRow.job_uid == bindparam("job"), WorkRow.kind.not_in(_BEFORE_STAGES))
    .limit(1)
)
_OF_KIND = _OF_JOB.where(WorkRow.kind == bindparam("kind"))
_OF_KIND_IN = _OF_KIND.where(WorkRow.state.in_(bindparam("states", expanding=True)))


def with_ready(session: Session) -> set[str]:
    """The jobs that have works which wait for a pod."""
    return set(session.scalars(_WITH_READY))


def of_kind(session: Session, job: JobRow, kind: WorkKind, *states: WorkState) -> Sequence[WorkRow]:
    """The works of a job of one kind, in any of `states` or in all, oldest first."""
    query = _OF_KIND_IN if states else _OF_KIND
    return session.scalars(query, {"job": job.uid, "kind": kind, "states": states}).all()


def has_begun_stage(session: Session, job: JobRow) -> bool:
    """Whether the job is in a stage after training or has completed one; it then trains no further
    round."""
    return session.scalar(_OF_STAGES, {"job": job.uid}) is not None


def ready(session: Session, job: JobRow) -> Sequence[WorkRow]:
    """The works of a job that wait for a pod, oldest first."""
    return session.scalars(_READY, {"job": job.uid}).all()


def store_proposal(
    session: Session,
    job: JobRow,
    work: WorkRow,
    proposal: leaderboard_pb2.ProposeCohortResponse,
    now: datetime,
) -> None:
    """Make a PROPOSING work READY with the leaderboard's answer, or forget it where the answer is
    empty.

    The new agents are counted here, once, because the work leaves PROPOSING here.
    """
    if proposal.HasField("generator_problem"):
        _note_generator_problem(session, job, proposal.generator_problem, now)
    if proposal.finished:
        job.rounds_over = True
        touch(session, job_topic(job.uid))
    if not proposal.proposals:
        session.delete(work)
        return
    work.proposal = encode(proposal)
    work.state, work.places = WorkState.READY, len(proposal.proposals)
    for position, each in enumerate(proposal.proposals):
        work.members.append(MemberRow(position=position, agent=each.agent.name))
    fresh = [
        each
        for each in proposal.proposals
        if each.action != leaderboard_pb2.PROPOSAL_ACTION_CONTINUE
    ]
    job.agent_count += len(fresh)
    message = ", ".join(_describe(each) for each in proposal.proposals)
    outbox.record(session, job, "COHORT_PROPOSED", message, now=now, work=work.id)
    touch(session, WORK, job_topic(job.uid))


def round_of(plan: JobPlan, proposal: leaderboard_pb2.ProposeCohortResponse) -> RoundLimits:
    """The whole round: as the leaderboard wants it, else as the job does."""
    time_s = seconds_from_duration(proposal.round_time) if proposal.HasField("round_time") else None
    proposed = RoundLimits(proposal.round_env_steps, time_s)
    return plan.round if proposed == RoundLimits() else proposed


def _note_generator_problem(
    session: Session, job: JobRow, problem: cohort_pb2.Problem, now: datetime
) -> None:
    """An event for each thing that is wrong with the generator, not for each proposal."""
    known = outbox.messages(session, job, GENERATOR_FAILED)
    if problem.message not in known and len(known) < MAX_GENERATOR_PROBLEMS:
        outbox.record(
            session, job, GENERATOR_FAILED, problem.message, now=now, traceback=problem.detail
        )


def _describe(proposal: leaderboard_pb2.Proposal) -> str:
    action = leaderboard_pb2.ProposalAction.Name(proposal.action).removeprefix("PROPOSAL_ACTION_")
    parents = [parent.agent for parent in proposal.agent.initialization.parents]
    if action == "FRESH" and parents:  # a founder's copy
        source = (
            parents[0]
            .removeprefix("projects/")
            .partition("/")[2]
            .removeprefix("jobs/")
            .replace("/agents/", "/")
        )
        return f"COPY {last_part(proposal.agent.name)} of {source}"
    return f"{action} {last_part(proposal.agent.name)}"


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

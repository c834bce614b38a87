"""Works that wait for a pod or for the leaderboard's proposal, and the proposals that fill them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.common.v1 import cohort_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.jobs.messages import seconds_from_duration
from podracer_core.rpc.resource_names import last_part
from podracer_orchestrator import events
from podracer_orchestrator.jobs.budget import Grant, RoundLimits
from podracer_orchestrator.jobs.plan import JobPlan
from podracer_orchestrator.stored_messages import encode
from podracer_orchestrator.tables import JobRow, MemberRow, WorkKind, WorkRow, WorkState
from podracer_orchestrator.transactions import WORK, job_topic, touch

GENERATOR_FAILED = "GENERATOR_FAILED"
MAX_GENERATOR_PROBLEMS = 20
"""Events of a job about its generator, whose message may be another one each time."""
NO_ROUND = Grant(RoundLimits())
"""What an inspection is granted: it trains no agent."""

Waiting = Mapping[str, Collection[tuple[str, str]]]
"""Kind and state of each sort of work that waits to be taken up or filled, by job."""


def waiting(session: Session, job_uids: Collection[str]) -> Waiting:
    """What waits, of several jobs in one look."""
    query = (
        select(WorkRow.job_uid, WorkRow.kind, WorkRow.state)
        .where(WorkRow.job_uid.in_(job_uids), WorkRow.state.in_([WorkState.READY.value, WorkState.PROPOSING.value]))
        .distinct()
    )
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for job_uid, kind, state in session.execute(query):
        found[job_uid].add((kind, state))
    return found


def ready(session: Session, job_uid: str) -> Iterator[WorkRow]:
    """The works of a job that wait for a pod, oldest first; evaluations aside, which go first, see `objective`."""
    query = select(WorkRow).where(
        WorkRow.job_uid == job_uid, WorkRow.state == WorkState.READY, WorkRow.kind != WorkKind.EVALUATE
    )
    return iter(session.scalars(query.order_by(WorkRow.create_time, WorkRow.id)))


def proposing(session: Session, job_uid: str) -> WorkRow | None:
    """The oldest TRAIN work of a job whose proposal has not been stored: of now, or from before a crash."""
    query = select(WorkRow).where(
        WorkRow.job_uid == job_uid, WorkRow.state == WorkState.PROPOSING, WorkRow.kind == WorkKind.TRAIN
    )
    return session.scalar(query.order_by(WorkRow.create_time, WorkRow.id).limit(1))


def store_proposal(
    session: Session, job: JobRow, work: WorkRow, proposal: leaderboard_pb2.ProposeCohortResponse, now: datetime
) -> None:
    """Make a PROPOSING work READY with the leaderboard's answer, or forget it where the answer is empty.

    The new agents are counted here, once, because the work leaves PROPOSING here.
    """
    if proposal.HasField("generator_problem"):
        _note_generator_problem(session, job, proposal.generator_problem, now)
    if proposal.finished:
        job.rounds_over = True
    if not proposal.proposals:
        session.delete(work)
        return
    work.proposal = encode(proposal)
    work.state, work.places = WorkState.READY, len(proposal.proposals)
    for position, each in enumerate(proposal.proposals):
        session.add(MemberRow(work_id=work.id, position=position, agent=each.agent.name))
    fresh = [each for each in proposal.proposals if each.action != leaderboard_pb2.PROPOSAL_ACTION_CONTINUE]
    job.agent_count += len(fresh)
    session.flush()
    message = ", ".join(_describe(each) for each in proposal.proposals)
    events.record(session, job, "COHORT_PROPOSED", message, now=now, work=work.id)
    touch(session, WORK, job_topic(job.uid))


def round_of(plan: JobPlan, proposal: leaderboard_pb2.ProposeCohortResponse) -> RoundLimits:
    """The whole round: as the leaderboard wants it, else as the job does."""
    time_s = seconds_from_duration(proposal.round_time) if proposal.HasField("round_time") else None
    proposed = RoundLimits(proposal.round_env_steps, time_s)
    return plan.round if proposed == RoundLimits() else proposed


def _note_generator_problem(session: Session, job: JobRow, problem: cohort_pb2.Problem, now: datetime) -> None:
    """An event for each thing that is wrong with the generator, not for each proposal."""
    known = events.messages(session, job, GENERATOR_FAILED)
    if problem.message not in known and len(known) < MAX_GENERATOR_PROBLEMS:
        events.record(session, job, GENERATOR_FAILED, problem.message, now=now, traceback=problem.detail)


def _describe(proposal: leaderboard_pb2.Proposal) -> str:
    action = leaderboard_pb2.ProposalAction.Name(proposal.action).removeprefix("PROPOSAL_ACTION_")
    return f"{action} {last_part(proposal.agent.name)}"

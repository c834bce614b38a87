"""The last training of a job: its best candidate once more, where the job says so with other arguments of the
environment, and judged by nobody. What comes of it is what the job ends with.

Whatever becomes of it, the job ends afterwards; where it fails, with the candidate itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.rpc.resource_names import last_part
from podracer_orchestrator import events
from podracer_orchestrator.jobs import founders, jobs
from podracer_orchestrator.stored_messages import best_of, checkpoint_reference, encode, proposal_of, spec_of
from podracer_orchestrator.tables import CheckpointRow, JobRow, MemberRow, WorkKind, WorkRow, WorkState
from podracer_orchestrator.transactions import WORK, touch
from podracer_orchestrator.works.checkpoints import members_of
from podracer_orchestrator.works.evaluation_works import fresh_seeds

_ENDING = "-retrained"


def is_wanted(session: Session, job: JobRow) -> bool:
    """Whether the job has to train its best once more before it ends."""
    if not spec_of(job).HasField("retrain") or job.best is None or job.retrained is not None:
        return False
    return not any(work.state == WorkState.FAILED for work in _works(session, job))


def has_begun(session: Session, job: JobRow) -> bool:
    """Whether it is certain who is trained once more."""
    return bool(_works(session, job))


def begin(session: Session, job: JobRow, now: datetime) -> None:
    """Make its work; nothing but the best is trained any more."""
    best = best_of(job)
    assert best is not None, "it is wanted"
    row = session.get(CheckpointRow, best.checkpoint.prefix)
    cohort = [] if row is None else founders.cohort_of(session, row)
    work = jobs.add_work(session, job, WorkKind.RETRAIN, WorkState.READY, now, places=len(cohort))
    agent = _agent(session, job, best)
    if agent is None:
        give_up(session, job, work, cohort_pb2.Problem(message=f"{best.agent} has no checkpoint any more"), now)
        return
    env_steps = spec_of(job).retrain.env_steps or best.checkpoint.env_steps
    proposal = leaderboard_pb2.ProposeCohortResponse(
        proposals=[leaderboard_pb2.Proposal(agent=agent)], round_env_steps=env_steps
    )
    work.proposal = encode(proposal)
    session.flush()
    session.add(MemberRow(work_id=work.id, position=0, agent=agent.name))
    message = f"{best.agent} is trained once more, for {env_steps:,} steps"
    events.record(session, job, "RETRAINING_STARTED", message, now=now, subject=agent.name, work=work.id)
    touch(session, WORK)


def complete(session: Session, job: JobRow, work: WorkRow, result: pod_pb2.MemberResult, now: datetime) -> None:
    """Take what a completed work has come to; its last checkpoint has been committed."""
    (member,) = members_of(session, work.id)
    row = None if member.checkpoint is None else session.get(CheckpointRow, member.checkpoint)
    if result.HasField("problem"):
        give_up(session, job, work, result.problem, now)
    elif result.final.progress.failed or row is None:
        give_up(session, job, work, cohort_pb2.Problem(message=f"{member.agent} has diverged"), now)
    else:
        work.state, work.end_time = WorkState.DONE, now
        policy = agent_pb2.Parent(agent=member.agent, checkpoint=checkpoint_reference(row))
        job.retrained = encode(policy)
        message = f"the job ends with {member.agent}, after {member.env_steps:,} steps"
        events.record(session, job, "RETRAINED", message, now=now, subject=member.agent, work=work.id)


def give_up(session: Session, job: JobRow, work: WorkRow, problem: cohort_pb2.Problem, now: datetime) -> None:
    """Have the job end with its candidate as it is."""
    work.state, work.end_time = WorkState.FAILED, now
    work.problem = encode(problem)
    message = f"the job ends with its candidate as it is: {problem.message or problem.reason}"
    events.record(session, job, "RETRAINING_FAILED", message, now=now, work=work.id)


def has_lost_its_candidate(session: Session, work: WorkRow) -> bool:
    """Whether it would have to begin with other weights than those that were selected, which are damaged."""
    (member,) = members_of(session, work.id)
    if member.checkpoint is not None:
        return False
    (proposal,) = proposal_of(work).proposals
    prefixes = [parent.checkpoint.prefix for parent in proposal.agent.initialization.parents]
    rows = [session.get(CheckpointRow, prefix) for prefix in prefixes]
    return any(row is None or row.refused for row in rows)


def env_steps_left(session: Session, job: JobRow) -> int | None:
    """What is to be trained still; None where it is not at that."""
    for work in _works(session, job):
        if work.state in (WorkState.READY, WorkState.LEASED):
            done = sum(member.env_steps for member in members_of(session, work.id))
            return max(0, proposal_of(work).round_env_steps - done)
    return None


def env_steps(session: Session, job: JobRow) -> int:
    """Committed environment steps that come on top of the objective's limit."""
    return sum(member.env_steps for work in _works(session, job) for member in members_of(session, work.id))


def _agent(session: Session, job: JobRow, best: agent_pb2.Evaluation) -> agent_pb2.AgentSpec | None:
    """A new agent: what becomes of it is told apart from what was selected."""
    founder = founders.of_checkpoint(session, best.agent, best.checkpoint.prefix)
    if founder is None:
        return None
    (seed,) = fresh_seeds(spec_of(job).seed, f"{last_part(best.agent)}{_ENDING}", 1)
    agent = agent_pb2.AgentSpec(
        name=f"{best.agent}{_ENDING}",
        algorithm=founder.algorithm,
        seed=seed,
        hyperparameters=dict(founder.hyperparameters),
    )
    if spec_of(job).retrain.scratch:
        agent.initialization.kind = agent_pb2.INITIALIZATION_KIND_FRESH
        return agent
    agent.initialization.kind = agent_pb2.INITIALIZATION_KIND_COPY
    agent.initialization.parents.add(agent=best.agent, checkpoint=founder.checkpoint)
    agent.env_steps = founder.checkpoint.env_steps
    return agent


def _works(session: Session, job: JobRow) -> Sequence[WorkRow]:
    query = select(WorkRow).where(WorkRow.job_uid == job.uid, WorkRow.kind == WorkKind.RETRAIN)
    return session.scalars(query).all()

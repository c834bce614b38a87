"""Clients' changes to an existing job: update, suspend, delete it, find a policy to promote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.errors import Fenced, FieldViolation, InvalidInput, NotFound, PreconditionFailed
from podracer_core.storage import CheckpointPlace, job_prefix
from podracer_orchestrator import outbox
from podracer_orchestrator.board import LeaderboardClient
from podracer_orchestrator.continuous import Policy, promotions
from podracer_orchestrator.jobs import FINAL_STATES, JobSignal, JobState, changed, founders, jobs
from podracer_orchestrator.outcomes import objective
from podracer_orchestrator.stored_messages import best_of, encode, retrained_of, spec_of
from podracer_orchestrator.tables import (
    CheckpointRow,
    ContinuationRow,
    EventRow,
    JobFileRow,
    JobRow,
    LeaseRow,
    MemberRow,
    PromotionRow,
    WorkRow,
)
from podracer_orchestrator.transactions import (
    POOL,
    WORK,
    Transactions,
    job_topic,
    project_topic,
    touch,
)
from podracer_orchestrator.works import checkpoints
from podracer_platform.rpc import Name, job_name
from podracer_platform.rpc import resource_names as names

POLICY_KINDS = ("agent", "checkpoint", "best checkpoint")


@dataclass(frozen=True, slots=True)
class JobChange:
    """A change: the fields at `paths`, and whether the job is suspended (None: unchanged)."""

    spec: job_pb2.JobSpec
    paths: Sequence[str] = ()
    suspend: bool | None = None
    etag: str = ""


def change(session: Session, job: JobRow, wanted: JobChange, now: datetime) -> None:
    """Carry out a change.

    Raises InvalidInput for a wrong field, PreconditionFailed for an ended job, Fenced for an
    outdated etag.
    """
    if wanted.etag and wanted.etag != str(job.revision):
        message = (
            f"the job has changed since (etag {job.revision}, not {wanted.etag}): read it again"
        )
        raise Fenced(message, reason="ETAG_OUTDATED")
    if JobState(job.state) in FINAL_STATES:
        raise PreconditionFailed(
            f"the job has ended ({job.state}): it cannot change", reason="JOB_ENDED"
        )
    if wanted.paths:
        spec = changed(spec_of(job), wanted.spec, wanted.paths)
        job.spec = encode(spec)
        job.revision += 1
        scaled = (
            f" ({spec.pod.min_count} to {spec.pod.max_count} pods)"
            if any(map(_is_of_pod, wanted.paths))
            else ""
        )
        outbox.record(
            session, job, "JOB_CHANGED", f"changed: {', '.join(wanted.paths)}{scaled}", now=now
        )
        if any(path.startswith("objective.max_") for path in wanted.paths):
            objective.reopen(session, job)
        objective.reconsider(session, job, now)
    if wanted.suspend is not None:
        _set_suspended(session, job, wanted.suspend, now)
    touch(session, POOL, WORK, job_topic(job.uid))


def require_unneeded(session: Session, job: JobRow) -> Sequence[JobRow]:
    """The jobs that are deleted together: the job and its generations.

    Raises PreconditionFailed unless they have ended and no other job needs their checkpoints, for
    an alias or as founders."""
    family = [*jobs.children(session, job), job]
    for each in family:
        if JobState(each.state) not in FINAL_STATES:
            name = "the job" if each is job else each.job_id
            message = f"{name} is {each.state}: cancel it before it is deleted"
            raise PreconditionFailed(message, reason="JOB_NOT_ENDED", state=each.state)
    uids = {each.uid for each in family}
    others = promotions.pointed_at(session, besides=uids) | founders.needed(session)
    for prefix, user in others.items():
        if user.uid not in uids and CheckpointPlace.parse(prefix).job_uid in uids:
            name = job_name(user.project, user.job_id)
            message = (
                f"{name} needs the checkpoint {prefix}: delete that job, or have its alias "
                "point elsewhere"
            )
            raise PreconditionFailed(message, reason="CHECKPOINT_IN_USE", job=name)
    return family


def forget_checkpoints(session: Session, job: JobRow) -> list[str]:
    """Forget the checkpoints of an ended job and its generations, before they are deleted; returns
    the prefixes of their objects.

    From here on no alias can point at them, and no agent can start from them. Raises as
    `require_unneeded` does."""
    family = require_unneeded(session, job)
    for each in family:
        works = select(WorkRow.id).where(WorkRow.job_uid == each.uid)
        session.execute(
            update(MemberRow).where(MemberRow.work_id.in_(works)).values(checkpoint=None)
        )
        session.execute(delete(CheckpointRow).where(CheckpointRow.job_uid == each.uid))
    return [job_prefix(each.project, each.uid) for each in family]


def remove(session: Session, job: JobRow) -> None:
    """Delete an ended job and its generations from the database.

    Their leaderboards follow through the outbox. Raises as `require_unneeded` does.
    """
    for each in require_unneeded(session, job):
        _remove(session, each)


def _remove(session: Session, job: JobRow) -> None:
    outbox.delete_leaderboard(session, job)
    works = select(WorkRow.id).where(WorkRow.job_uid == job.uid)
    session.execute(delete(MemberRow).where(MemberRow.work_id.in_(works)))
    for table in (
        LeaseRow,
        WorkRow,
        CheckpointRow,
        EventRow,
        JobFileRow,
        ContinuationRow,
        PromotionRow,
    ):
        session.execute(delete(table).where(table.job_uid == job.uid))
    session.delete(job)
    touch(session, job_topic(job.uid), project_topic(job.project), WORK, POOL)


def _is_of_pod(path: str) -> bool:
    return path.startswith("pod.")


def _set_suspended(session: Session, job: JobRow, suspend: bool, now: datetime) -> None:
    for child in jobs.children(session, job):
        if JobState(child.state) not in FINAL_STATES:
            _set_suspended(session, child, suspend, now)
    if not jobs.signal(session, job, JobSignal.SUSPEND if suspend else JobSignal.RESUME, now):
        return
    kind, message = (
        ("JOB_SUSPENDED", "suspended") if suspend else ("JOB_RESUMED", f"resumed: {job.state}")
    )
    outbox.record(session, job, kind, message, now=now)


async def find_policy(
    transactions: Transactions, board: LeaderboardClient, job: Name, text: str
) -> Policy:
    """The policy that `text` names; empty: the best one of `job`, or of a continuous job's newest
    generation.

    Raises InvalidInput for a name of another project, NotFound, and PreconditionFailed
    (NO_CANDIDATE) for an agent without a candidate."""
    if not text:
        return await transactions.read(
            lambda session: _best(session, jobs.get(session, job.project, job.id))
        )
    name = names.parse_any(POLICY_KINDS, text, "policy")
    if name.project != job.project:
        message = f"{text} is of another project than {names.job_name(job.project, job.id)}"
        raise InvalidInput(message, violations=[FieldViolation("policy", message)])
    if name.kind != "agent":
        return await transactions.read(lambda session: _checkpoint(session, name))
    owner = await transactions.read(lambda session: jobs.get(session, name.project, name.job))
    retrained = retrained_of(owner)
    if retrained is not None and retrained.agent == text:
        return Policy(text, retrained.checkpoint.prefix)
    leaderboard = outbox.board_of(owner)
    for candidate in (await board.get(leaderboard)).candidates:
        if candidate.agent.name == text:
            return _policy(candidate.evaluation)
    return _of_agent(text, await board.agents(leaderboard))


def _best(session: Session, job: JobRow) -> Policy:
    of = jobs.newest_best(session, job) if job.is_continuous else job
    best = None if of is None else best_of(of)
    if of is None or best is None:
        what = (
            "none of its generations has a candidate yet"
            if job.is_continuous
            else "it has no candidate yet"
        )
        raise PreconditionFailed(
            f"nothing of {job.job_id} can be promoted: {what}", reason="NO_CANDIDATE"
        )
    retrained = retrained_of(of)
    return (
        _policy(best) if retrained is None else Policy(retrained.agent, retrained.checkpoint.prefix)
    )


def _checkpoint(session: Session, name: Name) -> Policy:
    job = jobs.get(session, name.project, name.job)
    if name.kind == "best checkpoint":
        return _best(session, job)
    row = checkpoints.find_checkpoint(session, job, name)
    return Policy(row.agent, row.prefix)


def _of_agent(name: str, agents: list[leaderboard_pb2.Agent]) -> Policy:
    for agent in agents:
        if agent.name == name:
            if agent.HasField("best_evaluation"):
                return _policy(agent.best_evaluation)
            message = f"agent {name} has no candidate: no snapshot of it was judged yet"
            raise PreconditionFailed(message, reason="NO_CANDIDATE", agent=name)
    raise NotFound(f"there is no agent {name}", agent=name)


def _policy(evaluation: agent_pb2.Evaluation) -> Policy:
    return Policy(evaluation.agent, evaluation.checkpoint.prefix, evaluation)

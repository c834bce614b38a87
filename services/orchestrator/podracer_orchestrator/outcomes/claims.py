"""Claims of the target or the first place: they are made, wait for their challenge, and may be
dropped before it.

The evaluation that a claim rests on has selected it, as the best of many by noisy numbers, so it
promises too much. A job has one challenge out at a time. Claims of the target come first and each
is heard, at a level that leaves all of them together one chance of error; of the others only the
best one waits, until it can be paid for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2
from podracer_core.statistics.bootstrap_t import bootstrap_t_lower_bound, claim_level
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.jobs.plan import plan_of
from podracer_orchestrator.jobs.state import TRAINING_STATES, JobState
from podracer_orchestrator.stored_messages import order_of, spec_of
from podracer_orchestrator.tables import JobRow, WorkKind, WorkRow, WorkState
from podracer_orchestrator.transactions import WORK, touch
from podracer_orchestrator.works import evaluation_works, works
from podracer_orchestrator.works.checkpoints import of_job
from podracer_platform.jobs.evaluations import counted

COST_FRACTION = 0.2
"""Part of a job's cost that evaluation may take, a claim's challenge included; one of the target is
always paid for."""
TARGET_EPISODES = 100
"""Episodes at least by which a claim of the target is tested."""
MAX_WAITING = 4
"""Claims of the target that wait to be heard; in a job whose members all hover about it the best
ones are enough."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A candidate, what it scored by the objective's statistic, and whether that passes the
    target."""

    evaluation: agent_pb2.Evaluation
    score: float
    claims_target: bool


def make(session: Session, job: JobRow, claim: Claim, now: datetime) -> bool:
    """Have a claim challenged; False where it is no number or was challenged before, where a better
    one waits or was confirmed, or where the job has its answer."""
    if not evaluation_works.is_finite(claim.evaluation) or claim.evaluation.agent in (
        job.excluded or {}
    ):
        return False
    if (
        JobState(job.state) not in TRAINING_STATES | {JobState.SUSPENDED}
        or job.time_to_target_s is not None
    ):
        return False
    if works.has_begun_stage(session, job):
        return False  # the stages have their policies: a later confirmation would come too late
    checkpoint = claim.evaluation.checkpoint
    if of_job(session, job.uid, checkpoint.prefix) is None or _was_challenged(
        session, checkpoint.prefix, claim
    ):
        return False
    if not claim.claims_target and _is_outdone(job, claim.score):
        return False
    if not _make_room(session, job, claim, now):
        return False
    work = jobs.add_work(session, job, WorkKind.CHALLENGE, WorkState.READY, now)
    policy = agent_pb2.Parent(agent=claim.evaluation.agent, checkpoint=checkpoint)
    episodes = max(plan_of(job).episodes, TARGET_EPISODES if claim.claims_target else 0)
    purpose, seen = agent_pb2.EVALUATION_PURPOSE_CHALLENGE, set(claim.evaluation.seeds)
    evaluation_works.fill(job, work, [policy], purpose, seen, episodes=episodes)
    work.checkpoint = checkpoint.prefix
    work.claimed_score, work.claims_target = claim.score, claim.claims_target
    work.expected_cost_s = evaluation_works.expected_cost_s(claim.evaluation, episodes)
    session.flush()
    touch(session, WORK)
    return True


def aim(session: Session, job: JobRow, target_return: float | None) -> None:
    """The target has changed: what waits claims it from now on; or what is out or waits claims it
    no more."""
    for work in works.of_kind(session, job, WorkKind.CHALLENGE, WorkState.READY, WorkState.LEASED):
        passes = target_return is not None and _claimed(work) >= target_return
        work.claims_target = passes and (work.claims_target or work.state == WorkState.READY)


def lengthen(job: JobRow, work: WorkRow) -> None:
    """Give a claim of the target as many episodes as it takes, if it had fewer as another claim, or
    from a version before; the first stay the same."""
    order = order_of(work)
    if work.claims_target and len(order.seeds) < TARGET_EPISODES:
        work.expected_cost_s *= TARGET_EPISODES / len(order.seeds)
        evaluation_works.fill(
            job, work, order.policies, order.purpose, (), episodes=TARGET_EPISODES
        )


def drop_waiting(session: Session, job: JobRow, now: datetime) -> None:
    """Forget every claim that waits: the job has its answer."""
    _drop(session, _waiting(session, job), now)


def drop_outdone(session: Session, job: JobRow, now: datetime) -> None:
    """Forget the claims of the first place that wait with less than what has been confirmed now."""
    others = (work for work in _waiting(session, job) if not work.claims_target)
    _drop(session, [work for work in others if _is_outdone(job, _claimed(work))], now)


def is_affordable(job: JobRow, work: WorkRow) -> bool:
    """Whether evaluation stays within its part of the job's cost with this challenge."""
    spent_s = job.evaluation_cost_s + work.expected_cost_s
    return work.claims_target or spent_s <= COST_FRACTION * (job.cost_s + work.expected_cost_s)


def heard_claims(session: Session, job: JobRow) -> int:
    """How many claims of the target have had their challenge, the one that is being answered
    included."""
    heard = (WorkRow.job_uid == job.uid, WorkRow.state == WorkState.DONE, WorkRow.claims_target)
    return session.scalars(select(func.count()).select_from(WorkRow).where(*heard)).one()


def corrected_score(job: JobRow, evaluation: agent_pb2.Evaluation, number: int) -> float:
    """The score by which claim `number` of the target, from 1, is tested: the bootstrap-t bound of
    the mean at that claim's level. A mean that the objective asks for, and the bound of a
    deterministic score or of a single episode, are not corrected."""
    known = counted(evaluation, job.lowest_return)
    if known is None:
        return -math.inf
    if plan_of(job).target_is_mean:
        return known.mean
    if known.deterministic or len(known.returns) < 2:
        return known.lower_bound
    return bootstrap_t_lower_bound(tuple(known.returns), claim_level(number), spec_of(job).seed)


def _is_outdone(job: JobRow, claimed: float) -> bool:
    return job.best_is_confirmed and job.best_score is not None and claimed <= job.best_score


def _was_challenged(session: Session, prefix: str, claim: Claim) -> bool:
    """Whether it was, for the same claim: a checkpoint that was confirmed as the first may still
    claim the target."""
    query = select(WorkRow.id).where(
        WorkRow.checkpoint == prefix, WorkRow.state != WorkState.DROPPED
    )
    if claim.claims_target:
        query = query.where(WorkRow.claims_target)
    return session.scalar(query.limit(1)) is not None


def _make_room(session: Session, job: JobRow, claim: Claim, now: datetime) -> bool:
    """Drop the waiting claims that `claim` takes the place of; False where it has to give way to
    them."""
    waiting = _waiting(session, job)
    others = [work for work in waiting if not work.claims_target]
    dropped = others
    if claim.claims_target:
        rivals = sorted((work for work in waiting if work.claims_target), key=_claimed)
        if len(rivals) >= MAX_WAITING:
            if _claimed(rivals[0]) >= claim.score:
                return False
            dropped = [rivals[0], *others]
    elif len(others) < len(waiting) or any(_claimed(work) >= claim.score for work in others):
        return False
    _drop(session, dropped, now)
    return True


def _waiting(session: Session, job: JobRow) -> Sequence[WorkRow]:
    return works.of_kind(session, job, WorkKind.CHALLENGE, WorkState.READY)


def _drop(session: Session, claims: Iterable[WorkRow], now: datetime) -> None:
    for work in claims:
        work.state, work.end_time = WorkState.DROPPED, now
    session.flush()


def _claimed(work: WorkRow) -> float:
    assert work.claimed_score is not None, "a challenge knows what was claimed"
    return work.claimed_score

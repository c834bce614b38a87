"""The meaning of evaluations for a job: its best, its target, and the claims to either."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_orchestrator import outbox
from podracer_orchestrator.jobs import JobPlan, plan_of
from podracer_orchestrator.leases import leases
from podracer_orchestrator.outcomes import broken_worlds, claims
from podracer_orchestrator.outcomes.claims import Claim
from podracer_orchestrator.stored_messages import best_of, encode
from podracer_orchestrator.tables import JobRow, LeaseRow, WorkRow
from podracer_orchestrator.transactions import job_topic, touch
from podracer_orchestrator.works import evaluation_works, of_job, works
from podracer_platform.jobs import CONFIRMING, broken_episodes, counted
from podracer_platform.messages import seconds_from_duration

_LONGEST_S = 100 * 365 * 86400.0
_JUDGING = (
    agent_pb2.EVALUATION_PURPOSE_CANDIDATE,
    agent_pb2.EVALUATION_PURPOSE_CHALLENGE,
    # a look that stands for a candidate: there was no time for more
    agent_pb2.EVALUATION_PURPOSE_PROGRESS,
)


def score(job: JobRow, evaluation: agent_pb2.Evaluation) -> float:
    """The statistic that the objective holds against its target, with broken episodes counted; -∞
    where no episode was intact."""
    known = counted(evaluation, job.lowest_return)
    if known is None:
        return -math.inf
    return known.mean if plan_of(job).target_is_mean else known.lower_bound


def is_full(plan: JobPlan, evaluation: agent_pb2.Evaluation) -> bool:
    """Whether it has the number of episodes that a candidate is judged by, none of which has chosen
    it."""
    if evaluation.purpose == agent_pb2.EVALUATION_PURPOSE_PROGRESS:
        return False
    return (
        len(evaluation.returns) + broken_episodes(evaluation) >= plan.episodes
        or evaluation.deterministic
    )


def claim_of(job: JobRow, evaluation: agent_pb2.Evaluation) -> Claim:
    """A candidate's evaluation as a claim: of the target where it passes that in full."""
    plan, value = plan_of(job), score(job, evaluation)
    passes = (
        plan.target_return is not None and value >= plan.target_return and is_full(plan, evaluation)
    )
    return Claim(evaluation, value, passes)


def consider(
    session: Session, job: JobRow, lease: LeaseRow, evaluation: agent_pb2.Evaluation, now: datetime
) -> None:
    """Take an evaluation into account: it may be the best so far, and it may reach the target.

    Only one that judges, is a number and whose checkpoint has been committed counts: what counts
    can be downloaded and evaluated again. A CHALLENGE goes before all that are none, a full one
    before one that ended early. Whatever passes the target is challenged, unless it is the
    challenge of such a claim: that has reached it if its corrected score passes, too."""
    if broken_worlds.hear(session, job, evaluation, now) and (best := best_of(job)) is not None:
        job.best_score = score(job, best)  # its broken episodes count less
    if evaluation.purpose not in _JUDGING or not evaluation.HasField("checkpoint"):
        return
    if evaluation.agent in (job.excluded or {}) or not evaluation_works.is_finite(evaluation):
        return
    if of_job(session, job.uid, evaluation.checkpoint.prefix) is None:
        return
    claim, full = _stand(session, job, evaluation, now)
    if job.time_to_target_s is not None:
        return
    is_confirmed = evaluation.purpose == agent_pb2.EVALUATION_PURPOSE_CHALLENGE
    if is_confirmed and session.get_one(WorkRow, lease.work_id).claims_target:
        if full:
            number = claims.heard_claims(session, job)
            _reach(session, job, claim, number, _target_time_s(job, lease, evaluation, now), now)
    elif claim.claims_target:
        claims.make(session, job, claim, now)


def _stand(
    session: Session, job: JobRow, evaluation: agent_pb2.Evaluation, now: datetime
) -> tuple[Claim, bool]:
    """Make it the job's best if it is. Returns it as a claim, and whether it is full."""
    claim, full = claim_of(job, evaluation), is_full(plan_of(job), evaluation)
    is_confirmed = evaluation.purpose in CONFIRMING
    standing = (is_confirmed, full, claim.score)
    if job.best_score is None or standing > (
        job.best_is_confirmed,
        job.best_is_full,
        job.best_score,
    ):
        job.best = encode(evaluation)
        job.best_is_confirmed, job.best_is_full, job.best_score = is_confirmed, full, claim.score
        message = f"best so far: {claim.score:.6g} by {evaluation.agent}" + (
            "" if is_confirmed else ", not confirmed"
        )
        outbox.record(
            session, job, "NEW_BEST", message, now=now, subject=evaluation.agent, score=claim.score
        )
        touch(session, job_topic(job.uid))
    return claim, full


def report(
    session: Session, job: JobRow, lease: LeaseRow, evaluation: agent_pb2.Evaluation, now: datetime
) -> None:
    """Make the evaluation of a final the job's best, also where it shows less. With enough episodes
    it is the job's last claim of the target: a policy that is reported above its target has reached
    it."""
    broken_worlds.hear(session, job, evaluation, now)
    claim = claim_of(job, evaluation)
    job.best, job.best_score = encode(evaluation), claim.score
    job.best_is_confirmed = job.best_is_full = True
    touch(session, job_topic(job.uid))
    if len(evaluation.returns) >= claims.TARGET_EPISODES and job.time_to_target_s is None:
        number = claims.heard_claims(session, job) + 1
        _reach(session, job, claim, number, _target_time_s(job, lease, evaluation, now), now)


def reconsider(session: Session, job: JobRow, now: datetime) -> None:
    """The target has changed: the best so far may have reached it, or claims it now, and so may
    what waits."""
    best = best_of(job)
    if best is None or job.time_to_target_s is not None:
        return
    claims.aim(session, job, plan_of(job).target_return)
    claim = claim_of(job, best)
    is_tested = job.best_is_confirmed and (
        best.deterministic or len(best.returns) >= claims.TARGET_EPISODES
    )
    if not claim.claims_target:
        return
    number = claims.heard_claims(session, job) + 1
    if not (is_tested and _reach(session, job, claim, number, leases.active_time_s(job, now), now)):
        claims.make(session, job, claim, now)


def reopen(session: Session, job: JobRow) -> None:
    """The budget has changed: another round may fit into it, unless the job is at work on what
    comes last already."""
    if not works.has_begun_stage(session, job):
        job.rounds_over = False


def hear_claim(
    session: Session, job: JobRow, evaluation: agent_pb2.Evaluation, now: datetime
) -> bool:
    """A candidate claims the leaderboard's first place: have it challenged, unless it was or a
    better one waits."""
    return claims.make(session, job, claim_of(job, evaluation), now)


def hear_next_claim(
    session: Session, job: JobRow, candidates: Sequence[leaderboard_pb2.Candidate], now: datetime
) -> None:
    """A place was confirmed: challenge the best candidate that scores more than the first one now.

    `candidates` are the leaderboard's, in its order: the first is confirmed if any candidate is.
    """
    if job.best is None and candidates and not candidates[0].exclusion:
        _stand(session, job, candidates[0].evaluation, now)  # the former best has been excluded
    first = (
        score(job, candidates[0].evaluation)
        if candidates and candidates[0].confirmed
        else -math.inf
    )
    rivals = [
        each.evaluation
        for each in candidates
        if not each.confirmed and score(job, each.evaluation) > first
    ]
    for evaluation in rivals:
        if hear_claim(session, job, evaluation, now):
            return


def _reach(
    session: Session, job: JobRow, claim: Claim, number: int, time_s: float, now: datetime
) -> bool:
    """End the job's hunt for its target at `time_s` if a challenge passes the target as claim
    `number`."""
    tested = claims.corrected_score(job, claim.evaluation, number)
    target = plan_of(job).target_return
    if target is None or not tested >= target:
        return False
    job.time_to_target_s = time_s
    claims.drop_waiting(session, job, now)
    agent = claim.evaluation.agent
    message = f"{agent} has reached the target: {tested:.6g}, target {target:.6g}"
    outbox.record(session, job, "TARGET_REACHED", message, now=now, subject=agent, score=tested)
    return True


def _target_time_s(
    job: JobRow, lease: LeaseRow, evaluation: agent_pb2.Evaluation, now: datetime
) -> float:
    """Active time of the job when it was known that the target is reached."""
    for field in ("confirm_time", "train_time"):
        if evaluation.HasField(field):
            in_lease_s = seconds_from_duration(getattr(evaluation, field))
            return min(lease.active_time_s + in_lease_s, leases.active_time_s(job, now))
    return leases.active_time_s(job, now)

"""Whether a job has reached its target or used its budget, and ending it then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.jobs.messages import seconds_from_duration
from podracer_orchestrator import events, outbox
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.jobs.budget import Usage, remainder
from podracer_orchestrator.jobs.plan import JobPlan, plan_of
from podracer_orchestrator.jobs.state import ACTIVE_STATES, TRAINING_STATES, JobOutcome, JobState
from podracer_orchestrator.leases import leases
from podracer_orchestrator.outcomes import challenges, post_training, retraining
from podracer_orchestrator.outcomes.challenges import Claim
from podracer_orchestrator.stored_messages import best_of, encode
from podracer_orchestrator.tables import CheckpointRow, JobRow, LeaseRow, WorkRow, WorkState
from podracer_orchestrator.transactions import job_topic, touch
from podracer_orchestrator.works import evaluation_works

_LONGEST_S = 100 * 365 * 86400.0
_JUDGING = (
    agent_pb2.EVALUATION_PURPOSE_CANDIDATE,
    agent_pb2.EVALUATION_PURPOSE_CHALLENGE,
    agent_pb2.EVALUATION_PURPOSE_PROGRESS,  # a look that stands for a candidate: there was no time for more
)


def score(plan: JobPlan, evaluation: agent_pb2.Evaluation) -> float:
    """The statistic that the objective holds against its target."""
    return evaluation.mean if plan.target_is_mean else evaluation.lower_bound


def is_full(plan: JobPlan, evaluation: agent_pb2.Evaluation) -> bool:
    """Whether it has the number of episodes that a candidate is judged by, none of which has chosen it."""
    if evaluation.purpose == agent_pb2.EVALUATION_PURPOSE_PROGRESS:
        return False
    return len(evaluation.returns) >= plan.episodes or evaluation.deterministic


def claim_of(plan: JobPlan, evaluation: agent_pb2.Evaluation) -> Claim:
    """A candidate's evaluation as a claim: of the target where it passes that in full."""
    value = score(plan, evaluation)
    passes = plan.target_return is not None and value >= plan.target_return and is_full(plan, evaluation)
    return Claim(evaluation, value, passes)


def consider(session: Session, job: JobRow, lease: LeaseRow, evaluation: agent_pb2.Evaluation, now: datetime) -> None:
    """Take an evaluation into account: it may be the best so far, and it may reach the target.

    Only one that judges, is a number and whose checkpoint has been committed counts: what counts
    can be downloaded and evaluated again. A CHALLENGE goes before all that are none, a full one before one that ended
    early. Whatever passes the target is challenged, unless it is the challenge of such a claim: that has reached it if
    its corrected score passes, too.
    """
    if evaluation.purpose not in _JUDGING or not evaluation.HasField("checkpoint"):
        return
    if session.get(CheckpointRow, evaluation.checkpoint.prefix) is None or not evaluation_works.is_finite(evaluation):
        return
    plan = plan_of(job)
    claim, full = claim_of(plan, evaluation), is_full(plan, evaluation)
    is_confirmed = evaluation.purpose == agent_pb2.EVALUATION_PURPOSE_CHALLENGE
    standing = (is_confirmed, full, claim.score)
    if job.best_score is None or standing > (job.best_is_confirmed, job.best_is_full, job.best_score):
        job.best = encode(evaluation)
        job.best_is_confirmed, job.best_is_full, job.best_score = is_confirmed, full, claim.score
        message = f"best so far: {claim.score:.6g} by {evaluation.agent}" + ("" if is_confirmed else ", not confirmed")
        events.record(session, job, "NEW_BEST", message, now=now, subject=evaluation.agent, score=claim.score)
        touch(session, job_topic(job.uid))
    if claim.claims_target and job.time_to_target_s is None:
        if not is_confirmed or not session.get_one(WorkRow, lease.work_id).claims_target:
            challenges.make(session, job, claim, now)
        elif _holds(plan, claim, challenges.heard_claims(session, job)):
            _reach(session, job, claim, _target_time_s(job, lease, evaluation, now), now)


def reconsider(session: Session, job: JobRow, now: datetime) -> None:
    """The target has changed: the best so far may have reached it, or claims it now, and so may what waits."""
    best = best_of(job)
    if best is None or job.time_to_target_s is not None:
        return
    plan = plan_of(job)
    challenges.aim(session, job, plan.target_return)
    claim = claim_of(plan, best)
    holds = job.best_is_confirmed and _holds(plan, claim, challenges.heard_claims(session, job) + 1)
    if claim.claims_target and holds:
        _reach(session, job, claim, leases.active_time_s(job, now), now)
    elif claim.claims_target:
        challenges.make(session, job, claim, now)


def reopen(session: Session, job: JobRow) -> None:
    """The budget has changed: another round may fit into it, unless the job is at work on what comes last already."""
    if not post_training.has_begun(session, job):
        job.rounds_over = False


def hear_claim(session: Session, job: JobRow, evaluation: agent_pb2.Evaluation, now: datetime) -> bool:
    """A candidate claims the leaderboard's first place: have it challenged, unless it was or a better one waits."""
    return challenges.make(session, job, claim_of(plan_of(job), evaluation), now)


def hear_last_claims(session: Session, job: JobRow, candidates: Sequence[agent_pb2.Evaluation], now: datetime) -> None:
    """The budget is used by a round that has brought `candidates`: the best one claims to be the job's.

    Most jobs are best at their end, and the leaderboard's word would come after it.
    """
    if not is_budget_used(job, now) or job.best_score is None:
        return
    plan = plan_of(job)
    for claim in (claim_of(plan, each) for each in candidates if is_full(plan, each)):
        if claim.score >= job.best_score:
            challenges.make(session, job, claim, now)


def hear_next_claim(
    session: Session, job: JobRow, candidates: Sequence[leaderboard_pb2.Candidate], now: datetime
) -> None:
    """A place was confirmed: have the best of those challenged that score more than who is first now.

    `candidates` are the leaderboard's, in its order: the first is confirmed where anybody is.
    """
    plan = plan_of(job)
    first = score(plan, candidates[0].evaluation) if candidates and candidates[0].confirmed else float("-inf")
    claims = [each.evaluation for each in candidates if not each.confirmed and score(plan, each.evaluation) > first]
    for evaluation in claims:
        if hear_claim(session, job, evaluation, now):
            return


def next_evaluation(session: Session, job: JobRow, now: datetime) -> WorkRow | None:
    """The EVALUATE work of a job that a pod can take up now, one at a time.

    A claim below the target waits while evaluation has taken its part of the cost; what still waits when nothing else
    is left to do is heard after all, or the job would end with a best that everybody doubts. What would make the job
    end late is not heard.
    """
    works = evaluation_works.in_states(session, job.uid, [WorkState.READY, WorkState.LEASED])
    left_s = evaluation_works.late_left_s(job, leases.active_time_s(job, now))
    waiting = [work for work in works if work.checkpoint is None or work.expected_cost_s <= left_s]
    if not waiting or any(work.state == WorkState.LEASED for work in works):
        return None
    first = min(waiting, key=_precedence)
    if first.checkpoint is None or challenges.is_affordable(job, first) or _is_idle_for_good(session, job, now):
        return first
    return None


def finish_if_due(session: Session, job: JobRow, now: datetime) -> None:
    """End the job where its target is reached, or where its budget is used and neither a lease nor a challenge is out.

    The leaderboard has heard by then how the last challenge went, and has named whoever claims more now. Where the job
    has a stage after training still to go through, that comes before the end.
    """
    if job.is_continuous:
        return  # it ends when its user says so
    state = JobState(job.state)
    if job.time_to_target_s is not None and state in TRAINING_STATES | {JobState.SUSPENDED}:
        outcome = JobOutcome.TARGET_REACHED
        message = f"target reached after {job.time_to_target_s:.1f} s of training"
    elif state in TRAINING_STATES and _is_idle_for_good(session, job, now) and not _has_claims(session, job, now):
        outcome = JobOutcome.BUDGET_USED
        message = f"budget used: {job.env_steps:,} steps in {leases.active_time_s(job, now):.1f} s"
        limit, selected = plan_of(job).budget.env_steps, job.env_steps - retraining.env_steps(session, job)
        if selected < job.env_steps:
            message += f", {job.env_steps - selected:,} of the steps to train the best once more"
        if limit is not None and selected > limit:
            message += f"; rollouts are finished, so that is {selected - limit:,} more than max_env_steps"
    else:
        return
    stage = post_training.next_stage(session, job)
    if stage is None:
        jobs.succeed(session, job, outcome, message, now)
    elif not leases.held(session, job_uid=job.uid):  # who trains still may bring a candidate for it
        post_training.begin(session, job, stage, now)


def is_budget_used(job: JobRow, now: datetime) -> bool:
    """Whether no further round can begin even when every lease has given back what it reserved."""
    if job.rounds_over:
        return True
    return remainder(plan_of(job).budget, leases.used(job, now)).is_empty


def expected_end_s(job: JobRow, used: Usage, pods: int, env_steps_per_second: float) -> float | None:
    """Seconds until the budget is used at the present speed, by so many `pods`.

    None where it cannot be told, or is more than a lifetime away.
    """
    if JobState(job.state) not in ACTIVE_STATES or job.active_since is None:
        return None
    plan = plan_of(job)
    waits = []
    if plan.budget.env_steps is not None and env_steps_per_second > 0.0:
        waits.append((plan.budget.env_steps - used.env_steps) / env_steps_per_second)
    if plan.budget.active_time_s is not None:
        waits.append(plan.budget.active_time_s - used.active_time_s)
    if plan.budget.cost_s is not None:
        waits.append((plan.budget.cost_s - used.cost_s) / max(1, pods))
    left_s = max(0.0, min(waits, default=math.inf))
    return left_s if left_s < _LONGEST_S else None


def _reach(session: Session, job: JobRow, claim: Claim, time_s: float, now: datetime) -> None:
    job.time_to_target_s = time_s
    challenges.drop_waiting(session, job, now)
    agent, target = claim.evaluation.agent, plan_of(job).target_return
    message = f"{agent} has reached the target: {claim.score:.6g}, target {target:.6g}"
    events.record(session, job, "TARGET_REACHED", message, now=now, subject=agent, score=claim.score)


def _holds(plan: JobPlan, claim: Claim, number: int) -> bool:
    """Whether a challenge passes the target as claim `number`."""
    target = plan.target_return
    return target is not None and challenges.corrected_score(plan, claim.evaluation, number) >= target


def _precedence(work: WorkRow) -> tuple[bool, bool, float, str]:
    """Whatever is least comes first: the ensemble, claims of the target, the better claim."""
    return work.checkpoint is not None, not work.claims_target, -(work.claimed_score or 0.0), work.checkpoint or ""


def _is_idle_for_good(session: Session, job: JobRow, now: datetime) -> bool:
    return is_budget_used(job, now) and not leases.held(session, job_uid=job.uid)


def _has_claims(session: Session, job: JobRow, now: datetime) -> bool:
    """Whether somebody waits to be challenged, or may once the leaderboard has heard of the last challenge."""
    return next_evaluation(session, job, now) is not None or outbox.has_challenge(session, outbox.board_of(job))


def _target_time_s(job: JobRow, lease: LeaseRow, evaluation: agent_pb2.Evaluation, now: datetime) -> float:
    """Active time of the job when it was known that the target is reached."""
    for field in ("confirm_time", "train_time"):
        if evaluation.HasField(field):
            in_lease_s = seconds_from_duration(getattr(evaluation, field))
            return min(lease.active_time_s + in_lease_s, leases.active_time_s(job, now))
    return leases.active_time_s(job, now)

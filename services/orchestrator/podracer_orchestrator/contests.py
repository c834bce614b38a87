"""The contest at the end of a generation: the champion and the challenger, which is the generation's best, are both
evaluated in the generation's environment, with the arguments that the continuous job has for it and by the same seeds.

It is the last stage of the generation's job, which ends afterwards whatever becomes of it. What follows from it is
decided when the job has ended (`supervision`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, cohort_pb2, environment_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.statistics.student_t import student_t_quantile
from podracer_orchestrator import evaluation_works, events, founders, jobs, promotions, retraining
from podracer_orchestrator.changes import WORK, touch
from podracer_orchestrator.job_files import environment_of
from podracer_orchestrator.job_plan import read_spec
from podracer_orchestrator.job_state import FINAL_STATES, JobState
from podracer_orchestrator.tables import JobRow, WorkKind, WorkRow, WorkState

CHAMPION, CHALLENGER = "champion", "challenger"
_OPEN = (WorkState.READY, WorkState.LEASED)
_CONFIDENCE = 0.975
"""Of the one-sided bound of the mean difference: that of a two-sided 95 % interval."""


@dataclass(frozen=True, slots=True)
class Contest:
    """How it went: both evaluations, or why there are none."""

    champion_prefix: str
    champion: agent_pb2.Evaluation | None = None
    challenger: agent_pb2.Evaluation | None = None
    problem: str = ""


def is_wanted(session: Session, job: JobRow) -> bool:
    """Whether the job has to hold its contest before it ends."""
    works = _works(session, job)
    if works:
        return any(work.state in _OPEN for work in works)
    final = retraining.final_policy(job)
    if job.parent_uid is None or final is None:
        return False
    parent = session.get(JobRow, job.parent_uid)
    if parent is None or JobState(parent.state) in FINAL_STATES:
        return False
    present = promotions.champion(session, parent)
    if present is None or present.prefix == final.checkpoint.prefix:
        return False
    return can_act(session, job, present.prefix)


def has_begun(session: Session, job: JobRow) -> bool:
    """Whether the job is at work on its contest, or has held it: from then on it is certain who is judged."""
    return bool(_works(session, job))


def begin(session: Session, job: JobRow, now: datetime) -> None:
    """Training is over: nothing but the contest is worked for any more."""
    if has_begun(session, job):
        return
    parent = jobs.get_by_uid(session, job.parent_uid or "")
    present = promotions.champion(session, parent)
    jobs.drop_waiting(session, job, now)
    job.rounds_over = True
    best, challenger = agent_pb2.Evaluation.FromString(job.best or b""), retraining.final_policy(job)
    assert present is not None and challenger is not None, "there are two to compare"
    checkpoint = agent_pb2.CheckpointReference.FromString(present.checkpoint or b"")
    sides = {
        CHAMPION: agent_pb2.Parent(agent=present.agent, checkpoint=checkpoint),
        CHALLENGER: challenger,
    }
    environment = _environment(job, parent)
    for side, policy in sides.items():
        work = jobs.add_work(session, job, WorkKind.EVALUATE, WorkState.READY, now)
        work.contest = side
        evaluation_works.fill(
            job,
            work,
            [policy],
            agent_pb2.EVALUATION_PURPOSE_REQUESTED,
            set(best.seeds),
            seeds_of=f"{job.uid}/contest",
            environment=environment,
        )
    message = f"{challenger.agent} against {present.agent}"
    events.record(session, job, "CONTEST_STARTED", message, now=now, subject=challenger.agent)
    touch(session, WORK)


def complete(session: Session, job: JobRow, work: WorkRow, result: pod_pb2.EvaluateResult, now: datetime) -> None:
    """Store how one side did."""
    work.result = result.evaluation.SerializeToString(deterministic=True)
    message = f"the {work.contest}: {evaluation_works.describe(result.evaluation)}"
    details = evaluation_works.numbers(result.evaluation)
    agent = result.evaluation.agent
    events.record(session, job, "CONTEST_EVALUATED", message, now=now, subject=agent, work=work.id, **details)


def outcome(session: Session, job: JobRow) -> Contest | None:
    """How the contest of a job that has ended went; None where there was none."""
    works = {work.contest: work for work in _works(session, job)}
    if not works:
        return None
    prefix = evaluation_works.order_of(works[CHAMPION]).policies[0].checkpoint.prefix
    for side, work in works.items():
        if work.result is None:
            problem = cohort_pb2.Problem.FromString(work.problem or b"").message or "its job ended before"
            return Contest(prefix, problem=f"the {side} could not be evaluated: {problem}")
    first, second = (agent_pb2.Evaluation.FromString(works[side].result or b"") for side in (CHAMPION, CHALLENGER))
    return Contest(prefix, first, second)


def is_won(champion: agent_pb2.Evaluation, challenger: agent_pb2.Evaluation, margin: float) -> tuple[bool, str]:
    """Whether the challenger takes the champion's place, and why, for people.

    Its mean has to be above the champion's by more than `margin`. Where episodes differ, so has to be the lower end of
    the 95 % interval of the mean difference, paired by seed: chance alone must not promote anybody. Where evaluation is
    deterministic, the mean is the environment's own statistic, and there is nothing else to compare.
    """
    if not (evaluation_works.is_finite(champion) and evaluation_works.is_finite(challenger)):
        return False, "an evaluation is not a finite number"
    compared = f"{challenger.mean:.6g} against the champion's {champion.mean:.6g}"
    if challenger.mean - champion.mean <= margin:
        return False, f"{compared}, it takes more than {margin:g} above" if margin else f"{compared}, which is not more"
    if champion.deterministic and challenger.deterministic:
        return True, compared
    bound = paired_lower_bound(champion.returns, challenger.returns)
    if bound <= margin:
        return False, f"{compared}, but with 95 % confidence only {bound:.6g} above, it takes more than {margin:g}"
    return True, f"{compared}, with 95 % confidence at least {bound:.6g} above"


def paired_lower_bound(first: Sequence[float], second: Sequence[float]) -> float:
    """Lower end of the two-sided 95 % interval (Student's t) of the mean of `second - first`, episode by episode.

    Minus infinity where there are less than two pairs.
    """
    differences = [right - left for left, right in zip(first, second, strict=True)]
    if len(differences) < 2:
        return -math.inf
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.fmean(differences) - student_t_quantile(_CONFIDENCE, len(differences) - 1) * error


def can_act(session: Session, job: JobRow, prefix: str) -> bool:
    """Whether the policy of a checkpoint knows the spaces of the job's environment."""
    description = environment_pb2.EnvironmentDescription.FromString(job.description or b"")
    return founders.fits(session, description, prefix)


def _environment(job: JobRow, parent: JobRow) -> environment_pb2.EnvironmentSpec:
    environment = environment_of(read_spec(job.spec))
    environment.kwargs.update(dict(read_spec(parent.spec).continuous.contest))
    return environment


def _works(session: Session, job: JobRow) -> Sequence[WorkRow]:
    query = select(WorkRow).where(WorkRow.job_uid == job.uid, WorkRow.contest != "")
    return session.scalars(query.order_by(WorkRow.contest)).all()

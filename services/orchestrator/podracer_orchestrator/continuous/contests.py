"""The contest at the end of a generation: the champion and the challenger, which is the
generation's best, are both evaluated in the generation's environment, with the arguments that the
continuous job has for it and by the same seeds.

It is the last stage of the generation's job, which then ends in any case. The decision is made when
the job has ended (`generations`)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.statistics import student_t_quantile
from podracer_orchestrator import outbox
from podracer_orchestrator.continuous import promotions
from podracer_orchestrator.jobs import FINAL_STATES, JobState, environment_of, founders, jobs
from podracer_orchestrator.stored_messages import (
    best_of,
    encode,
    final_policy,
    order_of,
    policy_of,
    problem_of,
    result_of,
    spec_of,
)
from podracer_orchestrator.tables import JobRow, LeaseRow, WorkKind, WorkState
from podracer_orchestrator.transactions import WORK, touch
from podracer_orchestrator.works import evaluation_works, works

CHAMPION, CHALLENGER = "champion", "challenger"
_CONFIDENCE = 0.975
"""Confidence of the one-sided bound of the mean difference: the same bound as in a two-sided 95 %
interval."""


@dataclass(frozen=True, slots=True)
class Contest:
    """The result: both evaluations, or why there are none."""

    champion_prefix: str
    champion: agent_pb2.Evaluation | None = None
    challenger: agent_pb2.Evaluation | None = None
    problem: str = ""


class ContestWork(evaluation_works.EvaluationWork, works.Stage):
    """One side of the contest of a generation's job."""

    kind = WorkKind.CONTEST

    def is_wanted(self, session: Session, job: JobRow) -> bool:
        """Whether there is a champion and another policy to challenge it."""
        final = final_policy(job)
        parent = None if job.parent_uid is None else session.get(JobRow, job.parent_uid)
        if final is None or parent is None or JobState(parent.state) in FINAL_STATES:
            return False
        present = promotions.champion(session, parent)
        if present is None or present.prefix == final.checkpoint.prefix:
            return False
        return can_act(session, job, present.prefix)

    def begin(self, session: Session, job: JobRow, now: datetime) -> None:
        """Make the works of both sides."""
        parent = jobs.get_by_uid(session, job.parent_uid or "")
        present = promotions.champion(session, parent)
        best, challenger = best_of(job), final_policy(job)
        assert present is not None and challenger is not None, "there are two to compare"
        environment = environment_of(job)
        environment.kwargs.update(dict(spec_of(parent).continuous.contest))
        for side, policy in {CHAMPION: policy_of(present), CHALLENGER: challenger}.items():
            work = jobs.add_work(session, job, self.kind, WorkState.READY, now)
            work.contest = side
            evaluation_works.fill(
                job,
                work,
                [policy],
                agent_pb2.EVALUATION_PURPOSE_REQUESTED,
                set(best.seeds if best else ()),
                seeds_of=f"{job.uid}/contest",
                environment=environment,
            )
        message = f"{challenger.agent} against {present.agent}"
        outbox.record(session, job, "CONTEST_STARTED", message, now=now, subject=challenger.agent)
        touch(session, WORK)

    def complete(
        self, change: works.Change, lease: LeaseRow, result: pod_pb2.EvaluateResult
    ) -> None:
        """Store the evaluation of one side."""
        super().complete(change, lease, result)
        change.work.result = encode(result.evaluation)
        message = f"the {change.work.contest}: {evaluation_works.describe(result.evaluation)}"
        details = evaluation_works.numbers(result.evaluation)
        change.record("CONTEST_EVALUATED", message, subject=result.evaluation.agent, **details)


def outcome(session: Session, job: JobRow) -> Contest | None:
    """The contest of an ended job; None if there was none."""
    sides = {work.contest: work for work in works.of_kind(session, job, WorkKind.CONTEST)}
    if not sides:
        return None
    prefix = order_of(sides[CHAMPION]).policies[0].checkpoint.prefix
    for side in (CHALLENGER, CHAMPION):
        if sides[side].result is None:
            problem = problem_of(sides[side])
            why = problem.message if problem and problem.message else "its job ended before"
            return Contest(prefix, problem=f"the {side} could not be evaluated: {why}")
    return Contest(prefix, result_of(sides[CHAMPION]), result_of(sides[CHALLENGER]))


def is_won(
    champion: agent_pb2.Evaluation, challenger: agent_pb2.Evaluation, margin: float
) -> tuple[bool, str]:
    """Whether the challenger replaces the champion, and the reason as text.

    Its mean has to be above the champion's by more than `margin`. If episodes differ, the lower end
    of the 95 % interval of the mean difference, paired by seed, has to be so too: chance alone must
    not promote a policy. If evaluation is deterministic, the mean is the environment's own
    statistic, and only that is compared."""
    if not (evaluation_works.is_finite(champion) and evaluation_works.is_finite(challenger)):
        return False, "an evaluation is not a finite number"
    compared = f"{challenger.mean:.6g} against the champion's {champion.mean:.6g}"
    if challenger.mean - champion.mean <= margin:
        return (
            False,
            f"{compared}, it takes more than {margin:g} above"
            if margin
            else f"{compared}, which is not more",
        )
    if champion.deterministic and challenger.deterministic:
        return True, compared
    bound = paired_lower_bound(champion.returns, challenger.returns)
    if bound <= margin:
        return (
            False,
            f"{compared}, but with 95 % confidence only {bound:.6g} above, it takes more than "
            f"{margin:g}",
        )
    return True, f"{compared}, with 95 % confidence at least {bound:.6g} above"


def paired_lower_bound(first: Sequence[float], second: Sequence[float]) -> float:
    """Lower end of the two-sided 95 % interval (Student's t) of the mean of `second - first`,
    episode by episode.

    Minus infinity where there are less than two pairs.
    """
    differences = [right - left for left, right in zip(first, second, strict=True)]
    if len(differences) < 2:
        return -math.inf
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return (
        statistics.fmean(differences)
        - student_t_quantile(_CONFIDENCE, len(differences) - 1) * error
    )


def can_act(session: Session, job: JobRow, prefix: str) -> bool:
    """Whether the policy of a checkpoint has the spaces of the job's environment."""
    return founders.fits(session, job, prefix)

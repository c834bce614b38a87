"""The final of a job that ends without its target (FINAL): fresh episodes choose among its best
candidates, and further ones say what the chosen one is worth, which is what the job reports.

The best of several evaluations promises too much. The leaderboard names the candidates, as those of
an ensemble. If time or cost does not suffice, there are fewer candidates, then fewer episodes, then
no final; the job ends in any case."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.sections.objective import MIN_EPISODES
from podracer_orchestrator import outbox
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.jobs.state import LIVE_STATES, JobState
from podracer_orchestrator.leases import leases
from podracer_orchestrator.outcomes import objective
from podracer_orchestrator.stored_messages import best_of, encode, order_of, result_of
from podracer_orchestrator.tables import JobRow, LeaseRow, WorkKind, WorkState
from podracer_orchestrator.transactions import ENSEMBLE, WORK, touch
from podracer_orchestrator.works import evaluation_works, works
from podracer_orchestrator.works.checkpoints import of_job
from podracer_platform.messages.sections import seconds_from_duration
from podracer_platform.rpc.resource_names import last_part

FINALISTS, CHOOSING, REPORTED = 3, 32, 100
"""The candidates, the episodes of each that choose one, and the episodes of the chosen one that the
job reports."""
FRACTION = 0.1
"""Seconds that a final may take, as a part of the job's active time or its cost, whichever is
more."""
_CHOICE, _REPORT = agent_pb2.EVALUATION_PURPOSE_REQUESTED, agent_pb2.EVALUATION_PURPOSE_CHALLENGE
"""How pods are told to evaluate a finalist, and the chosen one."""


class FinalWork(evaluation_works.TimedEvaluationWork, works.Stage):
    """The evaluation of a finalist, or of the chosen one."""

    kind = WorkKind.FINAL

    def is_wanted(self, session: Session, job: JobRow) -> bool:
        """Whether there is a best whose episodes differ and whose cost is known, and no claim of
        the target has passed: that had as many fresh episodes."""
        best = best_of(job)
        if best is None or best.deterministic or job.time_to_target_s is not None:
            return False
        return evaluation_works.expected_cost_s(best, 1) > 0.0

    def begin(self, session: Session, job: JobRow, now: datetime) -> None:
        """Make its work, whose candidates the leaderboard has to name."""
        jobs.add_work(session, job, self.kind, WorkState.PROPOSING, now)
        touch(session, ENSEMBLE)

    def complete(
        self, change: works.Change, lease: LeaseRow, result: pod_pb2.EvaluateResult
    ) -> None:
        """Report the chosen one, or choose once all finalists are evaluated."""
        super().complete(change, lease, result)
        evaluation, job = result.evaluation, change.job
        change.work.result, what = encode(evaluation), ""
        if evaluation.purpose == _REPORT and evaluation_works.is_finite(evaluation):
            evaluation.purpose = agent_pb2.EVALUATION_PURPOSE_FINAL
            outbox.record_evaluations(change.session, job, [evaluation])
            objective.report(change.session, job, lease, evaluation, change.now)
            what = f", the job's result{_less(len(evaluation.returns), REPORTED)}"
        message = f"{last_part(evaluation.agent)}: {evaluation_works.describe(evaluation)}{what}"
        change.record(
            "FINAL_EVALUATED",
            message,
            subject=evaluation.agent,
            **evaluation_works.numbers(evaluation),
        )
        _go_on(change)

    def fail(self, change: works.Change, problem: cohort_pb2.Problem) -> None:
        """Go on with the other finalists, or let the job end with the best that it had before."""
        super().fail(change, problem)
        if order_of(change.work).purpose == _REPORT:
            change.record(
                "FINAL_SKIPPED",
                f"no final: the chosen one could not be evaluated: {problem.message}",
            )
        _go_on(change)


def choose(change: works.Change, candidates: Sequence[leaderboard_pb2.Candidate]) -> None:
    """End a PROPOSING work by ordering those of the first of the ordered `candidates`: as many as
    can be paid for. If that is only one, it is the chosen one; the job's best if the leaderboard
    has none."""
    change.work.state, change.work.end_time = WorkState.DONE, change.now
    best = best_of(change.job)
    found = [each.evaluation for each in candidates if not each.exclusion] or (
        [] if best is None else [best]
    )
    known = [
        each for each in found if of_job(change.session, change.job.uid, each.checkpoint.prefix)
    ]
    for count in range(min(FINALISTS, len(known)), 1, -1):
        costs_s = [evaluation_works.expected_cost_s(each, 1) for each in known[:count]]
        if CHOOSING * sum(costs_s) + REPORTED * max(costs_s) <= _left_s(change):
            for evaluation in known[:count]:
                _order(change, evaluation, CHOOSING, _CHOICE)
            names = ", ".join(last_part(each.agent) for each in known[:count])
            less = _less(count, min(FINALISTS, len(known)))
            change.record(
                "FINAL_STARTED", f"{CHOOSING} fresh episodes each choose among {names}{less}"
            )
            return
    _report(change, known[0] if known else None)


def _go_on(change: works.Change) -> None:
    """Once no finalist is out: have the best of them evaluated to be reported, unless that is done
    or has failed. Among equals it is the best that the job has."""
    if JobState(change.job.state) not in LIVE_STATES:
        return
    change.session.flush()
    there = works.of_kind(change.session, change.job, WorkKind.FINAL)
    if any(
        work.state in (WorkState.READY, WorkState.LEASED) or order_of(work).purpose == _REPORT
        for work in there
    ):
        return
    found = [
        each
        for each in map(result_of, there)
        if each is not None and evaluation_works.is_finite(each)
    ]
    best = best_of(change.job)

    def standing(finalist: agent_pb2.Evaluation) -> tuple[float, bool]:
        return objective.score(
            change.job, finalist
        ), best is not None and finalist.checkpoint == best.checkpoint

    _report(change, max(found, key=standing, default=None))


def _report(change: works.Change, chosen: agent_pb2.Evaluation | None) -> None:
    """Have the chosen one evaluated with as many episodes as can be paid for, if they say more than
    what is known: not fewer than those that have confirmed the job's best."""
    job, best = change.job, best_of(change.job)
    least = len(best.returns) if best is not None and job.best_is_confirmed else MIN_EPISODES
    most = max(REPORTED, least)
    cost_s = 0.0 if chosen is None else evaluation_works.expected_cost_s(chosen, most)
    left_s = max(0.0, _left_s(change))
    episodes = most if cost_s <= left_s else int(most * left_s / cost_s)
    if chosen is not None and episodes >= least:
        _order(change, chosen, episodes, _REPORT)
        return
    why = f"{least} episodes would take {cost_s * least / most:.3g} s, {left_s:.3g} s are left"
    change.record(
        "FINAL_SKIPPED", f"no final: {'no candidate can be evaluated' if chosen is None else why}"
    )


def _order(
    change: works.Change,
    chosen: agent_pb2.Evaluation,
    episodes: int,
    purpose: agent_pb2.EvaluationPurpose.ValueType,
) -> None:
    work = jobs.add_work(change.session, change.job, WorkKind.FINAL, WorkState.READY, change.now)
    policy = agent_pb2.Parent(agent=chosen.agent, checkpoint=chosen.checkpoint)
    evaluation_works.fill(change.job, work, [policy], purpose, set(chosen.seeds), episodes=episodes)
    touch(change.session, WORK)


def _left_s(change: works.Change) -> float:
    """Seconds that the final may still take: its part of the job, and what the job's limits
    leave."""
    results = map(result_of, works.of_kind(change.session, change.job, WorkKind.FINAL))
    spent_s = sum(seconds_from_duration(each.duration) for each in results if each is not None)
    active_s = leases.active_time_s(change.job, change.now)
    part_s = FRACTION * (max(active_s, change.job.cost_s) - spent_s) - spent_s
    return min(part_s, evaluation_works.late_left_s(change.job, active_s))


def _less(count: int, wanted: int) -> str:
    return f", {count} instead of {wanted}: time and cost allow no more" if count < wanted else ""

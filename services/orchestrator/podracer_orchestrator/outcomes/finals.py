"""The final at the end of a job (FINAL): fresh episodes choose among its best candidates, and further ones say what the
chosen one is worth, which is what the job reports.

The best of several evaluations promises too much. The leaderboard names the candidates, as those of an ensemble. Where
time or cost does not last, the first is chosen, then there are fewer episodes, then none; in any case the job goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.jobs.objective import MIN_EPISODES
from podracer_core.rpc.resource_names import last_part
from podracer_orchestrator import outbox
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.jobs.plan import plan_of
from podracer_orchestrator.leases import leases
from podracer_orchestrator.stored_messages import best_of, encode, order_of, result_of
from podracer_orchestrator.tables import CheckpointRow, JobRow, LeaseRow, WorkKind, WorkState
from podracer_orchestrator.transactions import ENSEMBLE, WORK, job_topic, touch
from podracer_orchestrator.works import evaluation_works, works

FINALISTS, CHOOSING, REPORTED = 3, 32, 100
"""Candidates, the episodes that choose among them, and those that are reported of the chosen one."""
COST_FRACTION = 0.1
"""Part of what the job has cost that all of it may take."""
_PURPOSE = agent_pb2.EVALUATION_PURPOSE_CHALLENGE


class FinalWork(evaluation_works.TimedEvaluationWork, works.Stage):
    """The evaluation of a finalist (of purpose REQUESTED), or of the chosen one (CHALLENGE)."""

    kind = WorkKind.FINAL

    def is_wanted(self, session: Session, job: JobRow) -> bool:
        """Where no target was reached, whose claim was tested so, episodes differ and a few can be paid for."""
        best = best_of(job)
        if best is None or best.deterministic or job.time_to_target_s is not None:
            return False
        cost_s = evaluation_works.expected_cost_s(best, MIN_EPISODES)
        return 0.0 < cost_s <= COST_FRACTION * job.cost_s

    def begin(self, session: Session, job: JobRow, now: datetime) -> None:
        """Make its work, whose candidates the leaderboard has to name."""
        jobs.add_work(session, job, self.kind, WorkState.PROPOSING, now)
        touch(session, ENSEMBLE)

    def complete(self, change: works.Change, lease: LeaseRow, result: pod_pb2.EvaluateResult) -> None:
        """Report the chosen one, or choose once all finalists are evaluated."""
        super().complete(change, lease, result)
        evaluation, job = result.evaluation, change.job
        change.work.result, fewer = encode(evaluation), ""
        if evaluation.purpose == _PURPOSE and evaluation_works.is_finite(evaluation):
            outbox.record_evaluations(change.session, job, [evaluation])
            job.best, job.best_score = encode(evaluation), evaluation_works.score(plan_of(job), evaluation)
            job.best_is_confirmed = job.best_is_full = True
            touch(change.session, job_topic(job.uid))
            fewer = f" instead of {REPORTED}" if len(evaluation.returns) < REPORTED else ""
        message = f"{last_part(evaluation.agent)}: {evaluation_works.describe(evaluation)}{fewer}"
        change.record("FINAL_EVALUATED", message, subject=evaluation.agent, **evaluation_works.numbers(evaluation))
        _go_on(change)

    def fail(self, change: works.Change, problem: cohort_pb2.Problem) -> None:
        """Go on with what is known."""
        super().fail(change, problem)
        _go_on(change)


def choose(change: works.Change, candidates: Sequence[leaderboard_pb2.Candidate]) -> None:
    """End a PROPOSING work by making those of the three first of `candidates`, which are in their order; where that is
    too much for what is left, the first alone is evaluated, to be reported."""
    change.work.state, change.work.end_time = WorkState.DONE, change.now
    found = [each.evaluation for each in candidates]
    best = [each for each in found if change.session.get(CheckpointRow, each.checkpoint.prefix)][:FINALISTS]
    costs_s = [evaluation_works.expected_cost_s(each, 1) for each in best]
    if len(best) > 1 and CHOOSING * sum(costs_s) + REPORTED * max(costs_s) <= _left_s(change):
        for evaluation in best:
            _order(change, evaluation, CHOOSING, agent_pb2.EVALUATION_PURPOSE_REQUESTED)
    else:
        _report(change, best[0] if best else None)


def _go_on(change: works.Change) -> None:
    """Once no finalist is out: have the best of them evaluated to be reported, unless that is done or has failed."""
    change.session.flush()
    there = works.of_kind(change.session, change.job, WorkKind.FINAL)
    if any(work.state in (WorkState.READY, WorkState.LEASED) or order_of(work).purpose == _PURPOSE for work in there):
        return
    found = filter(evaluation_works.is_finite, filter(None, map(result_of, there)))
    _report(change, max(found, key=partial(evaluation_works.score, plan_of(change.job)), default=None))


def _report(change: works.Change, chosen: agent_pb2.Evaluation | None) -> None:
    """Have the chosen one evaluated with as many episodes as can be paid for, if there are enough."""
    cost_s = 0.0 if chosen is None else evaluation_works.expected_cost_s(chosen, REPORTED)
    episodes = REPORTED if cost_s <= 0.0 else int(REPORTED * min(1.0, _left_s(change) / cost_s))
    if chosen is not None and episodes >= MIN_EPISODES:
        _order(change, chosen, episodes, _PURPOSE)
    else:
        why = "no candidate can be evaluated" if chosen is None else "neither time nor cost is left"
        change.record("FINAL_SKIPPED", f"no final: {why}")


def _order(
    change: works.Change, chosen: agent_pb2.Evaluation, episodes: int, purpose: agent_pb2.EvaluationPurpose.ValueType
) -> None:
    work = jobs.add_work(change.session, change.job, WorkKind.FINAL, WorkState.READY, change.now)
    policy = agent_pb2.Parent(agent=chosen.agent, checkpoint=chosen.checkpoint)
    evaluation_works.fill(change.job, work, [policy], purpose, set(chosen.seeds), episodes=episodes)
    touch(change.session, WORK)


def _left_s(change: works.Change) -> float:
    """Seconds that the job's limits and its cost leave."""
    late_s = evaluation_works.late_left_s(change.job, leases.active_time_s(change.job, change.now))
    return min(late_s, COST_FRACTION * change.job.cost_s)

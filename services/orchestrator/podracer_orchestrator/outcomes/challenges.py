"""Challenges (CHALLENGE): a candidate that claims the target or the first place is evaluated again,
with fresh seeds, before it counts."""

from __future__ import annotations

from podracer.common.v1 import agent_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.statistics.bootstrap_t import claim_level
from podracer_orchestrator import outbox
from podracer_orchestrator.jobs.budget import Grant, RoundLimits
from podracer_orchestrator.jobs.plan import plan_of
from podracer_orchestrator.outcomes import claims, ending
from podracer_orchestrator.outcomes.objective import consider, score
from podracer_orchestrator.stored_messages import order_of
from podracer_orchestrator.tables import LeaseRow, WorkKind
from podracer_orchestrator.works import evaluation_works, works
from podracer_platform.rpc.resource_names import last_part


class ChallengeWork(evaluation_works.TimedEvaluationWork):
    """The evaluation of a claim."""

    kind = WorkKind.CHALLENGE

    def grant(self, change: works.Change, budget: works.BudgetLeft) -> Grant | None:
        """The reservation of its expected cost (0 without a limit of cost); None until it is its
        turn."""
        job, work = change.job, change.work
        if ending.next_challenge(change.session, job, change.now) is not work:
            return None
        claims.lengthen(job, work)
        (policy,) = order_of(work).policies
        what = "the target" if work.claims_target else "the first place"
        score = f"{work.claimed_score:.6g}"
        message = (
            f"{last_part(policy.agent)} claims {what} with {score}: it is evaluated again "
            f"on {change.pod}"
        )
        change.record(
            "CHALLENGE_STARTED", message, subject=policy.agent, claimed=work.claimed_score
        )
        cost_s = 0.0 if plan_of(job).budget.cost_s is None else work.expected_cost_s
        return Grant(RoundLimits(), reserved_cost_s=cost_s)

    def complete(
        self, change: works.Change, lease: LeaseRow, result: pod_pb2.EvaluateResult
    ) -> None:
        """Report the result to the leaderboard, and decide about the claim and those that wait."""
        super().complete(change, lease, result)
        session, job = change.session, change.job
        outbox.record_evaluations(session, job, [result.evaluation])
        _note_result(change, result.evaluation)
        consider(session, job, lease, result.evaluation, change.now)
        claims.drop_outdone(session, job, change.now)


def _note_result(change: works.Change, evaluation: agent_pb2.Evaluation) -> None:
    """Say how a challenge went: against the target, or the best that was confirmed before."""
    job, work, plan = change.job, change.work, plan_of(change.job)
    number = claims.heard_claims(change.session, job)
    if work.claims_target:
        value, bar = claims.corrected_score(job, evaluation, number), plan.target_return
    else:
        value, bar = score(job, evaluation), job.best_score if job.best_is_confirmed else None
    is_passed = evaluation_works.is_finite(evaluation) and (
        bar is None or (value >= bar if work.claims_target else value > bar)
    )
    against = (
        "" if bar is None else f", {'target' if work.claims_target else 'best confirmed'} {bar:.6g}"
    )
    if work.claims_target and not plan.target_is_mean:
        against += f" (claim {number}, at the level {claim_level(number):.2%})"
    message = (
        f"{last_part(evaluation.agent)} scores {value:.6g} after it claimed "
        f"{work.claimed_score:.6g}{against}: {evaluation_works.describe(evaluation)}"
    )
    details = {
        "claimed": work.claimed_score,
        "score": value,
        **evaluation_works.numbers(evaluation),
    }
    kind = "CHALLENGE_PASSED" if is_passed else "CHALLENGE_FAILED"
    change.record(kind, message, subject=evaluation.agent, **details)

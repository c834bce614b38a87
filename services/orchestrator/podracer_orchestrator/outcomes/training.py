"""Works of a job in training: INSPECT, which comes before it, and TRAIN, a round of a cohort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, cohort_pb2, environment_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import InvalidInput, PodracerError
from podracer_orchestrator import outbox
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.jobs.budget import Grant, cut_round
from podracer_orchestrator.jobs.job_files import environment_of
from podracer_orchestrator.jobs.plan import plan_of
from podracer_orchestrator.jobs.state import LIVE_STATES, JobSignal, JobState
from podracer_orchestrator.leases import leases
from podracer_orchestrator.leases.lease_messages import train_work
from podracer_orchestrator.outcomes import broken_worlds, claims, ending, retraining
from podracer_orchestrator.outcomes.objective import claim_of, consider, is_full
from podracer_orchestrator.stored_messages import (
    as_problem,
    checkpoint_reference,
    proposal_of,
    spec_of,
)
from podracer_orchestrator.tables import CheckpointRow, JobRow, LeaseRow, MemberRow, WorkKind
from podracer_orchestrator.works.checkpoints import load_checkpoints
from podracer_orchestrator.works.train_results import commit_result, evaluations_of
from podracer_orchestrator.works.works import BudgetLeft, Change, Work, round_of
from podracer_platform.jobs.spec import validate_spaces
from podracer_platform.messages.catalogue import environment_from_message, space_from_message
from podracer_platform.messages.sections import (
    search_from_message,
    seconds_from_duration,
    seconds_to_duration,
)
from podracer_platform.rpc import limits

MAX_FAILED_WORKS = 3
"""Consecutive failed works of a job, without a commit, before the job fails."""
INSPECTION_TIMEOUT_S = 120.0
_MOST_SIZES = 200  # letters


class InspectWork(Work):
    """The inspection of a job's environment."""

    kind, results = WorkKind.INSPECT, (pod_pb2.InspectResult,)

    def encode(self, change: Change, lease: LeaseRow, message: pod_pb2.Lease) -> None:
        """The environment, and the one of the retraining."""
        spec = spec_of(change.job)
        message.inspect.environment.CopyFrom(environment_of(change.job))
        message.inspect.timeout.CopyFrom(seconds_to_duration(INSPECTION_TIMEOUT_S))
        if spec.retrain.kwargs.fields:
            message.inspect.retrain_environment.CopyFrom(retraining.environment(change.job))

    def complete(self, change: Change, lease: LeaseRow, result: pod_pb2.InspectResult) -> None:
        """Store the environment's description; then agents can be proposed.

        The job fails if one of its algorithms cannot act in the environment, or its search space
        fits none that can."""
        super().complete(change, lease, result)
        session, job = change.session, change.job
        if JobState(job.state) not in LIVE_STATES:
            return
        try:
            _check_search(job, result.description)
        except PodracerError as error:
            jobs.fail(session, job, as_problem(error), change.now)
            return
        change.record(
            "ENVIRONMENT_INSPECTED", f"the environment runs on {result.description.backend}"
        )
        for warning in result.warnings:
            change.record("ENVIRONMENT_WARNING", warning)
        if result.description.shares_state:
            environment = environment_from_message(spec_of(job).environment)
            change.record("ENVIRONMENT_ISOLATED", environment.shared_state_warning)
        jobs.cut_episodes(session, job, result.description, change.now)
        jobs.describe(session, job, result.description, change.now)
        jobs.signal(session, job, JobSignal.INSPECTED, change.now)

    def fail(self, change: Change, problem: cohort_pb2.Problem) -> None:
        """The job fails with it."""
        super().fail(change, problem)
        if JobState(change.job.state) in LIVE_STATES:
            jobs.fail(change.session, change.job, problem, change.now)


class TrainWork(Work):
    """A round of the agents that the leaderboard has proposed."""

    kind, results = WorkKind.TRAIN, (pod_pb2.TrainResult,)

    def grant(self, change: Change, budget: BudgetLeft) -> Grant | None:
        """The round, cut to what is left of the budget."""
        whole = round_of(plan_of(change.job), proposal_of(change.work))
        left, split = budget()
        return cut_round(
            leases.round_left(change.session, change.work, whole), left, change.work.places, split
        )

    def encode(self, change: Change, lease: LeaseRow, message: pod_pb2.Lease) -> None:
        """The agents, for a lead and its followers."""
        followers = plan_of(change.job).learners - 1
        message.train.CopyFrom(
            train_work(change.session, change.job, change.work, lease, followers)
        )

    def complete(self, change: Change, lease: LeaseRow, result: pod_pb2.TrainResult) -> None:
        """Commits, evaluations, the leaderboard's news."""
        super().complete(change, lease, result)
        session, job, work, now = change.session, change.job, change.work, change.now
        members = commit_result(change, lease, result)
        stand = _stand(session, members)
        found = [each for one in result.members for each in evaluations_of(one)]
        outbox.record_evaluations(session, job, found)
        for evaluation in found:
            # the lowest return of all, before any of them counts
            broken_worlds.hear(session, job, evaluation, now)
        for member, each in zip(members, result.members, strict=True):
            _submit(change, member, each, stand)
            for evaluation in evaluations_of(each):
                consider(session, job, lease, evaluation, now)
        job.completed_rounds += 1
        work.attempts = 0
        if lease.is_cut and all(member.env_steps == member.base_env_steps for member in members):
            job.rounds_over = True  # what is left of the budget is too small for any step
        sizes = f": {result.sizes[:_MOST_SIZES]}" if result.sizes else ""
        message = f"a round of {len(members)} agents on {lease.pod} is over{sizes}"
        change.record("ROUND_COMPLETED", message, subject=lease.pod, fence=lease.fence)
        broken_worlds.hear_training(session, job, work.members, result.breaks, now)
        algorithm = proposal_of(work).proposals[0].agent.algorithm
        round_s = seconds_from_duration(result.train_time)
        broken_worlds.note_speed(session, job, algorithm, result.env_steps_per_second, round_s, now)
        problems = [each.problem for each in result.members if each.HasField("problem")]
        for problem in problems:
            change.record("AGENT_FAILED", problem.message, reason=problem.reason)
        if len(problems) == len(members):
            _note_failure(change, problems[0])
        _hear_last_claims(
            change, [each.candidate for each in result.members if each.HasField("candidate")]
        )

    def fail(self, change: Change, problem: cohort_pb2.Problem) -> None:
        """Fail the work; its agents are reported as failed."""
        super().fail(change, problem)
        members = change.work.members
        stand = _stand(change.session, members)
        for member in members:
            request = _submission(change, member, problem.message or problem.reason, stand)
            outbox.submit_candidate(change.session, change.job, request)
        _note_failure(change, problem)

    def can_go_on(self, change: Change) -> bool:
        """True: the work continues from the checkpoint before."""
        return True


def record_evaluations(
    session: Session,
    job: JobRow,
    received: Sequence[tuple[LeaseRow, Sequence[agent_pb2.Evaluation]]],
    now: datetime,
) -> None:
    """Record checked evaluations that came with renewals of a job's leases."""
    looks = [each for _, evaluations in received for each in evaluations]
    outbox.record_evaluations(session, job, looks, at_once=False)
    for lease, evaluations in received:
        for evaluation in evaluations:
            consider(session, job, lease, evaluation, now)


def _note_failure(change: Change, problem: cohort_pb2.Problem) -> None:
    """Count a failed work; several in a row fail the job."""
    job = change.job
    job.failed_works += 1
    if JobState(job.state) in LIVE_STATES and job.failed_works >= MAX_FAILED_WORKS:
        jobs.fail(change.session, job, problem, change.now)


def _hear_last_claims(change: Change, candidates: Sequence[agent_pb2.Evaluation]) -> None:
    """The budget is used by a round that has brought `candidates`: the best one claims to be the
    job's.

    Most jobs are best at their end, and the leaderboard's word would come after it.
    """
    job, plan = change.job, plan_of(change.job)
    if not ending.is_budget_used(job, change.now) or job.best_score is None:
        return
    for claim in (claim_of(job, each) for each in candidates if is_full(plan, each)):
        if claim.score >= job.best_score:
            claims.make(change.session, job, claim, change.now)


Stand = Mapping[str, CheckpointRow]
"""The checkpoints at which members stand, by prefix."""


def _stand(session: Session, members: Sequence[MemberRow]) -> Stand:
    prefixes = [member.checkpoint for member in members if member.checkpoint is not None]
    return {row.prefix: row for row in load_checkpoints(session, prefixes)}


def _submission(
    change: Change, member: MemberRow, failure: str, stand: Stand
) -> leaderboard_pb2.SubmitCandidateRequest:
    """The member's state after the work."""
    request = leaderboard_pb2.SubmitCandidateRequest(
        leaderboard=outbox.board_of(change.job),
        request_id=f"{change.work.id}/{member.position}",
        agent=member.agent,
        env_steps=member.env_steps,
        cost=seconds_to_duration(member.cost_s),
        failure=failure,
    )
    if member.checkpoint is not None:
        request.latest.CopyFrom(checkpoint_reference(stand[member.checkpoint]))
    return request


def _submit(change: Change, member: MemberRow, result: pod_pb2.MemberResult, stand: Stand) -> None:
    """Report a member's round to the leaderboard."""
    plan, request = plan_of(change.job), _submission(change, member, _failure(result), stand)
    # The leaderboard sizes cohorts by the reported sizes: none if the job has a fixed size.
    request.member_count = 0 if plan.members else change.work.places
    if result.final.progress.HasField("training_return"):
        # All that is known where nothing was evaluated: it scores in its rung.
        known, value = request.candidate, result.final.progress.training_return
        known.purpose, known.agent, known.mean = (
            agent_pb2.EVALUATION_PURPOSE_PROGRESS,
            member.agent,
            value,
        )
        known.lower_bound, known.upper_bound = value, value
        known.returns.append(value)
    if result.HasField("candidate"):
        request.candidate.CopyFrom(result.candidate)
        if not is_full(plan, result.candidate):
            # It ended early: clearly below admission, which may have come down since, or in too
            # short a round.
            request.candidate.purpose = agent_pb2.EVALUATION_PURPOSE_PROGRESS
    outbox.submit_candidate(change.session, change.job, request)


def _failure(result: pod_pb2.MemberResult) -> str:
    if result.HasField("problem"):
        return result.problem.message or result.problem.reason or "failed"
    return "diverged" if result.final.progress.failed else ""


def _check_search(job: JobRow, description: environment_pb2.EnvironmentDescription) -> None:
    if description.ByteSize() > limits.SPEC_BYTES:
        raise InvalidInput(f"the environment's description has more than {limits.SPEC_BYTES} bytes")
    search = search_from_message(spec_of(job).search)
    validate_spaces(
        search, *map(space_from_message, (description.observation_space, description.action_space))
    )

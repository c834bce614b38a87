"""What a finished lease brings: everything of it in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, cohort_pb2, environment_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.catalogue.messages import space_from_message
from podracer_core.errors import InvalidInput, PodracerError
from podracer_core.jobs.messages import seconds_from_duration, seconds_to_duration
from podracer_core.jobs.search import Search
from podracer_core.jobs.spec import validate_action_space
from podracer_orchestrator import events, outbox
from podracer_orchestrator.continuous import contests
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.jobs.plan import plan_of
from podracer_orchestrator.jobs.state import LIVE_STATES, JobSignal, JobState
from podracer_orchestrator.leases import leases
from podracer_orchestrator.outcomes import challenges, ensembles, failures, retraining
from podracer_orchestrator.outcomes.objective import consider, finish_if_due, hear_last_claims, is_full, score
from podracer_orchestrator.stored_messages import checkpoint_reference, spec_of
from podracer_orchestrator.tables import (
    CheckpointRow,
    JobRow,
    LeaseRow,
    LeaseState,
    MemberRow,
    WorkKind,
    WorkRow,
    WorkState,
)
from podracer_orchestrator.works import evaluation_works
from podracer_orchestrator.works.checkpoints import MemberCommit, commit, load_checkpoints, members_of, refuse

_MOST_SIZES = 200  # letters
_ORDERED = (agent_pb2.EVALUATION_PURPOSE_CHALLENGE, agent_pb2.EVALUATION_PURPOSE_REQUESTED)


def member_commit(message: pod_pb2.MemberCheckpoint) -> MemberCommit:
    """A member's progress and checkpoint, decoded."""
    progress = message.progress
    return MemberCommit(
        agent=progress.agent,
        env_steps=progress.env_steps,
        cost_s=seconds_from_duration(progress.cost),
        evaluation_cost_s=seconds_from_duration(progress.evaluation_cost),
        checkpoint=message.checkpoint,
    )


def complete_train(session: Session, lease: LeaseRow, result: pod_pb2.TrainResult, now: datetime) -> None:
    """End a held TRAIN or RETRAIN lease with its result: commits, evaluations, the leaderboard's news, the end of the
    job.

    Raises InvalidInput where the result is not of this cohort.
    """
    job = session.get_one(JobRow, lease.job_uid)
    work = session.get_one(WorkRow, lease.work_id)
    members = members_of(session, work.id)
    if lease.kind not in (WorkKind.TRAIN, WorkKind.RETRAIN) or len(result.members) != len(members):
        raise InvalidInput(
            f"a result of {len(result.members)} members for a {lease.kind} lease of {len(members)}",
            reason="WRONG_RESULT",
        )
    for member, each in zip(members, result.members, strict=True):
        _check_result(member, each)
    candidates = [
        (member.agent, each.candidate.checkpoint)
        for member, each in zip(members, result.members, strict=True)
        if each.HasField("candidate")
    ]
    finals = [member_commit(each.final) for each in result.members if each.HasField("final")]
    commit(session, lease, finals, now, candidates)
    session.flush()
    if lease.kind == WorkKind.RETRAIN:
        leases.end(session, job, lease, LeaseState.COMPLETED, now)
        if JobState(job.state) in LIVE_STATES:
            retraining.complete(session, job, work, result.members[0], now)
        finish_if_due(session, job, now)
        return
    stand = [member.checkpoint for member in members if member.checkpoint is not None]
    checkpoints = {row.prefix: row for row in load_checkpoints(session, stand)}
    outbox.record_evaluations(session, job, [each for one in result.members for each in _evaluations(one)])
    for member, each in zip(members, result.members, strict=True):
        _submit(session, job, lease, member, len(members), each, checkpoints)
        for evaluation in _evaluations(each):
            consider(session, job, lease, evaluation, now)
    job.completed_rounds += 1
    work.state, work.end_time, work.attempts = WorkState.DONE, now, 0
    if lease.is_cut and all(member.env_steps == member.base_env_steps for member in members):
        job.rounds_over = True  # what is left of the budget is too small for any step
    leases.end(session, job, lease, LeaseState.COMPLETED, now)
    sizes = f": {result.sizes[:_MOST_SIZES]}" if result.sizes else ""
    message = f"a round of {len(members)} agents on {lease.pod} is over{sizes}"
    events.record(session, job, "ROUND_COMPLETED", message, now=now, subject=lease.pod, fence=lease.fence, work=work.id)
    problems = [each.problem for each in result.members if each.HasField("problem")]
    if len(problems) == len(members):
        failures.note_failure(session, job, work.kind, problems[0], now)
    hear_last_claims(session, job, [each.candidate for each in result.members if each.HasField("candidate")], now)
    finish_if_due(session, job, now)


def complete_inspection(session: Session, lease: LeaseRow, result: pod_pb2.InspectResult, now: datetime) -> None:
    """End a held INSPECT lease: the job's environment is known, and agents can be proposed.

    The job fails where an algorithm that it asks for cannot act in it, or its search space fits none that can.
    """
    job = session.get_one(JobRow, lease.job_uid)
    if lease.kind != WorkKind.INSPECT:
        raise InvalidInput(f"the result of an inspection for a {lease.kind} lease", reason="WRONG_RESULT")
    work = session.get_one(WorkRow, lease.work_id)
    work.state, work.end_time = WorkState.DONE, now
    leases.end(session, job, lease, LeaseState.COMPLETED, now)
    if JobState(job.state) not in LIVE_STATES:
        return
    try:
        _check_search(job, result.description)
    except PodracerError as error:
        jobs.fail(session, job, failures.problem_of(error), now)
        return
    message = f"the environment runs on {result.description.backend}"
    events.record(session, job, "ENVIRONMENT_INSPECTED", message, now=now)
    jobs.describe(session, job, result.description)
    jobs.signal(session, job, JobSignal.INSPECTED, now)


def complete_evaluation(session: Session, lease: LeaseRow, result: pod_pb2.EvaluateResult, now: datetime) -> None:
    """End a held EVALUATE lease: its cost, the leaderboard's news, the claim's or ensemble's result, the job's end.

    Raises InvalidInput where the result is not what the work asked for.
    """
    job = session.get_one(JobRow, lease.job_uid)
    work = session.get_one(WorkRow, lease.work_id)
    if lease.kind != WorkKind.EVALUATE:
        raise InvalidInput(f"the result of an evaluation for a {lease.kind} lease", reason="WRONG_RESULT")
    evaluation_works.check_result(work, result)
    cost_s = max(0.0, seconds_from_duration(result.cost))
    job.cost_s += cost_s
    job.evaluation_cost_s += cost_s
    work.state, work.end_time = WorkState.DONE, now
    if work.contest:
        contests.complete(session, job, work, result, now)
    elif evaluation_works.is_of_ensemble(work):
        ensembles.complete(session, job, work, result, now)
    else:
        outbox.record_evaluations(session, job, [result.evaluation])
        plan = plan_of(job)
        value = score(plan, result.evaluation)
        if work.claims_target:
            value = challenges.corrected_score(plan, result.evaluation, challenges.heard_claims(session, job))
        challenges.note_result(session, job, work, result.evaluation, value, now)
        consider(session, job, lease, result.evaluation, now)
        challenges.drop_outdone(session, job, now)
    leases.end(session, job, lease, LeaseState.COMPLETED, now)
    finish_if_due(session, job, now)


def complete_with_problem(
    session: Session, lease: LeaseRow, problem: cohort_pb2.Problem, now: datetime, *, sound_here: bool = False
) -> None:
    """End a held lease whose work cannot be done, here or elsewhere. A follower only leaves: its lead will say.

    `sound_here`: what the pod could not read is in the store as it was committed, so something is wrong with the pod.
    """
    if lease.kind == WorkKind.FOLLOW:
        why = f"{lease.pod} cannot follow: {problem.message or problem.reason}"
        failures.leave(session, lease, LeaseState.COMPLETED, why, now, problem=problem)
        return
    if sound_here:
        why = f"{lease.pod} cannot read what is sound in the store: {problem.message}"
        failures.lose(session, lease, LeaseState.RELEASED, why, now, problem=problem)
        return
    job = session.get_one(JobRow, lease.job_uid)
    work = session.get_one(WorkRow, lease.work_id)
    leases.end(session, job, lease, LeaseState.COMPLETED, now)
    if refuse(session, job, work, problem, now) and _can_go_on(session, work):
        failures.free(session, job, work, now)
    else:
        failures.fail(session, job, work, problem, now)
    finish_if_due(session, job, now)


def check_evaluations(evaluations: Iterable[agent_pb2.Evaluation], agents: Collection[str]) -> None:
    """Raise InvalidInput for one that a pod may not say, or of an agent that is not in its cohort."""
    for evaluation in evaluations:
        if evaluation.purpose in _ORDERED:
            purpose = agent_pb2.EvaluationPurpose.Name(evaluation.purpose)
            message = f"evaluation {evaluation.evaluation_id!r} says {purpose}, which only an EVALUATE work can ask for"
            raise InvalidInput(message, reason="WRONG_EVALUATION")
        if not evaluation.evaluation_id or evaluation.agent not in agents:
            raise InvalidInput(
                f"evaluation {evaluation.evaluation_id!r} of {evaluation.agent!r}: expected an id, and one of "
                f"{', '.join(sorted(agents))}",
                reason="WRONG_EVALUATION",
            )


def record_evaluations(
    session: Session, job: JobRow, received: Sequence[tuple[LeaseRow, Sequence[agent_pb2.Evaluation]]], now: datetime
) -> None:
    """Take evaluations that came with renewals of a job's leases, and are sound."""
    looks = [each for _, evaluations in received for each in evaluations]
    outbox.record_evaluations(session, job, looks, at_once=False)
    for lease, evaluations in received:
        for evaluation in evaluations:
            consider(session, job, lease, evaluation, now)


def _can_go_on(session: Session, work: WorkRow) -> bool:
    """Whether a work can, one of whose checkpoints is damaged: from the one before it."""
    if work.kind == WorkKind.RETRAIN:
        return not retraining.has_lost_its_candidate(session, work)
    return work.kind == WorkKind.TRAIN


def _check_result(member: MemberRow, result: pod_pb2.MemberResult) -> None:
    """Raise InvalidInput for a result that is not this member's, or that says what it may not."""
    if result.HasField("final") and result.final.progress.agent != member.agent:
        raise InvalidInput(
            f"the result of {result.final.progress.agent!r} at the place of {member.agent}", reason="WRONG_RESULT"
        )
    if result.HasField("candidate") and not result.candidate.HasField("checkpoint"):
        raise InvalidInput(f"the candidate of {member.agent} has no checkpoint", reason="WRONG_RESULT")
    check_evaluations(_evaluations(result), {member.agent})


def _evaluations(result: pod_pb2.MemberResult) -> Sequence[agent_pb2.Evaluation]:
    """What a member brings, the candidate last; each once."""
    found = [*result.evaluations, *([result.candidate] if result.HasField("candidate") else ())]
    return list({evaluation.evaluation_id: evaluation for evaluation in found}.values())


def _submit(
    session: Session,
    job: JobRow,
    lease: LeaseRow,
    member: MemberRow,
    member_count: int,
    result: pod_pb2.MemberResult,
    checkpoints: Mapping[str, CheckpointRow],
) -> None:
    """Tell the leaderboard how the round went for one member; `checkpoints`: those where members stand."""
    request = leaderboard_pb2.SubmitCandidateRequest(
        leaderboard=outbox.board_of(job),
        request_id=f"{lease.work_id}/{member.position}",
        agent=member.agent,
        env_steps=member.env_steps,
        cost=seconds_to_duration(member.cost_s),
        failure=_failure(result),
        # The leaderboard sizes cohorts by what it hears of sizes: nothing where the job has chosen one.
        member_count=0 if plan_of(job).members else member_count,
    )
    if result.final.progress.HasField("training_return"):
        # All that is known where nothing was evaluated: it scores in its rung.
        known, value = request.candidate, result.final.progress.training_return
        known.purpose, known.agent, known.mean = agent_pb2.EVALUATION_PURPOSE_PROGRESS, member.agent, value
        known.lower_bound, known.upper_bound = value, value
        known.returns.append(value)
    if member.checkpoint is not None:
        request.latest.CopyFrom(checkpoint_reference(checkpoints[member.checkpoint]))
    if result.HasField("candidate"):
        request.candidate.CopyFrom(result.candidate)
        if not is_full(plan_of(job), result.candidate):
            # It ended early because it was clearly below admission, which may have come down since.
            request.candidate.purpose = agent_pb2.EVALUATION_PURPOSE_PROGRESS
    outbox.submit_candidate(session, job, request)


def _failure(result: pod_pb2.MemberResult) -> str:
    if result.HasField("problem"):
        return result.problem.message or result.problem.reason or "failed"
    return "diverged" if result.final.progress.failed else ""


def _check_search(job: JobRow, description: environment_pb2.EnvironmentDescription) -> None:
    search = Search.from_message(spec_of(job).search)
    validate_action_space(search, space_from_message(description.action_space))

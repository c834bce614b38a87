"""Leases as messages: what each kind of work asks its pod for."""

from __future__ import annotations

from sqlalchemy.orm import Session

from podracer.common.v1 import cohort_pb2, environment_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.jobs.messages import seconds_from_duration, seconds_to_duration
from podracer_core.jobs.objective import EVALUATION_FRACTION
from podracer_core.jobs.pod import CHECKPOINT_INTERVAL_S
from podracer_core.rpc.resource_names import job_name, lease_name
from podracer_core.rpc.tokens import LeaseTokens
from podracer_orchestrator.jobs.job_files import environment_of
from podracer_orchestrator.jobs.plan import plan_of
from podracer_orchestrator.stored_messages import checkpoint_reference, description_of, order_of, proposal_of, spec_of
from podracer_orchestrator.tables import CheckpointRow, JobRow, LeaseRow, PodRow, WorkKind, WorkRow
from podracer_orchestrator.works import evaluation_works
from podracer_orchestrator.works.checkpoints import begin_soundly, members_of

CALM_EVALUATION_FRACTION = 0.15
"""Of a round without a target: what it leaves of a fifth of the cost pays for challenges of the best (`challenges`). A
round with one ends the job as soon as the target is seen to be reached, so it keeps EVALUATION_FRACTION."""
INSPECTION_TIMEOUT_S = 60.0


def lease_message(session: Session, lease: LeaseRow, tokens: LeaseTokens, term_s: float) -> pod_pb2.Lease:
    """A held lease as its pod gets it; the same lease gives the same message again until something is committed."""
    job = session.get_one(JobRow, lease.job_uid)
    work = session.get_one(WorkRow, lease.work_id)
    message = pod_pb2.Lease(
        name=lease_name(job.project, lease.id),
        fence=lease.fence,
        token=tokens.issue(lease.id, lease.fence),
        term=seconds_to_duration(term_s),
        job=job_name(job.project, job.job_id),
        job_uid=job.uid,
        traceparent=job.traceparent,
    )
    if lease.kind == WorkKind.INSPECT:
        message.inspect.CopyFrom(_inspect_work(job))
    elif lease.kind == WorkKind.EVALUATE:
        message.evaluate.CopyFrom(_evaluate_work(job, work, lease.active_time_s))
    elif lease.kind == WorkKind.FOLLOW:
        message.follow.CopyFrom(_follow_work(session, job, work, lease))
    else:
        message.train.CopyFrom(_train_work(session, job, work, lease))
    return message


def _train_work(session: Session, job: JobRow, work: WorkRow, lease: LeaseRow) -> pod_pb2.TrainWork:
    """What a pod is told to train: the proposed agents, each at its last committed checkpoint of this work."""
    spec, proposal, is_last = spec_of(job), proposal_of(work), work.kind == WorkKind.RETRAIN
    followers = 0 if is_last else plan_of(job).learners - 1
    cohort = cohort_pb2.CohortSpec(
        algorithm=proposal.proposals[0].agent.algorithm,
        environment=_environment(spec, is_last),
        environment_description=description_of(job),
        envs_per_member=spec.pod.envs_per_member,
        seed=spec.seed,
    )
    for each, member in zip(proposal.proposals, members_of(session, work.id), strict=True):
        agent = cohort.members.add()
        agent.CopyFrom(each.agent)
        agent.env_steps += member.env_steps
        if member.cost_s:
            agent.cost.CopyFrom(seconds_to_duration(seconds_from_duration(agent.cost) + member.cost_s))
        if member.checkpoint is not None:
            agent.resume.CopyFrom(checkpoint_reference(session.get_one(CheckpointRow, member.checkpoint)))
        begin_soundly(session, agent)
    return pod_pb2.TrainWork(
        cohort=cohort,
        budget=pod_pb2.RoundBudget(
            env_steps_per_member=lease.member_env_steps,
            time=None if lease.time_s is None else seconds_to_duration(lease.time_s),
            evaluation_fraction=EVALUATION_FRACTION
            if spec.objective.HasField("target_return")
            else CALM_EVALUATION_FRACTION,
            cost=seconds_to_duration(lease.reserved_cost_s) if lease.reserved_cost_s else None,
        ),
        objective=spec.objective,
        evaluation=job_pb2.EvaluationSpec(episodes=plan_of(job).episodes, evaluator=spec.evaluation.evaluator),
        checkpoint_interval=seconds_to_duration(CHECKPOINT_INTERVAL_S),
        admission_score=proposal.admission_score if proposal.HasField("admission_score") else None,
        keep_replay=spec.evolution.keep_replay,
        deterministic=spec.pod.deterministic,
        follower_count=followers,
        fusion=fusion_spec(spec.pod.fusion) if followers else None,
        unjudged=is_last,
        sized_for=work.places if is_last else 0,
    )


def _follow_work(session: Session, job: JobRow, work: WorkRow, lease: LeaseRow) -> pod_pb2.FollowWork:
    """What a follower is told: whom it follows, and what that one trains, as of the last committed checkpoints."""
    lead = session.get_one(LeaseRow, lease.lead_fence)
    return pod_pb2.FollowWork(
        lead_address=session.get_one(PodRow, lead.pod).address,
        rank=lease.rank or 0,
        lead_fence=lead.fence,
        train=_train_work(session, job, work, lead),
    )


def fusion_spec(asked: job_pb2.Fusion) -> pod_pb2.FusionSpec:
    """How learners are fused; what a job leaves unset stays so."""
    return pod_pb2.FusionSpec(
        fusion=asked.name,
        interval_updates=asked.interval_updates,
        quorum=asked.quorum,
        deadline=asked.deadline if asked.HasField("deadline") else None,
        outer_learning_rate=asked.learning_rate if asked.HasField("learning_rate") else None,
        outer_momentum=asked.momentum if asked.HasField("momentum") else None,
    )


def _inspect_work(job: JobRow) -> pod_pb2.InspectWork:
    """What a pod is told to inspect."""
    spec = spec_of(job)
    return pod_pb2.InspectWork(
        environment=environment_of(spec),
        timeout=seconds_to_duration(INSPECTION_TIMEOUT_S),
        retrain_environment=_environment(spec, is_last=True) if spec.retrain.kwargs.fields else None,
    )


def _evaluate_work(job: JobRow, work: WorkRow, active_time_s: float) -> pod_pb2.EvaluateWork:
    """What a pod is told to evaluate, after so much of the job's time."""
    order = order_of(work)
    if work.checkpoint is not None:
        order.timeout.CopyFrom(
            seconds_to_duration(
                max(1.0, min(evaluation_works.TIMEOUT_S, evaluation_works.late_left_s(job, active_time_s)))
            )
        )
    if not order.HasField("environment"):
        order.environment.CopyFrom(environment_of(spec_of(job)))
    return order


def _environment(spec: job_pb2.JobSpec, is_last: bool) -> environment_pb2.EnvironmentSpec:
    """The job's; for its last training with the arguments that it has for that."""
    environment = environment_of(spec)
    if is_last:
        environment.kwargs.update(dict(spec.retrain.kwargs))
    return environment

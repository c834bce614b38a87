"""Leases as messages: the common part, and the work of pods that train."""

from __future__ import annotations

from sqlalchemy.orm import Session

from podracer.common.v1 import cohort_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.sections.objective import EVALUATION_FRACTION
from podracer_core.sections.pod import CHECKPOINT_INTERVAL_S
from podracer_orchestrator.jobs.job_files import environment_of
from podracer_orchestrator.jobs.plan import plan_of
from podracer_orchestrator.stored_messages import (
    checkpoint_reference,
    description_of,
    proposal_of,
    spec_of,
)
from podracer_orchestrator.tables import CheckpointRow, JobRow, LeaseRow, PodRow, WorkKind, WorkRow
from podracer_orchestrator.works.checkpoints import begin_soundly, load_checkpoints
from podracer_orchestrator.works.works import Change, Work
from podracer_platform.messages.sections import seconds_from_duration, seconds_to_duration
from podracer_platform.rpc.resource_names import job_name, lease_name
from podracer_platform.rpc.tokens import LeaseTokens

CALM_EVALUATION_FRACTION = 0.15
"""Part of a round without a target that evaluation may take; the rest of a fifth of the cost pays
for challenges of the best (`challenges`). A round with a target ends the job as soon as the target
is seen to be reached, so it keeps EVALUATION_FRACTION."""


def lease_message(
    change: Change, lease: LeaseRow, kind: Work, tokens: LeaseTokens, term_s: float
) -> pod_pb2.Lease:
    """The message of a held lease for its pod. It stays the same until something is committed."""
    job = change.job
    message = pod_pb2.Lease(
        name=lease_name(job.project, lease.id),
        fence=lease.fence,
        token=tokens.issue(lease_name(job.project, lease.id), lease.fence),
        term=seconds_to_duration(term_s),
        job=job_name(job.project, job.job_id),
        job_uid=job.uid,
        traceparent=job.traceparent,
    )
    kind.encode(change, lease, message)
    return message


def train_work(
    session: Session, job: JobRow, work: WorkRow, lease: LeaseRow, followers: int = 0
) -> pod_pb2.TrainWork:
    """The work for a pod: the proposed agents, each at its last committed checkpoint of this
    work."""
    spec, proposal = spec_of(job), proposal_of(work)
    cohort = cohort_pb2.CohortSpec(
        algorithm=proposal.proposals[0].agent.algorithm,
        environment=environment_of(job),
        environment_description=description_of(job),
        envs_per_member=spec.pod.envs_per_member,
        seed=spec.seed,
    )
    begun = [each.agent for each in proposal.proposals]
    prefixes = [
        parent.checkpoint.prefix for agent in begun for parent in agent.initialization.parents
    ]
    prefixes += [agent.resume.prefix for agent in begun if agent.HasField("resume")]
    load_checkpoints(session, prefixes)  # one query for all that `begin_soundly` looks up
    for each, member in zip(proposal.proposals, work.members, strict=True):
        agent = cohort.members.add()
        agent.CopyFrom(each.agent)
        agent.env_steps += member.env_steps
        if member.cost_s:
            agent.cost.CopyFrom(
                seconds_to_duration(seconds_from_duration(agent.cost) + member.cost_s)
            )
        if member.checkpoint is not None:
            agent.resume.CopyFrom(
                checkpoint_reference(session.get_one(CheckpointRow, member.checkpoint))
            )
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
        evaluation=job_pb2.EvaluationSpec(
            episodes=plan_of(job).episodes, evaluator=spec.evaluation.evaluator
        ),
        checkpoint_interval=seconds_to_duration(CHECKPOINT_INTERVAL_S),
        admission_score=proposal.admission_score if proposal.HasField("admission_score") else None,
        keep_replay=spec.evolution.keep_replay,
        deterministic=spec.pod.deterministic,
        follower_count=followers,
        fusion=fusion_spec(spec.pod.fusion) if followers else None,
        lowest_return=job.lowest_return,
    )


class FollowWork(Work):
    """A kind of leases alone: their work is the one that another lease, the lead's, trains
    (`followers`)."""

    kind = WorkKind.FOLLOW

    def encode(self, change: Change, lease: LeaseRow, message: pod_pb2.Lease) -> None:
        """The lead to follow, and the lead's work, as of the last committed checkpoints."""
        session, job = change.session, change.job
        lead = session.get_one(LeaseRow, lease.lead_fence)
        message.follow.lead_address = session.get_one(PodRow, lead.pod).address
        message.follow.rank, message.follow.lead_fence = lease.rank or 0, lead.fence
        message.follow.train.CopyFrom(
            train_work(session, job, change.work, lead, plan_of(job).learners - 1)
        )


def fusion_spec(asked: job_pb2.Fusion) -> pod_pb2.FusionSpec:
    """The fusion of learners; fields that the job leaves unset stay unset."""
    return pod_pb2.FusionSpec(
        fusion=asked.name,
        interval_updates=asked.interval_updates,
        quorum=asked.quorum,
        deadline=asked.deadline if asked.HasField("deadline") else None,
        outer_learning_rate=asked.learning_rate if asked.HasField("learning_rate") else None,
        outer_momentum=asked.momentum if asked.HasField("momentum") else None,
    )

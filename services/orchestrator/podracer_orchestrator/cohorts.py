"""From the leaderboard's proposal to the cohort that a pod trains."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from podracer.common.v1 import cohort_pb2, environment_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.jobs.messages import seconds_from_duration, seconds_to_duration
from podracer_core.rpc.resource_names import last_part
from podracer_orchestrator import events
from podracer_orchestrator.budget import Grant, Round
from podracer_orchestrator.changes import WORK, job_topic, touch
from podracer_orchestrator.job_files import environment_of
from podracer_orchestrator.job_plan import JobPlan, plan_of, read_spec
from podracer_orchestrator.progress import checkpoint_reference, members_of
from podracer_orchestrator.refused_checkpoints import begin_soundly
from podracer_orchestrator.tables import (
    CheckpointRow,
    JobRow,
    LeaseRow,
    MemberRow,
    PodRow,
    WorkKind,
    WorkRow,
    WorkState,
)

CHECKPOINT_INTERVAL_S = 30.0
EVALUATION_FRACTION = 0.2
"""Of a round that hunts a target: whoever is seen to reach it ends the job."""
CALM_EVALUATION_FRACTION = 0.15
"""Of any other round: what it leaves of a fifth of the cost pays for challenges of the best (`challenges`)."""
INSPECTION_TIMEOUT_S = 60.0
GENERATOR_FAILED = "GENERATOR_FAILED"
MAX_GENERATOR_PROBLEMS = 20
"""Events of a job about its generator, whose message may be another one each time."""
NO_ROUND = Grant(Round())
"""What an inspection is granted: it trains nobody."""


def store_proposal(
    session: Session, job: JobRow, work: WorkRow, proposal: leaderboard_pb2.ProposeCohortResponse, now: datetime
) -> None:
    """Make a PROPOSING work READY with the leaderboard's answer, or forget it where the answer is empty.

    The new agents are counted here, once, because the work leaves PROPOSING here.
    """
    if proposal.HasField("generator_problem"):
        _note_generator_problem(session, job, proposal.generator_problem, now)
    if proposal.finished:
        job.rounds_over = True
    if not proposal.proposals:
        session.delete(work)
        return
    work.proposal = proposal.SerializeToString(deterministic=True)
    work.state, work.places = WorkState.READY, len(proposal.proposals)
    for position, each in enumerate(proposal.proposals):
        session.add(MemberRow(work_id=work.id, position=position, agent=each.agent.name))
    fresh = [each for each in proposal.proposals if each.action != leaderboard_pb2.PROPOSAL_ACTION_CONTINUE]
    job.agent_count += len(fresh)
    session.flush()
    message = ", ".join(_describe(each) for each in proposal.proposals)
    events.record(session, job, "COHORT_PROPOSED", message, now=now, work=work.id)
    touch(session, WORK, job_topic(job.uid))


def round_of(plan: JobPlan, proposal: leaderboard_pb2.ProposeCohortResponse) -> Round:
    """The whole round: as the leaderboard wants it, else as the job does."""
    time_s = seconds_from_duration(proposal.round_time) if proposal.HasField("round_time") else None
    proposed = Round(proposal.round_env_steps, time_s)
    return plan.round if proposed == Round() else proposed


def proposal_of(work: WorkRow) -> leaderboard_pb2.ProposeCohortResponse:
    """The leaderboard's stored answer."""
    return leaderboard_pb2.ProposeCohortResponse.FromString(work.proposal or b"")


def train_work(session: Session, job: JobRow, work: WorkRow, lease: LeaseRow) -> pod_pb2.TrainWork:
    """What a pod is told to train: the proposed agents, each at its last committed checkpoint of this work."""
    spec, proposal, is_last = read_spec(job.spec), proposal_of(work), work.kind == WorkKind.RETRAIN
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


def follow_work(session: Session, job: JobRow, work: WorkRow, lease: LeaseRow) -> pod_pb2.FollowWork:
    """What a follower is told: whom it follows, and what that one trains, as of the last committed checkpoints."""
    lead = session.get_one(LeaseRow, lease.lead_fence)
    return pod_pb2.FollowWork(
        lead_address=session.get_one(PodRow, lead.pod).address,
        rank=lease.rank or 0,
        lead_fence=lead.fence,
        train=train_work(session, job, work, lead),
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


def inspect_work(job: JobRow) -> pod_pb2.InspectWork:
    """What a pod is told to inspect."""
    spec = read_spec(job.spec)
    return pod_pb2.InspectWork(
        environment=environment_of(spec),
        timeout=seconds_to_duration(INSPECTION_TIMEOUT_S),
        retrain_environment=_environment(spec, is_last=True) if spec.retrain.kwargs.fields else None,
    )


def description_of(job: JobRow) -> environment_pb2.EnvironmentDescription:
    """What is known of the job's environment; empty while it is being inspected."""
    return environment_pb2.EnvironmentDescription.FromString(job.description or b"")


def _environment(spec: job_pb2.JobSpec, is_last: bool) -> environment_pb2.EnvironmentSpec:
    """The job's; for its last training with the arguments that it has for that."""
    environment = environment_of(spec)
    if is_last:
        environment.kwargs.update(dict(spec.retrain.kwargs))
    return environment


def _note_generator_problem(session: Session, job: JobRow, problem: cohort_pb2.Problem, now: datetime) -> None:
    """An event for each thing that is wrong with the generator, not for each proposal."""
    known = events.messages(session, job, GENERATOR_FAILED)
    if problem.message not in known and len(known) < MAX_GENERATOR_PROBLEMS:
        events.record(session, job, GENERATOR_FAILED, problem.message, now=now, traceback=problem.detail)


def _describe(proposal: leaderboard_pb2.Proposal) -> str:
    action = leaderboard_pb2.ProposalAction.Name(proposal.action).removeprefix("PROPOSAL_ACTION_")
    return f"{action} {last_part(proposal.agent.name)}"

"""The last training of a job (RETRAIN): its best candidate is trained once more, if wanted with
other arguments of the environment. The result is not evaluated and becomes the job's final policy.

The job ends afterwards in any case. If retraining fails, it ends with the candidate itself.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, cohort_pb2, environment_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_orchestrator.jobs import founders, jobs
from podracer_orchestrator.jobs.budget import Grant
from podracer_orchestrator.jobs.job_files import environment_of
from podracer_orchestrator.jobs.plan import plan_of
from podracer_orchestrator.jobs.state import LIVE_STATES, JobState
from podracer_orchestrator.leases import leases
from podracer_orchestrator.leases.lease_messages import train_work
from podracer_orchestrator.stored_messages import (
    best_of,
    checkpoint_reference,
    encode,
    proposal_of,
    spec_of,
)
from podracer_orchestrator.tables import JobRow, LeaseRow, MemberRow, WorkKind, WorkState
from podracer_orchestrator.transactions import WORK, touch
from podracer_orchestrator.works.checkpoints import of_job
from podracer_orchestrator.works.evaluation_works import fresh_seeds
from podracer_orchestrator.works.train_results import commit_result
from podracer_orchestrator.works.works import BudgetLeft, Change, Stage, round_of
from podracer_platform.rpc.resource_names import last_part

_ENDING = "-retrained"


class RetrainWork(Stage):
    """The best candidate is trained by one pod, without followers."""

    kind, results = WorkKind.RETRAIN, (pod_pb2.TrainResult,)

    def is_wanted(self, session: Session, job: JobRow) -> bool:
        """Whether the job asks for it and has a best candidate."""
        return spec_of(job).HasField("retrain") and job.best is not None

    def begin(self, session: Session, job: JobRow, now: datetime) -> None:
        """Make its work, of a single agent."""
        best = best_of(job)
        assert best is not None, "it is wanted"
        row = of_job(session, job.uid, best.checkpoint.prefix)
        cohort = [] if row is None else founders.cohort_of(session, row)
        change = Change(
            session,
            job,
            jobs.add_work(session, job, self.kind, WorkState.READY, now, len(cohort)),
            "",
            now,
        )
        agent = _agent(session, job, best)
        if agent is None:
            self.fail(
                change, cohort_pb2.Problem(message=f"{best.agent} has no checkpoint any more")
            )
            return
        env_steps = spec_of(job).retrain.env_steps or best.checkpoint.env_steps
        proposal = leaderboard_pb2.ProposeCohortResponse(
            proposals=[leaderboard_pb2.Proposal(agent=agent)], round_env_steps=env_steps
        )
        change.work.proposal = encode(proposal)
        session.flush()
        change.work.members.append(MemberRow(position=0, agent=agent.name))
        message = f"{best.agent} is trained once more, for {env_steps:,} steps"
        change.record("RETRAINING_STARTED", message, subject=agent.name)
        touch(session, WORK)

    def grant(self, change: Change, budget: BudgetLeft) -> Grant | None:
        """The rest of the retraining, beyond the job's budget."""
        whole = round_of(plan_of(change.job), proposal_of(change.work))
        return Grant(leases.round_left(change.session, change.work, whole))

    def encode(self, change: Change, lease: LeaseRow, message: pod_pb2.Lease) -> None:
        """A round without evaluation, in the environment of the retraining."""
        message.train.CopyFrom(train_work(change.session, change.job, change.work, lease))
        message.train.cohort.environment.CopyFrom(environment(change.job))
        message.train.unjudged, message.train.sized_for = True, change.work.places

    def complete(self, change: Change, lease: LeaseRow, result: pod_pb2.TrainResult) -> None:
        """Commit the last checkpoint, with which the job ends."""
        super().complete(change, lease, result)
        commit_result(change, lease, result)
        (member,) = change.work.members
        row = (
            None
            if member.checkpoint is None
            else of_job(change.session, change.job.uid, member.checkpoint)
        )
        if JobState(change.job.state) not in LIVE_STATES:
            return
        if result.members[0].HasField("problem"):
            self.fail(change, result.members[0].problem)
        elif result.members[0].final.progress.failed or row is None:
            self.fail(change, cohort_pb2.Problem(message=f"{member.agent} has diverged"))
        else:
            change.job.retrained = encode(
                agent_pb2.Parent(agent=member.agent, checkpoint=checkpoint_reference(row))
            )
            message = f"the job ends with {member.agent}, after {member.env_steps:,} steps"
            change.record("RETRAINED", message, subject=member.agent)

    def fail(self, change: Change, problem: cohort_pb2.Problem) -> None:
        """Let the job end with its candidate unchanged."""
        super().fail(change, problem)
        message = f"the job ends with its candidate as it is: {problem.message or problem.reason}"
        change.record("RETRAINING_FAILED", message)

    def can_go_on(self, change: Change) -> bool:
        """False if the selected weights are damaged, because another pod would begin from
        others."""
        (member,) = change.work.members
        (proposal,) = proposal_of(change.work).proposals
        prefixes = [parent.checkpoint.prefix for parent in proposal.agent.initialization.parents]
        rows = [of_job(change.session, change.job.uid, prefix) for prefix in prefixes]
        return member.checkpoint is not None or not any(row is None or row.refused for row in rows)


def environment(job: JobRow) -> environment_pb2.EnvironmentSpec:
    """The job's environment, with the arguments for retraining."""
    found = environment_of(job)
    found.kwargs.update(dict(spec_of(job).retrain.kwargs))
    return found


def _agent(session: Session, job: JobRow, best: agent_pb2.Evaluation) -> agent_pb2.AgentSpec | None:
    """A new agent, to tell the retrained policy from the selected one."""
    founder = founders.of_checkpoint(session, best.agent, best.checkpoint.prefix)
    if founder is None:
        return None
    (seed,) = fresh_seeds(spec_of(job).seed, f"{last_part(best.agent)}{_ENDING}", 1)
    agent = agent_pb2.AgentSpec(
        name=f"{best.agent}{_ENDING}",
        algorithm=founder.algorithm,
        seed=seed,
        hyperparameters=dict(founder.hyperparameters),
    )
    if spec_of(job).retrain.scratch:
        agent.initialization.kind = agent_pb2.INITIALIZATION_KIND_FRESH
        return agent
    agent.initialization.kind = agent_pb2.INITIALIZATION_KIND_COPY
    agent.initialization.parents.add(agent=best.agent, checkpoint=founder.checkpoint)
    agent.env_steps = founder.checkpoint.env_steps
    return agent

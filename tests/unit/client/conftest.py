"""Messages of a job in the middle of its run."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration

from podracer.common.v1 import agent_pb2, cohort_pb2, environment_pb2, evolution_pb2
from podracer.orchestrator.v1 import job_pb2

NAME = "projects/default/jobs/pendulum-x7"


@pytest.fixture
def running_job() -> job_pb2.Job:
    best = agent_pb2.Evaluation(
        agent=f"{NAME}/agents/a0002",
        mean=-182.4,
        lower_bound=-201.3,
        upper_bound=-163.5,
        returns=[-180.0, -184.8],
        checkpoint=agent_pb2.CheckpointReference(
            prefix="projects/default/jobs/u1/agents/a0002/checkpoints/4096-3/"
        ),
    )
    return job_pb2.Job(
        name=NAME,
        state=job_pb2.JOB_STATE_RUNNING,
        leaderboard="projects/default/leaderboards/pendulum-x7",
        spec=job_pb2.JobSpec(
            environment=environment_pb2.EnvironmentSpec(id="Pendulum-v1"),
            objective=evolution_pb2.Objective(target_return=-200.0),
        ),
        progress=job_pb2.JobProgress(
            env_steps=1_200_000,
            live_env_steps=1_234_567,
            env_steps_per_second=45_678.9,
            train_time=Duration(seconds=30),
            cost=Duration(seconds=40),
            evaluation_cost=Duration(seconds=10),
            eta=Duration(seconds=570),
            agent_count=8,
            best=best,
            best_score=best.lower_bound,
        ),
    )


@pytest.fixture
def finished_job(running_job: job_pb2.Job) -> job_pb2.Job:
    job = job_pb2.Job()
    job.CopyFrom(running_job)
    job.state = job_pb2.JOB_STATE_SUCCEEDED
    job.outcome = job_pb2.JOB_OUTCOME_TARGET_REACHED
    job.progress.time_to_target.CopyFrom(Duration(seconds=28, nanos=500_000_000))
    return job


@pytest.fixture
def failed_job(running_job: job_pb2.Job) -> job_pb2.Job:
    job = job_pb2.Job(name=running_job.name, spec=running_job.spec, state=job_pb2.JOB_STATE_FAILED)
    job.problem.CopyFrom(
        cohort_pb2.Problem(
            reason="USER_CODE_FAILED", message="it raised", detail="Traceback:\n  ValueError"
        )
    )
    return job


@pytest.fixture
def pods() -> list[job_pb2.Pod]:
    return [
        job_pb2.Pod(
            name="projects/default/pods/p1",
            state=job_pb2.POD_STATE_WORKING,
            layout=job_pb2.POD_LAYOUT_SPLIT,
            agents=[f"{NAME}/agents/a{number:04}" for number in range(1, 9)],
            env_steps_per_second=45_678.9,
            restart_count=2,
            message="[learner] started again",
        ),
        job_pb2.Pod(name="projects/default/pods/p0", state=job_pb2.POD_STATE_STOPPED),
    ]

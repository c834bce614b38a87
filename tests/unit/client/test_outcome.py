"""A target that was missed is said: the exit code, how far the job came, and what to try next."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from podracer.common.v1 import agent_pb2, evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_client.display import JobSummary, exit_code, missed_target, target_lines


def missed(job: job_pb2.Job) -> job_pb2.Job:
    """The same job, after its budget of 30 s."""
    job.outcome = job_pb2.JOB_OUTCOME_BUDGET_USED
    job.progress.ClearField("time_to_target")
    job.spec.objective.max_duration.CopyFrom(Duration(seconds=30))
    job.spec.objective.max_env_steps = 10**9
    job.create_time.CopyFrom(Timestamp(seconds=1000))
    job.progress.best.create_time.CopyFrom(Timestamp(seconds=1025))
    job.progress.best.env_steps = 150_000
    job.progress.best.purpose = agent_pb2.EVALUATION_PURPOSE_CHALLENGE
    return job


def test_exit_codes(finished_job, failed_job):
    reached = job_pb2.Job()
    reached.CopyFrom(finished_job)
    over = missed(finished_job)
    assert [exit_code([job]) for job in (reached, over, failed_job)] == [0, 3, 1]
    assert (exit_code([reached, over]), exit_code([over, failed_job])) == (3, 1)
    over.spec.objective.ClearField("target_return")
    assert (exit_code([over]), missed_target(over), target_lines(over)) == (0, False, [])


def test_how_far_it_came_and_what_to_try(finished_job):
    job = missed(finished_job)
    job.spec.search.algorithms.add(algorithm="ppo")
    job.spec.evolution.population = 4
    lines = JobSummary(job, "").lines()
    assert lines[0].endswith("SUCCEEDED, budget used, target missed")
    assert target_lines(job) == lines[-5:]
    assert lines[-5:] == [
        "target       -201.3 of -200.0 (lower bound of the return over 2 episodes, confirmed), at "
        "150,000 steps of its lineage, 25.0 s after the job's creation",
        "try next     evaluation.episodes: 8: the mean reached the target, the lower bound of its "
        "interval did not",
        "             objective.max_duration: 1m (now 30s)",
        "             search.algorithms: auto (it had only ppo)",
        "             evolution.population: 8 (now 4)",
    ]


def test_advice_names_only_what_applies(finished_job):
    job = missed(finished_job)
    job.spec.objective.statistic = evolution_pb2.TARGET_STATISTIC_MEAN
    job.spec.objective.target_return = -100.0
    job.spec.objective.max_duration.seconds = 3600  # a round would have been too long for the rest
    job.spec.evolution.population = 32
    assert [line[13:] for line in target_lines(job)[1:]] == [
        "objective.max_env_steps: 2_000_000_000 (now 1_000_000_000)",
        "objective.max_duration: 2h (now 1h)",
    ]
    job.progress.ClearField("best")
    assert target_lines(job)[0] == "target       -100.0; no evaluation came before the end"

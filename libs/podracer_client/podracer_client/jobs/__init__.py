"""The SDK.

client        `Client`: submits jobs and reads their results
job           `Job`, one job
history       `History`, the one view of a job, and the number by which evaluations rank
following     reads what is new into a History
submission    several jobs of one file; the agents of another job that a new one starts from
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_client.jobs.client import Client, follow_jobs
    from podracer_client.jobs.following import EVERYTHING, Follower, JobUpdate
    from podracer_client.jobs.history import (
        COUNTS, FINAL_STATES, Agent, Candidate, Evaluation, Event, History, Objective, Pod,
        Thinning, agent_hyperparameters, best_first, best_score, broken_text, corrected_means,
        finite_evaluation, score, score_name,
    )
    from podracer_client.jobs.job import Job
    from podracer_client.jobs.submission import check_jobs, create_jobs, look_up_founders
else:
    __all__, __getattr__ = exports(__name__)

"""Where a continuous job stands, in words."""

from __future__ import annotations

from podracer.orchestrator.v1 import job_pb2
from podracer_client.display.numbers import time_text
from podracer_client.names import short_name


def standing(job: job_pb2.Job) -> dict[str, str]:
    """The generation it is at, its champion and what it waits for; nothing for an ordinary job."""
    if not job.HasField("continuous_status"):
        return {}
    status = job.continuous_status
    return {"generation": str(status.generation), "champion": _champion(status), "waits for": _waits_for(job)}


def _champion(status: job_pb2.ContinuousStatus) -> str:
    if not status.HasField("champion"):
        return "none yet"
    name = status.champion.agent.partition("/jobs/")[2].replace("/agents/", "/")
    return f"{name}, of generation {status.champion_generation}" if status.champion_generation else name


def _waits_for(job: job_pb2.Job) -> str:
    status = job.continuous_status
    if status.current_job:
        return f"the end of {short_name(status.current_job)}"
    if not status.generation:
        return "its first generation"
    ways = ["other data"] if job.spec.data_sets else []
    ways += [time_text(status.next_time)] if status.HasField("next_time") else []
    return " or ".join(ways)

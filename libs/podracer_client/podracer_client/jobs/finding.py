"""Find a job by its id, its resource name, or the name in its job file if only one job has it."""

from __future__ import annotations

from collections.abc import Sequence

from podracer.orchestrator.v1 import job_pb2, job_service_pb2
from podracer_client.names import enum_word, job_name, short_name, time_text
from podracer_client.servers.stubs import Servers, pages
from podracer_core.config.other_libraries import did_you_mean
from podracer_core.errors import InvalidInput, NotFound

_MOST_SHOWN = 10


def find_job(servers: Servers, text: str) -> job_pb2.Job:
    """Raises NotFound with the nearest names, InvalidInput (AMBIGUOUS_NAME) with the jobs that
    share the name."""
    name = job_name(text)
    try:
        return servers.job_service.GetJob(job_service_pb2.GetJobRequest(name=name)).job
    except NotFound as error:
        cause = error
    project, short = name.partition("/jobs/")[0], short_name(name)
    named = _list(servers, project, f"display_name={short}")
    if not named:
        problem = f"there is no job {text}; {_advice(_list(servers, project), short)}"
        raise NotFound(problem, reason="JOB_NOT_FOUND", job=text) from cause
    if len(named) > 1:
        problem = f"{len(named)} jobs are called {short}; name one by its id:\n{_candidates(named)}"
        raise InvalidInput(problem, field="job", reason="AMBIGUOUS_NAME", name=text)
    return named[0]


def _list(servers: Servers, project: str, matching: str = "") -> list[job_pb2.Job]:
    view = job_service_pb2.JOB_VIEW_FULL if matching else job_service_pb2.JOB_VIEW_BASIC
    request = job_service_pb2.ListJobsRequest(parent=project, filter=matching, view=view)
    return [job for page in pages(servers.job_service.ListJobs, request) for job in page.jobs]


def _advice(jobs: Sequence[job_pb2.Job], text: str) -> str:
    known = dict.fromkeys(
        name for job in jobs for name in (job.spec.display_name, short_name(job.name))
    )
    return did_you_mean(text, known, "`podracer jobs` lists them")


def _candidates(jobs: Sequence[job_pb2.Job]) -> str:
    """Id, creation and state of each, newest first."""
    lines = [
        f"  {short_name(job.name)}  created {time_text(job.create_time)}  "
        f"{enum_word(job_pb2.JobState, job.state)}"
        for job in jobs[:_MOST_SHOWN]
    ]
    more = len(jobs) - len(lines)
    return "\n".join([*lines, f"  and {more} more"] if more else lines)

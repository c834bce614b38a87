"""Jobs of one file with a matrix: check all, then create each once; follow them until the last one
ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from podracer.orchestrator.v1 import job_service_pb2
from podracer_client.jobs.job import Job
from podracer_client.jobs.warm_starts import look_up_founders
from podracer_core.errors import DeadlineExpired, InvalidInput, Unavailable
from podracer_platform.jobs import DataSets, JobSpec

if TYPE_CHECKING:
    from podracer_client.jobs.client import Client
    from podracer_core.catalogue import StoredFile

__all__ = ["check_jobs", "create_jobs", "follow_jobs"]

_INTERVAL_S = 1.0


def check_jobs(client: Client, specs: Sequence[JobSpec]) -> Sequence[JobSpec]:
    """Upload the files of all specs and have the server validate them; creates no job. Returns the
    uploaded specs.

    Raises InvalidInput that names the first job which the server refuses.
    """
    stored: dict[object, tuple[StoredFile | None, DataSets]] = {}
    ready = []
    for spec in specs:
        environment = spec.environment
        files = (
            environment.code_path,
            environment.entry_point,
            tuple(sorted(spec.data.items(), key=str)),
        )
        if files not in stored:
            uploaded = client.upload_files(spec)
            stored[files] = uploaded.environment.code, uploaded.data
        code, data = stored[files]
        spec = replace(spec, environment=replace(environment, code_path="", code=code), data=data)
        ready.append(look_up_founders(client, spec))
    for spec in ready:
        try:
            request = job_service_pb2.CreateJobRequest(spec=spec.to_message(), validate_only=True)
            client.job_service.CreateJob(request)
        except InvalidInput as error:
            message = f"{spec.name}: {error.message}; nothing was submitted"
            raise InvalidInput(message, violations=error.violations, reason=error.reason) from error
    return ready


def create_jobs(
    client: Client, specs: Sequence[JobSpec], submission: str, *, job_id: str = ""
) -> Iterator[Job]:
    """Create the jobs one by one. A repeated `submission` finds the jobs that it has created
    before.

    `submission` is random and has at most 58 characters. With a `job_id` the ids are `job_id` and a
    number."""
    for number, spec in enumerate(specs, 1):
        request = job_service_pb2.CreateJobRequest(
            job_id=f"{job_id}-{number}" if job_id else "",
            spec=spec.to_message(),
            request_id=f"{submission}-{number}",
        )
        yield Job(client, client.job_service.CreateJob(request).job)


def follow_jobs(
    client: Client,
    names: Sequence[str],
    *,
    patience_s: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
) -> Iterator[Mapping[str, Job]]:
    """Yield the jobs by name, in the order of `names`, about once a second until all have ended.

    It polls, as a stream for each job would need a thread for each. Deleted jobs are left out.
    Raises Unavailable if the server does not answer for `patience_s`."""
    last_answer = clock()
    while True:
        try:
            found = {job.name: job for job in client.jobs()}
            last_answer = clock()
        except (Unavailable, DeadlineExpired) as error:
            if clock() - last_answer > patience_s:
                message = f"no answer from the orchestrator for {patience_s:.0f} s: {error.message}"
                raise Unavailable(message, reason=error.reason) from error
        else:
            now = {name: found[name] for name in names if name in found}
            yield now
            if all(job.ended for job in now.values()):
                return
        wait(_INTERVAL_S)

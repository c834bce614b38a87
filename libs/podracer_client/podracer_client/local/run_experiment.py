"""`podracer run` of a file with a matrix: all its jobs at once, sharing this machine."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from podracer.orchestrator.v1 import job_pb2
from podracer_client.display.comparison import ExperimentDisplay
from podracer_client.display.summary import exit_code
from podracer_client.jobs.client import Client
from podracer_client.jobs.experiments import check_jobs, create_jobs, follow_jobs
from podracer_client.jobs.job import Job
from podracer_client.local.foreground import Foreground
from podracer_client.local.run import UNFINISHED
from podracer_client.local.services import ServiceOptions
from podracer_client.processes.process import INTERRUPTED
from podracer_core.errors import PodracerError
from podracer_platform.jobs.experiment import Experiment
from podracer_platform.jobs.spec import JobSpec

_SUSPEND_S = 1.5
_DRAIN_S = 2.5


def run_experiment(
    experiment: Experiment,
    folder: Path,
    display: ExperimentDisplay,
    options: ServiceOptions | None = None,
    next_steps: Sequence[str] = (),
    again: str = "",
) -> int:
    """Run all jobs in the state folder, or continue an interrupted run of them; returns the exit
    code.

    `next_steps`: commands for afterwards; `again`: the one that continues after an interrupt.
    Raises as `podracer_client.local.run.run_job`."""
    with ExitStack() as stack:
        return _Run(experiment, folder, display, stack, options, next_steps, again).follow()


class _Run(Foreground[Mapping[str, Job]]):
    """The second thread creates the jobs and asks how they are."""

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        display: ExperimentDisplay,
        stack: ExitStack,
        options: ServiceOptions | None,
        next_steps: Sequence[str],
        again: str,
    ) -> None:
        super().__init__(stack, folder, options, display.note)
        self._jobs: Mapping[str, Job] = {}
        self._next_steps, self._again = next_steps, again
        self._experiment = experiment
        self._display = display
        self._stopping = threading.Event()

    def _work(self) -> None:
        client = self._services.client()
        names = [job.name for job in _resume_or_create(client, self._experiment.jobs, self._tell)]
        for jobs in follow_jobs(client, names, wait=self._stopping.wait):
            if self._stopping.is_set():
                break
            self._inbox.put(jobs)

    def _leave(self) -> None:
        self._stopping.set()

    def _take_news(self, news: Mapping[str, Job]) -> bool:
        self._jobs = news
        self._display.show(job.message for job in news.values())
        return False

    def _finish(self) -> int:
        self._show_end(self._next_steps)
        return exit_code(job.message for job in self._jobs.values())

    def _interrupt(self) -> int:
        """Suspend the jobs and give their pods the time for a last checkpoint."""
        begin = time.monotonic()
        self._display.note("interrupted: suspending the jobs; once more to leave at once")
        try:
            for job in self._jobs.values():
                left = begin + _SUSPEND_S - time.monotonic()
                if not job.ended and left > 0.0:
                    job.suspend(timeout_s=left)
            self._take_until(lambda: not self._is_working, begin + _DRAIN_S)
        except PodracerError as error:
            self._display.note(
                f"not every job could be suspended: {error.message}; they go on with the next run"
            )
        self._show_end([self._again, *self._next_steps] if self._again else self._next_steps)
        return INTERRUPTED

    def _show_end(self, steps: Sequence[str]) -> None:
        self._display.finish([job.message for job in self._jobs.values()], steps)

    @property
    def _is_working(self) -> bool:
        return any(job.progress.pod_count for job in self._jobs.values())


def _resume_or_create(
    client: Client, specs: Sequence[JobSpec], tell: Callable[[str], None]
) -> list[Job]:
    """The jobs of an interrupted run of the same specs, ended ones included, or new ones; others
    are suspended."""
    stored = check_jobs(client, specs)
    # what a server makes of them
    wanted = [JobSpec.from_message(spec.to_message()) for spec in stored]
    known = client.jobs(full=True)
    unfinished = [job for job in known if job.message.state in UNFINISHED]
    found = _matching(unfinished, wanted)
    for job in unfinished:
        if job not in found.values() and job.message.state != job_pb2.JOB_STATE_SUSPENDED:
            job.suspend()
            tell(f"the unfinished {job.name} is suspended while these run")
    if found:
        missing = [spec for number, spec in enumerate(wanted) if number not in found]
        done = [
            job for job in known if job.ended and job.message.state != job_pb2.JOB_STATE_CANCELLED
        ]
        places = [number for number in range(len(wanted)) if number not in found]
        found |= {places[place]: job for place, job in _matching(done, missing).items()}
        tell(f"going on with {len(found)} jobs of an interrupted run")
    for job in found.values():
        if job.message.state == job_pb2.JOB_STATE_SUSPENDED:
            job.resume()
    lacking = [number for number in range(len(wanted)) if number not in found]
    made = create_jobs(client, [stored[number] for number in lacking], secrets.token_hex(16))
    found |= dict(zip(lacking, made, strict=True))
    return [found[number] for number in range(len(wanted))]


def _matching(jobs: Sequence[Job], wanted: Sequence[JobSpec]) -> dict[int, Job]:
    """The newest job of each wanted spec, by the spec's place."""
    found: dict[int, Job] = {}
    for job in jobs:
        spec = JobSpec.from_message(job.message.spec)
        number = next(
            (place for place, each in enumerate(wanted) if place not in found and each == spec),
            None,
        )
        if number is not None:
            found[number] = job
    return found

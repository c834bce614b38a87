"""`podracer run` of a file with a matrix: all its jobs at once on this machine, which they share."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue

from podracer.orchestrator.v1 import job_pb2
from podracer_client.client import Client
from podracer_client.display.comparison import ExperimentDisplay
from podracer_client.experiments import check_jobs, create_jobs, follow_jobs
from podracer_client.job import Job
from podracer_client.local.interrupts import INTERRUPTED, Interrupts, leave_at_once
from podracer_client.local.process import ProcessNews
from podracer_client.local.run import UNFINISHED
from podracer_client.local.run_folder import RunFolder
from podracer_client.local.services import STOP_S, LocalServices, ServiceOptions
from podracer_client.local.state_folder import StateFolder
from podracer_core.errors import PodracerError, Unavailable
from podracer_core.jobs.experiment import Experiment
from podracer_core.jobs.messages import spec_from_message, spec_to_message
from podracer_core.jobs.spec import JobSpec

_SUSPEND_S = 1.5
_DRAIN_S = 2.5


@dataclass(frozen=True, slots=True)
class _Update:
    """The jobs as they are now."""

    jobs: Mapping[str, Job]


@dataclass(frozen=True, slots=True)
class _Ended:
    """The thread that follows the jobs has ended, by an error or because they have."""

    error: PodracerError | None


class _Interrupted:
    """Ctrl-C, once."""


_Message = ProcessNews | _Update | _Ended | _Interrupted


def run_experiment(
    experiment: Experiment,
    folder: Path,
    display: ExperimentDisplay,
    options: ServiceOptions | None = None,
    next_steps: Sequence[str] = (),
    again: str = "",
) -> int:
    """Run all jobs in the state folder, on from where an interrupted run of them stopped; the exit code.

    `next_steps` are commands for afterwards, `again` the one that goes on after an interrupt. Raises what
    `podracer_client.local.run.run_job` does.
    """
    inbox: SimpleQueue[_Message] = SimpleQueue()
    with ExitStack() as stack:
        state = stack.enter_context(StateFolder.open(folder))
        run_folder = stack.enter_context(RunFolder())
        options = replace(
            options or ServiceOptions(), allow_user_code=True
        )  # the user's own jobs, on the user's machine
        services = LocalServices(state, run_folder, options, inbox.put)
        stack.enter_context(
            Interrupts(lambda: inbox.put(_Interrupted()), lambda: leave_at_once(services, state, run_folder))
        )
        run = _Run(experiment, services, display, inbox)
        stack.callback(run.stop)
        code = run.follow()
        steps = [again, *next_steps] if again and code == INTERRUPTED else next_steps
        display.finish([job.message for job in run.jobs.values()], steps)
        return code


class _Run:
    """The main thread reads the inbox; a second one starts the services, creates the jobs and asks how they are."""

    def __init__(
        self,
        experiment: Experiment,
        services: LocalServices,
        display: ExperimentDisplay,
        inbox: SimpleQueue[_Message],
    ) -> None:
        self.jobs: Mapping[str, Job] = {}
        self._experiment = experiment
        self._services = services
        self._display = display
        self._inbox = inbox
        self._stopping = threading.Event()
        self._stop_by: float | None = None

    def follow(self) -> int:
        """Until all jobs have ended or the user interrupts."""
        self._services.start()
        threading.Thread(target=self._work, name="jobs", daemon=True).start()
        while True:
            message = self._inbox.get()
            if isinstance(message, _Interrupted):
                return self._interrupt()
            if self._take(message):
                succeeded = (job.message.state == job_pb2.JOB_STATE_SUCCEEDED for job in self.jobs.values())
                return 0 if all(succeeded) else 1

    def stop(self) -> None:
        """End everything; a user who has interrupted has waited for a part of the time already."""
        self._stopping.set()
        left = STOP_S if self._stop_by is None else self._stop_by - time.monotonic()
        self._services.stop(max(1.0, left))

    def _work(self) -> None:
        """The second thread."""
        ended = _Ended(PodracerError("following the jobs failed in a way that nobody foresaw; the traceback is above"))
        try:
            client = self._services.client()
            names = [job.name for job in _resume_or_create(client, self._experiment.jobs, self._tell)]
            for jobs in follow_jobs(client, names, wait=self._stopping.wait):
                if self._stopping.is_set():
                    break
                self._inbox.put(_Update(jobs))
            ended = _Ended(None)
        except PodracerError as error:
            ended = _Ended(error)
        finally:
            self._inbox.put(ended)

    def _tell(self, text: str) -> None:
        self._inbox.put(ProcessNews("jobs", text))

    def _take(self, message: _Message) -> bool:
        """Whether all jobs have ended."""
        match message:
            case _Update(jobs=jobs):
                self.jobs = jobs
                self._display.show(job.message for job in jobs.values())
            case ProcessNews(fatal=True):
                raise Unavailable(message.message, reason="PROCESS_FAILED")
            case ProcessNews():
                self._display.note(message.message)
            case _Ended(error=error):
                if error is not None:
                    raise error
                return True
            case _Interrupted():
                pass
        return False

    def _interrupt(self) -> int:
        """Suspend the jobs and give their pods the time for a last checkpoint."""
        begin = time.monotonic()
        self._stop_by = begin + STOP_S
        self._display.note("interrupted: suspending the jobs; once more to leave at once")
        try:
            for job in self.jobs.values():
                left = begin + _SUSPEND_S - time.monotonic()
                if not job.ended and left > 0.0:
                    job.suspend(timeout_s=left)
            while self._is_working and (left := begin + _DRAIN_S - time.monotonic()) > 0.0:
                self._take(self._inbox.get(timeout=left))
        except Empty:
            pass
        except PodracerError as error:
            self._display.note(f"not every job could be suspended: {error.message}; they go on with the next run")
        return INTERRUPTED

    @property
    def _is_working(self) -> bool:
        return any(job.progress.pod_count for job in self.jobs.values())


def _resume_or_create(client: Client, specs: Sequence[JobSpec], tell: Callable[[str], None]) -> list[Job]:
    """The jobs of an interrupted run of the same specs, those that had ended too, or new ones; others give way."""
    stored = check_jobs(client, specs)
    wanted = [spec_from_message(spec_to_message(spec)) for spec in stored]  # what a server makes of them
    known = client.jobs()
    unfinished = [job for job in known if job.message.state in UNFINISHED]
    found = _matching(unfinished, wanted)
    for job in unfinished:
        if job not in found.values() and job.message.state != job_pb2.JOB_STATE_SUSPENDED:
            job.suspend()
            tell(f"the unfinished {job.name} is suspended while these run")
    if found:
        missing = [spec for number, spec in enumerate(wanted) if number not in found]
        done = [job for job in known if job.ended and job.message.state != job_pb2.JOB_STATE_CANCELLED]
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
    """Of each wanted spec the newest job that has it, by the spec's place."""
    found: dict[int, Job] = {}
    for job in jobs:
        spec = spec_from_message(job.message.spec)
        number = next((place for place, each in enumerate(wanted) if place not in found and each == spec), None)
        if number is not None:
            found[number] = job
    return found

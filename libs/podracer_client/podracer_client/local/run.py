"""`podracer run`: runs a job on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from podracer.orchestrator.v1 import job_pb2
from podracer_client.display.displays import Display, show_update
from podracer_client.display.summary import JobSummary, exit_code, next_steps, path_text
from podracer_client.jobs.client import Client
from podracer_client.jobs.following import JobUpdate
from podracer_client.jobs.history import History
from podracer_client.jobs.job import Job
from podracer_client.jobs.warm_starts import look_up_founders
from podracer_client.local.foreground import Foreground
from podracer_client.local.services import ServiceOptions
from podracer_client.names import short_name
from podracer_client.processes.process import INTERRUPTED
from podracer_client.servers.connection import DEFAULT_FOLDER
from podracer_core.environments.processes.box import missing
from podracer_core.errors import PodracerError
from podracer_platform.jobs.spec import JobSpec

UNFINISHED = (
    job_pb2.JOB_STATE_VALIDATING,
    job_pb2.JOB_STATE_PENDING,
    job_pb2.JOB_STATE_RUNNING,
    job_pb2.JOB_STATE_SUSPENDED,
)
_GONE = ("STOPPED", "LOST")
_PODS_DRAIN_S = 2.5
_SUSPEND_TIMEOUT_S = 1.0


def run_job(
    spec: JobSpec,
    folder: Path,
    display: Display,
    options: ServiceOptions | None = None,
    again: Sequence[str] = (),
) -> int:
    """Run `spec` in the state folder, or continue an unfinished job of the same spec; returns the
    exit code.

    `again`: the arguments of the command that continues after an interrupt. Raises
    PreconditionFailed while another process has the folder, InvalidInput if it cannot be written,
    Unavailable if a service cannot start or dies repeatedly."""
    with ExitStack() as stack:
        return _Run(spec, folder, display, stack, options, again).follow()


class _Run(Foreground[JobUpdate | Job]):
    """The second thread finds the job or makes it, and watches it."""

    def __init__(
        self,
        spec: JobSpec,
        folder: Path,
        display: Display,
        stack: ExitStack,
        options: ServiceOptions | None,
        again: Sequence[str],
    ) -> None:
        super().__init__(stack, folder, options, display.note)
        stack.enter_context(display)
        if spec.environment.entry_point and (lacks := missing()):
            display.note(
                f"your code is not shut in completely: this machine lacks {'; '.join(lacks)}"
            )
        self._spec = spec
        self._display = display
        self._again = again
        self._started: Job | None = None
        self._suspended = False
        self._drained = False
        self._background = ExitStack()

    def _work(self) -> None:
        client = self._services.client()
        job = _resume_or_create(client, self._spec, self._tell)
        self._inbox.put(job)
        parts = ("agents",) if self._display.wants_agents else ()
        watch = job.watch(after_position=job.message.event_position, parts=parts)
        self._background.callback(watch.cancel)
        for update in watch:
            self._inbox.put(update)

    def _leave(self) -> None:
        self._background.close()

    def _take_news(self, news: JobUpdate | Job) -> bool:
        if isinstance(news, JobUpdate):
            return self._take_update(news)
        self._started = news
        self._display.show(History(news.message))
        return False

    def _take_update(self, update: JobUpdate) -> bool:
        assert self._started is not None, "the watch begins after the start"
        if self._suspended and not update.ended and update.job.state != job_pb2.JOB_STATE_SUSPENDED:
            return False  # it was on its way before the job was suspended
        self._started.message = update.job
        self._drained = self._suspended and all(pod.state in _GONE for pod in update.history.pods)
        show_update(self._display, update)
        return update.ended

    def _finish(self) -> int:
        assert self._started is not None, "a job that has ended was started"
        job = self._started
        self._show_end(job)
        return exit_code([job.message])

    def _interrupt(self) -> int:
        """Suspend the job, give its pods time for a last checkpoint, and show its state."""
        begin = time.monotonic()
        self._display.note("interrupted: suspending the job; once more to leave at once")
        try:
            self._take_until(lambda: self._started is not None, begin + _SUSPEND_TIMEOUT_S)
            if self._started is None:
                return INTERRUPTED
            job = self._started
            if not job.ended:
                job.suspend(timeout_s=_SUSPEND_TIMEOUT_S)
                self._suspended = True
                self._take_until(lambda: self._drained or job.ended, begin + _PODS_DRAIN_S)
        except PodracerError as error:
            self._display.note(
                f"the job could not be suspended: {error.message}; it goes on with the next run"
            )
        if self._started is not None:
            self._show_end(self._started)
        return INTERRUPTED

    def _show_end(self, job: Job) -> None:
        message = job.message
        final = message.retrained if message.HasField("retrained") else message.progress.best
        final = message.unjudged if message.HasField("unjudged") else final
        prefix = final.checkpoint.prefix
        checkpoint = path_text(self._state.objects / prefix.rstrip("/")) if prefix else ""
        elsewhere = self._state.path != DEFAULT_FOLDER.absolute()
        options = [
            short_name(job.name),
            *(["--dir", path_text(self._state.path)] if elsewhere else []),
        ]
        commands = next_steps(checkpoint, options, again=[] if job.ended else self._again)
        self._display.summary = JobSummary(job.message, checkpoint)
        self._display.finish(self._display.summary, commands)


def _resume_or_create(client: Client, spec: JobSpec, tell: Callable[[str], None]) -> Job:
    """The folder's unfinished job of the same spec, else a new one; other unfinished jobs are
    suspended."""
    stored = look_up_founders(client, client.upload_files(spec))
    # what a server makes of it, defaults written out
    wanted = JobSpec.from_message(stored.to_message())
    mine: Job | None = None
    for job in client.jobs(UNFINISHED, full=True):
        if mine is None and JobSpec.from_message(job.message.spec) == wanted:
            mine = job
        elif job.message.state != job_pb2.JOB_STATE_SUSPENDED:
            job.suspend()
            tell(f"the unfinished {job.name} is suspended while this one runs")
    if mine is None:
        return client.submit(stored)
    tell(f"going on with {mine.name}")
    return mine.resume() if mine.message.state == job_pb2.JOB_STATE_SUSPENDED else mine

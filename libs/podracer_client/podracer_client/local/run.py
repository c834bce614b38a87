"""`podracer run`: a job from its start to its end on this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue

from podracer.orchestrator.v1 import job_pb2
from podracer_client.client import Client
from podracer_client.connection import DEFAULT_FOLDER
from podracer_client.display.display import Display
from podracer_client.display.snapshot import take_snapshot
from podracer_client.display.summary import JobSummary, next_steps, path_text
from podracer_client.following import AgentPoller, show_update
from podracer_client.job import Job
from podracer_client.local.interrupts import INTERRUPTED, Interrupts, leave_at_once
from podracer_client.local.process import ProcessNews
from podracer_client.local.run_folder import RunFolder
from podracer_client.local.services import STOP_S, LocalServices, ServiceOptions
from podracer_client.local.state_folder import StateFolder
from podracer_client.names import short_name
from podracer_client.watching import JobUpdate
from podracer_core.errors import PodracerError, Unavailable
from podracer_core.jobs.messages import spec_from_message, spec_to_message
from podracer_core.jobs.spec import JobSpec

UNFINISHED = (
    job_pb2.JOB_STATE_VALIDATING,
    job_pb2.JOB_STATE_PENDING,
    job_pb2.JOB_STATE_RUNNING,
    job_pb2.JOB_STATE_SUSPENDED,
)
_GONE = frozenset({job_pb2.POD_STATE_STOPPED, job_pb2.POD_STATE_LOST})
_PODS_DRAIN_S = 2.5
_SUSPEND_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class _Started:
    """The services are up and the job is theirs."""

    client: Client
    job: Job


@dataclass(frozen=True, slots=True)
class _Ended:
    """The thread that follows the job has ended, by an error or because the job has."""

    error: PodracerError | None


class _Interrupted:
    """Ctrl-C, once."""


_Message = ProcessNews | JobUpdate | _Started | _Ended | _Interrupted


def run_job(
    spec: JobSpec, folder: Path, display: Display, options: ServiceOptions | None = None, again: Sequence[str] = ()
) -> int:
    """Run `spec` in the state folder, on from where an unfinished job of the same spec stopped; the exit code.

    `again` are the arguments of the command that does so once more, for a user who interrupts it.
    Raises PreconditionFailed while another process has the folder, InvalidInput where it cannot be written, Unavailable
    when a service cannot start or dies again and again.
    """
    inbox: SimpleQueue[_Message] = SimpleQueue()
    with ExitStack() as stack:
        state = stack.enter_context(StateFolder.open(folder))
        run_folder = stack.enter_context(RunFolder())
        # It is the user's own job, on the user's own machine.
        options = replace(options or ServiceOptions(), allow_user_code=True)
        services = LocalServices(state, run_folder, options, inbox.put)
        stack.enter_context(
            Interrupts(lambda: inbox.put(_Interrupted()), lambda: leave_at_once(services, state, run_folder))
        )
        stack.enter_context(display)
        run = _Run(spec, state, services, display, inbox, again)
        stack.callback(run.stop)
        return run.follow()


class _Run:
    """The main thread reads the inbox; a second one starts the services, finds the job and watches it."""

    def __init__(
        self,
        spec: JobSpec,
        state: StateFolder,
        services: LocalServices,
        display: Display,
        inbox: SimpleQueue[_Message],
        again: Sequence[str],
    ) -> None:
        self._spec = spec
        self._state = state
        self._services = services
        self._display = display
        self._inbox = inbox
        self._again = again
        self._started: _Started | None = None
        self._suspended = False
        self._drained = False
        self._background = ExitStack()
        self._stop_by: float | None = None

    def follow(self) -> int:
        """Until the job has ended or the user interrupts."""
        self._services.start()
        threading.Thread(target=self._work, name="job", daemon=True).start()
        while True:
            message = self._inbox.get()
            if isinstance(message, _Interrupted):
                return self._interrupt()
            if self._take(message):
                return self._finish()

    def stop(self) -> None:
        """End everything; a user who has interrupted has waited for a part of the time already."""
        self._background.close()
        left = STOP_S if self._stop_by is None else self._stop_by - time.monotonic()
        self._services.stop(max(1.0, left))

    def _work(self) -> None:
        """The second thread."""
        ended = _Ended(PodracerError("following the job failed in a way that nobody foresaw; the traceback is above"))
        try:
            client = self._services.client()
            job = _resume_or_create(client, self._spec, self._inbox)
            self._inbox.put(_Started(client, job))
            watch = job.watch(after_position=job.message.event_position)
            self._background.callback(watch.cancel)
            for update in watch:
                self._inbox.put(update)
            ended = _Ended(None)
        except PodracerError as error:
            ended = _Ended(error)
        finally:
            self._inbox.put(ended)

    def _take(self, message: _Message) -> bool:
        """Whether the job has ended."""
        match message:
            case _Started():
                self._started = message
                self._display.show(take_snapshot(message.job.message, ()))
                if self._display.wants_agents:
                    job = message.job.message
                    self._background.enter_context(
                        AgentPoller(message.client, job.leaderboard, job.spec.objective, self._display.agents)
                    )
            case JobUpdate():
                return self._take_update(message)
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

    def _take_update(self, update: JobUpdate) -> bool:
        assert self._started is not None, "the watch begins after the start"
        if self._suspended and not update.ended and update.job.state != job_pb2.JOB_STATE_SUSPENDED:
            return False  # it was on its way before the job was suspended
        self._started.job.message = update.job
        self._drained = self._suspended and all(pod.state in _GONE for pod in update.pods)
        show_update(self._display, update)
        return update.ended

    def _finish(self) -> int:
        assert self._started is not None, "a job that has ended was started"
        job = self._started.job
        self._show_end(job)
        return 0 if job.message.state == job_pb2.JOB_STATE_SUCCEEDED else 1

    def _interrupt(self) -> int:
        """Suspend the job, give its pods the time for a last checkpoint, and say where things stand."""
        begin = time.monotonic()
        self._stop_by = begin + STOP_S
        self._display.note("interrupted: suspending the job; once more to leave at once")
        try:
            self._take_until(lambda: self._started is not None, begin + _SUSPEND_TIMEOUT_S)
            if self._started is None:
                return INTERRUPTED
            job = self._started.job
            if not job.ended:
                job.suspend(timeout_s=_SUSPEND_TIMEOUT_S)
                self._suspended = True
                self._take_until(lambda: self._drained or job.ended, begin + _PODS_DRAIN_S)
        except PodracerError as error:
            self._display.note(f"the job could not be suspended: {error.message}; it goes on with the next run")
        if self._started is not None:
            self._show_end(self._started.job)
        return INTERRUPTED

    def _take_until(self, done: Callable[[], bool], deadline: float) -> None:
        while not done():
            try:
                self._take(self._inbox.get(timeout=max(0.0, deadline - time.monotonic())))
            except Empty:
                return

    def _show_end(self, job: Job) -> None:
        prefix = job.progress.best.checkpoint.prefix
        checkpoint = path_text(self._state.objects / prefix.rstrip("/")) if prefix else ""
        elsewhere = self._state.path != DEFAULT_FOLDER.absolute()
        options = [short_name(job.name), *(["--dir", path_text(self._state.path)] if elsewhere else [])]
        commands = next_steps(checkpoint, options, again=[] if job.ended else self._again)
        self._display.finish(JobSummary(job.message, checkpoint), commands)


def _resume_or_create(client: Client, spec: JobSpec, inbox: SimpleQueue[_Message]) -> Job:
    """The folder's unfinished job of the same spec, else a new one; other unfinished jobs give way."""
    stored = client.upload_files(spec)
    wanted = spec_from_message(spec_to_message(stored))  # what a server makes of it, defaults written out
    mine: Job | None = None
    for job in client.jobs(UNFINISHED):
        if mine is None and spec_from_message(job.message.spec) == wanted:
            mine = job
        elif job.message.state != job_pb2.JOB_STATE_SUSPENDED:
            job.suspend()
            inbox.put(ProcessNews("jobs", f"the unfinished {job.name} is suspended while this one runs"))
    if mine is None:
        return client.submit(stored)
    inbox.put(ProcessNews("jobs", f"going on with {mine.name}"))
    return mine.resume() if mine.message.state == job_pb2.JOB_STATE_SUSPENDED else mine

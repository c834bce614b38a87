"""Services in the foreground: with a job, with all jobs of a matrix, which share this machine, or
until Ctrl-C (`podracer up`)."""

from __future__ import annotations

import secrets
import shlex
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from podracer.orchestrator.v1 import job_pb2
from podracer_client.display import (
    Display,
    ExperimentDisplay,
    JobSummary,
    exit_code,
    next_steps,
    path_text,
    program_words,
    show_update,
)
from podracer_client.jobs import (
    Client,
    History,
    Job,
    JobUpdate,
    check_jobs,
    create_jobs,
    follow_jobs,
    look_up_founders,
)
from podracer_client.local.services import (
    STOP_S,
    LocalServices,
    ServiceOptions,
    StateFolder,
    leave_at_once,
    require_services,
)
from podracer_client.names import short_name
from podracer_client.processes import (
    INTERRUPTED,
    Inbox,
    Interrupts,
    ProcessNews,
    RunFolder,
    free_ports,
    listener_of,
    serve_until_interrupted,
)
from podracer_client.servers import DEFAULT_FOLDER, Connection
from podracer_core.box import missing
from podracer_core.errors import InvalidInput, PodracerError, Unavailable
from podracer_platform.jobs import Experiment, JobSpec
from podracer_platform.rpc import parse_address, prepare_address

News = TypeVar("News")


@dataclass(frozen=True, slots=True)
class _Ended:
    """The thread that follows has ended, by an error or because there is nothing left to follow."""

    error: PodracerError | None


class _Interrupted:
    """Ctrl-C, once."""


class Foreground(ABC, Generic[News]):
    """The main thread reads an inbox; a second one, `_work`, starts the jobs and puts `News` of
    them there."""

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        options: ServiceOptions | None,
        note: Callable[[str], None],
    ) -> None:
        """`stack` holds the resources to release; `note` shows a line.

        Raises PreconditionFailed while another process has the folder, or if a service is not
        installed, InvalidInput if the folder cannot be written."""
        require_services()
        self._note = note
        self._inbox: SimpleQueue[News | ProcessNews | _Ended | _Interrupted] = SimpleQueue()
        self._stop_by: float | None = None
        self._state = state = stack.enter_context(StateFolder.open(folder))
        run_folder = stack.enter_context(RunFolder())
        # They are the user's own jobs, on the user's own machine.
        options = replace(options or ServiceOptions(), own_user_code=True)
        self._services = services = LocalServices(state, run_folder, options, self._inbox.put)
        stack.enter_context(
            Interrupts(
                lambda: self._inbox.put(_Interrupted()),
                lambda: leave_at_once(services, state, run_folder),
            )
        )

    def follow(self) -> int:
        """Run until the jobs end or the user interrupts; returns the exit code. Then the services
        have ended, too.

        Raises Unavailable if a service cannot start or dies repeatedly, and the error of the second
        thread."""
        try:
            self._services.start()
            threading.Thread(target=self._guarded_work, name="following", daemon=True).start()
            while True:
                message = self._inbox.get()
                if isinstance(message, _Interrupted):
                    self._stop_by = time.monotonic() + STOP_S
                    return self._interrupt()
                if self._take(message):
                    return self._finish()
        finally:
            self._stop()

    @abstractmethod
    def _work(self) -> None:
        """The second thread, until all jobs have ended."""

    @abstractmethod
    def _leave(self) -> None:
        """Let the second thread end soon."""

    @abstractmethod
    def _take_news(self, news: News) -> bool:
        """Whether all jobs have ended."""

    @abstractmethod
    def _finish(self) -> int:
        """The jobs have ended: the exit code."""

    @abstractmethod
    def _interrupt(self) -> int:
        """Suspend the jobs for the next run: the exit code."""

    def _tell(self, text: str) -> None:
        """A line to show, from the second thread."""
        self._inbox.put(ProcessNews("jobs", text))

    def _take_until(self, done: Callable[[], bool], deadline: float) -> None:
        """Continue to take messages until the `deadline` of time.monotonic()."""
        while not done():
            try:
                self._take(self._inbox.get(timeout=max(0.0, deadline - time.monotonic())))
            except Empty:
                return

    def _take(self, message: News | ProcessNews | _Ended | _Interrupted) -> bool:
        match message:
            case ProcessNews(fatal=True):
                raise Unavailable(message.message, reason="PROCESS_FAILED")
            case ProcessNews():
                self._note(message.message)
            case _Ended(error=error):
                if error is not None:
                    raise error
                return True
            case _Interrupted():
                pass
            case _:
                return self._take_news(message)
        return False

    def _guarded_work(self) -> None:
        ended = _Ended(
            PodracerError(
                "an unexpected error ended the display of the jobs; its traceback is above"
            )
        )
        try:
            self._work()
            ended = _Ended(None)
        except PodracerError as error:
            ended = _Ended(error)
        finally:
            self._inbox.put(ended)

    def _stop(self) -> None:
        """End everything; after an interrupt a part of the time has passed already."""
        self._leave()
        left = STOP_S if self._stop_by is None else self._stop_by - time.monotonic()
        self._services.stop(max(1.0, left))


def keep_up(folder: Path, options: ServiceOptions) -> int:
    """Start the services, print how to reach them, and keep them running until a signal; returns
    the exit code.

    Raises InvalidInput for an unusable address (then nothing is made), PreconditionFailed while
    another process has the folder, Unavailable if a service cannot start or dies repeatedly."""
    require_services()
    _check_addresses(options)
    inbox: Inbox = SimpleQueue()
    with ExitStack() as stack:
        state = stack.enter_context(StateFolder.open(folder))
        run_folder = stack.enter_context(RunFolder())
        services = LocalServices(state, run_folder, options, inbox.put)
        stack.enter_context(
            Interrupts(lambda: inbox.put(None), lambda: leave_at_once(services, state, run_folder))
        )
        stack.callback(services.stop)
        services.start()
        return serve_until_interrupted(inbox, lambda: _how_to_connect(services.wait_ready(), state))


def _check_addresses(options: ServiceOptions) -> None:
    """Check that both addresses are free, before anything is made."""
    listen = {
        "--listen": options.orchestrator_listen,
        "--leaderboard-listen": options.leaderboard_listen,
    }
    if len(set(listen.values())) == 1 and not options.orchestrator_listen.endswith(":0"):
        raise InvalidInput(
            f"--listen and --leaderboard-listen are both {options.orchestrator_listen}; they must "
            "differ"
        )
    for option, address in listen.items():
        try:
            prepare_address(address, allow_insecure=False)
        except InvalidInput as error:
            taken = error.reason == "ADDRESS_IN_USE" and parse_address(address).port
            advice = _way_out(taken, listen) if taken else f"; choose another {option}"
            raise InvalidInput(f"{error.message}{advice}", reason=error.reason) from error


def _way_out(port: int, listen: Mapping[str, str]) -> str:
    """The process that has the port, and options with free ports."""
    owner = listener_of(port)
    highest = max(
        (parse_address(address) for address in listen.values()), key=lambda address: address.port
    )
    free = zip(listen, free_ports(highest, len(listen)), strict=False)
    options = " ".join(f"{option} {address}" for option, address in free)
    return f"{f' by {owner}' if owner else ''}; these are free: {options}"


def _how_to_connect(connection: Connection, state: StateFolder) -> str:
    program = shlex.join(program_words())
    folder = path_text(state.path)
    option = "" if state.path == DEFAULT_FOLDER.absolute() else f" --dir {shlex.quote(folder)}"
    token = shlex.quote(path_text(state.tokens / "client"))
    return (
        f"orchestrator  {connection.orchestrator}\n"
        f"leaderboard   {connection.leaderboard}\n"
        f"state folder  {folder}\n"
        f"submit a job  {program} submit JOB.yaml{option}\n"
        f"other clients export PODRACER_ORCHESTRATOR={connection.orchestrator} "
        f"PODRACER_LEADERBOARD={connection.leaderboard} PODRACER_TOKEN_FILE={token}\n"
        "stop          Ctrl-C; unfinished jobs go on at the next start\n"
    )


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
        return _JobRun(spec, folder, display, stack, options, again).follow()


class _JobRun(Foreground[JobUpdate | Job]):
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
        job = _resume_or_create_job(client, self._spec, self._tell)
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


def _resume_or_create_job(client: Client, spec: JobSpec, tell: Callable[[str], None]) -> Job:
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
    Raises as `podracer_client.local.foreground.run_job`."""
    with ExitStack() as stack:
        return _ExperimentRun(
            experiment, folder, display, stack, options, next_steps, again
        ).follow()


class _ExperimentRun(Foreground[Mapping[str, Job]]):
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
        names = [
            job.name for job in _resume_or_create_jobs(client, self._experiment.jobs, self._tell)
        ]
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


def _resume_or_create_jobs(
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

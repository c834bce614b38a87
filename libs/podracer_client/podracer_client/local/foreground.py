"""Services in the foreground: with a job, or until Ctrl-C (`podracer up`)."""

from __future__ import annotations

import shlex
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from podracer_client.display.summary import path_text, program_words
from podracer_client.local.services import (
    STOP_S,
    LocalServices,
    ServiceOptions,
    leave_at_once,
    require_services,
)
from podracer_client.local.state_folder import StateFolder
from podracer_client.processes.ports import free_ports, listener_of
from podracer_client.processes.process import (
    Inbox,
    Interrupts,
    ProcessNews,
    serve_until_interrupted,
)
from podracer_client.processes.run_folder import RunFolder
from podracer_client.servers.connection import DEFAULT_FOLDER, Connection
from podracer_core.errors import InvalidInput, PodracerError, Unavailable
from podracer_platform.rpc.address import parse_address
from podracer_platform.rpc.binding import prepare_address

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

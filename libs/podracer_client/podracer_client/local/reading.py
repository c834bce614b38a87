"""Reading a state folder without running services: they are started while reading, without pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

from podracer_client.jobs.client import Client
from podracer_client.local.services import (
    READY_TIMEOUT_S,
    ServiceOptions,
    leaderboard_plan,
    orchestrator_plan,
)
from podracer_client.local.state_folder import StateFolder
from podracer_client.processes.process import ManagedProcess
from podracer_client.processes.run_folder import RunFolder
from podracer_client.servers.connection import DEFAULT_FOLDER, Connection
from podracer_core.errors import NotFound
from podracer_core.rpc.tokens import FileToken, Role, create_tokens

_STOP_S = 2.0
_AT_REST = {"PODRACER_POOL": "static", "PODRACER_LEASE_TERM": "3600"}
"""Settings with which no pod is started, and leases that were held before stay unchanged."""

Connect = Callable[[], AbstractContextManager[Client]]
"""Returns a context manager of a client: Client's own `connect`, or one that keeps an open client
open."""


def running_or_resting(
    connect: Connect, folder: Path | None, *, only_leaderboard: bool = False
) -> AbstractContextManager[Client]:
    """A client of the servers that `connect` finds; if none run, of a state folder (None: ./runs)
    at rest.

    For a folder at rest `only_leaderboard` starts one service instead of two. Raises NotFound if
    the folder was never used, other errors of `connect`, and as `resting_services`."""
    folder = folder or DEFAULT_FOLDER
    try:
        return connect()
    except NotFound:
        service = "leaderboard" if only_leaderboard else "orchestrator"
        if not (folder / StateFolder.database_name(service)).is_file():
            raise
    return resting_leaderboard(folder) if only_leaderboard else resting_services(folder)


@contextmanager
def resting_leaderboard(folder: Path) -> Iterator[Client]:
    """A client of the folder's leaderboard alone. Raises PreconditionFailed while another process
    has the folder."""
    with StateFolder.open(folder, create=False) as state, RunFolder() as run_folder:
        token = create_tokens(state.tokens)[Role.CLIENT]
        process = ManagedProcess(leaderboard_plan(state, run_folder.socket("leaderboard")))
        process.start()
        try:
            address = process.wait_ready(READY_TIMEOUT_S)
            with Client(Connection("", address, FileToken(token))) as client:
                yield client
        finally:
            process.stop(_STOP_S)


@contextmanager
def resting_services(folder: Path) -> Iterator[Client]:
    """A client of the folder's orchestrator and leaderboard. Raises PreconditionFailed as
    `resting_leaderboard`.

    They write no connection.json, so that other commands do not find them.
    """
    with StateFolder.open(folder, create=False) as state, RunFolder() as run_folder:
        token = create_tokens(state.tokens)[Role.CLIENT]
        listen = {name: run_folder.socket(name) for name in ("leaderboard", "orchestrator")}
        plan = orchestrator_plan(
            state, run_folder, listen["orchestrator"], listen["leaderboard"], ServiceOptions()
        )
        processes = [
            ManagedProcess(leaderboard_plan(state, listen["leaderboard"])),
            ManagedProcess(replace(plan, environment={**plan.environment, **_AT_REST})),
        ]
        for process in processes:
            process.start()
        try:
            leaderboard, orchestrator = (
                process.wait_ready(READY_TIMEOUT_S) for process in processes
            )
            with Client(Connection(orchestrator, leaderboard, FileToken(token))) as client:
                yield client
        finally:
            for process in reversed(processes):
                process.stop(_STOP_S)

"""The leaderboard of a state folder where nothing runs: its service is started for the time of reading."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from podracer_client.client import Client
from podracer_client.connection import Connection
from podracer_client.local.process import ManagedProcess
from podracer_client.local.run_folder import RunFolder
from podracer_client.local.services import READY_TIMEOUT_S, leaderboard_plan
from podracer_client.local.state_folder import StateFolder
from podracer_core.rpc.tokens import FileToken, Role, create_tokens

_STOP_S = 2.0


def has_leaderboard(folder: Path) -> bool:
    """Whether a leaderboard has ever run in this folder."""
    return (folder / StateFolder.database_name("leaderboard")).is_file()


@contextmanager
def resting_leaderboard(folder: Path) -> Iterator[Client]:
    """A client of the folder's leaderboard alone. Raises PreconditionFailed while another process has the folder."""
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

"""`podracer up`: the services of this machine, until Ctrl-C."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from podracer_client.display.summary import path_text, program_words
from podracer_client.local.services import (
    LocalServices,
    ServiceOptions,
    leave_at_once,
    require_services,
)
from podracer_client.local.state_folder import StateFolder
from podracer_client.processes.interrupts import Inbox, Interrupts, serve_until_interrupted
from podracer_client.processes.ports import free_ports, listener_of
from podracer_client.processes.run_folder import RunFolder
from podracer_client.servers.connection import DEFAULT_FOLDER, Connection
from podracer_core.errors import InvalidInput
from podracer_core.rpc.address import parse_address
from podracer_core.rpc.binding import prepare_address


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

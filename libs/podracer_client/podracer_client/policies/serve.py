"""`podracer serve`: a policy server on this machine, until Ctrl-C."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer_client.display import path_text
from podracer_client.files import write_private
from podracer_client.jobs import Client
from podracer_client.local import READY_TIMEOUT_S, inherited_environment, require_services
from podracer_client.names import (
    is_checkpoint_name,
    is_job_name,
    job_name,
    leaderboard_name,
    refused,
    short_name,
)
from podracer_client.policies.folders import is_there, policy_folders
from podracer_client.processes import (
    INTERRUPTED,
    FixedAddress,
    Inbox,
    Interrupts,
    ManagedProcess,
    ProcessPlan,
    RunFolder,
    serve_until_interrupted,
)
from podracer_core.errors import InvalidInput, NotFound
from podracer_platform.rpc import FileToken, Role, create_tokens, is_label, prepare_address

_STOP_S = 4.0
_NAME = re.compile(r"([A-Za-z0-9._-]{1,100})=(.+)", re.DOTALL)
_DEFAULT_NAME = "policy"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """`tokens`: folder with the tokens of its callers; `tls`: certificate of the role policy, for
    both directions."""

    listen: str
    tokens: Path
    rule: str = ""
    follow_interval_s: float = 5.0
    tls: Path | None = None
    allow_insecure: bool = False


def keep_serving(
    texts: Sequence[str],
    ensemble: int,
    options: ServeOptions,
    connect: Callable[[], Client],
    state_folder: Path | None = None,
) -> int:
    """Start the server, print how to reach it, and keep it running until a signal; returns the exit
    code.

    Raises InvalidInput and NotFound for missing policies or aliases, or an unusable address (then
    nothing is started), PreconditionFailed if the server is not installed, Unavailable if it cannot
    start or dies repeatedly."""
    require_services("policy")
    wanted = _by_resource_name(wanted_policies(texts), connect)
    prepare_address(
        options.listen, allow_insecure=options.allow_insecure, has_tls=options.tls is not None
    )
    inbox: Inbox = SimpleQueue()
    with ExitStack() as stack:
        run_folder = stack.enter_context(RunFolder())
        listen = FixedAddress(options.listen)
        environment = {
            **inherited_environment(),
            "PODRACER_LISTEN": listen.address,
            "PODRACER_TOKENS": str(options.tokens),
            "PODRACER_POLICIES": ",".join(_entries(wanted, ensemble, connect, state_folder, stack)),
            "PODRACER_RULE": options.rule,
            "PODRACER_FOLLOW_INTERVAL": f"{options.follow_interval_s}s",
            **_followed(wanted, connect, run_folder),
        }
        if options.tls is not None:
            environment["PODRACER_TLS"] = str(options.tls.absolute())
        if options.allow_insecure:
            environment["PODRACER_ALLOW_INSECURE"] = "true"
        create_tokens(options.tokens)
        command = (sys.executable, "-P", "-m", "podracer_policy")
        log = run_folder.path / "policy.log"
        process = ManagedProcess(
            ProcessPlan("policy server", command, environment, log, log_lasts=False), inbox.put
        )
        stack.enter_context(
            Interrupts(lambda: inbox.put(None), lambda: _leave_at_once(process, run_folder))
        )
        stack.callback(process.stop, _STOP_S)
        process.start()
        return serve_until_interrupted(
            inbox,
            lambda: _how_to_connect(process.wait_ready(READY_TIMEOUT_S), wanted, options.tokens),
        )


def _entries(
    wanted: Sequence[Wanted],
    ensemble: int,
    connect: Callable[[], Client],
    state_folder: Path | None,
    stack: ExitStack,
) -> list[str]:
    """The value of PODRACER_POLICIES; `stack` removes downloaded policies."""
    if ensemble and (len(wanted) != 1 or wanted[0].alias):
        raise refused("--ensemble", "expects exactly one job, whose best candidates it takes")
    entries = []
    for one in wanted:
        if one.alias:
            entries.append(f"{one.name}={one.job}@{one.alias}")
            continue
        for path in stack.enter_context(
            policy_folders(one.policies, ensemble, connect, state_folder)
        ):
            if "," in str(path):
                raise InvalidInput(
                    f"{path}: a folder to serve from must have no comma in its path", path=path
                )
            entries.append(f"{one.name}={path}")
    return entries


def _by_resource_name(wanted: Sequence[Wanted], connect: Callable[[], Client]) -> list[Wanted]:
    """The wanted policies with resource names of jobs, which may be given by the names in their
    files."""
    if not any(one.alias for one in wanted):
        return list(wanted)
    with connect() as client:
        return [replace(one, job=client.full_name(one.job)) if one.alias else one for one in wanted]


def _followed(
    wanted: Sequence[Wanted], connect: Callable[[], Client], run_folder: RunFolder
) -> dict[str, str]:
    """The servers of the aliases and the token. Raises NotFound for an alias that points at
    nothing."""
    aliases = [one for one in wanted if one.alias]
    if not aliases:
        return {}
    with connect() as client:
        for one in aliases:
            request = leaderboard_service_pb2.ListAliasHistoryRequest(
                leaderboard=leaderboard_name(one.job), alias=one.alias, page_size=1
            )
            changes = client.leaderboard_service.ListAliasHistory(request).changes
            if not changes or not changes[0].agent:
                raise NotFound(
                    f"{one.job} has no alias {one.alias} that points at a policy", reason="NO_ALIAS"
                )
        connection = client.connection
    token = connection.token
    path = token.path if isinstance(token, FileToken) else run_folder.path / "client_token"
    if not isinstance(token, FileToken):
        write_private(path, token().encode())
    return {
        "PODRACER_ORCHESTRATOR": connection.orchestrator,
        "PODRACER_LEADERBOARD": connection.leaderboard,
        "PODRACER_CLIENT_TOKEN": str(path.absolute()),
    }


def _leave_at_once(process: ManagedProcess, run_folder: RunFolder) -> None:
    process.kill()
    run_folder.remove()
    os._exit(INTERRUPTED)


def _how_to_connect(address: str, wanted: Sequence[Wanted], tokens: Path) -> str:
    token = shlex.quote(path_text(tokens / Role.CLIENT))
    return (
        f"policy server  {address}\n"
        f"policies       {', '.join(one.name for one in wanted)}\n"
        f"clients        export PODRACER_TOKEN_FILE={token}\n"
        "stop           Ctrl-C\n"
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """A name and its policies, in the form of `podracer evaluate`, or an alias to follow."""

    name: str
    policies: tuple[str, ...] = ()
    job: str = ""
    alias: str = ""


def wanted_policies(texts: Sequence[str]) -> list[Wanted]:
    """Parse `[NAME=]POLICY` each; the default name is the job's id, or `policy`. Raises
    InvalidInput."""
    found: dict[str, Wanted] = {}
    for text in texts:
        match = None if is_there(text) else _NAME.fullmatch(text)
        given, source = (match[1], match[2]) if match else ("", text)
        job, at, alias = source.rpartition("@")
        follows = bool(at and is_job_name(job) and is_label(alias) and not is_there(source))
        name = given or (short_name(job) if follows else _default_name(source))
        former = found.get(name)
        if former is not None and (follows or former.alias or not given):
            raise refused("POLICY", f"{name} is there twice; give each its own NAME=")
        if follows:
            found[name] = Wanted(name, job=job_name(job), alias=alias)
        else:
            found[name] = Wanted(name, (*(former.policies if former else ()), source))
    return list(found.values())


def _default_name(source: str) -> str:
    if not is_there(source):
        if is_job_name(source):
            return short_name(source)
        if is_checkpoint_name(source):
            return source.split("/")[3]
    return _DEFAULT_NAME

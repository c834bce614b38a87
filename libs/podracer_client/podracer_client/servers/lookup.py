"""Finding the servers: given, in the environment, in a state folder or in a context."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from podracer_client.servers.connection import (
    CONTEXT_VARIABLE,
    DEFAULT_FOLDER,
    LEADERBOARD_VARIABLE,
    ORCHESTRATOR_VARIABLE,
    TLS_VARIABLE,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    Connection,
    ConnectionFile,
    Contexts,
    token_source,
)
from podracer_core.errors import InvalidInput, NotFound
from podracer_platform.rpc.tokens import FileToken, TokenSource

__all__ = ["find_connection"]


def find_connection(
    orchestrator: str | None = None,
    leaderboard: str | None = None,
    *,
    token: str | None = None,
    token_file: Path | None = None,
    tls: Path | None = None,
    folder: Path | None = None,
    context: str | None = None,
) -> Connection:
    """The servers to connect to. In this order: given servers, a given `folder`, PODRACER_*,
    servers that run in ./runs, the current context.

    Raises InvalidInput for a token that cannot be read, NotFound if no server is known, Unavailable
    if a cluster cannot be reached."""
    environment = {} if folder is not None else os.environ
    if (
        not orchestrator
        and not leaderboard
        and (context := context or environment.get(CONTEXT_VARIABLE))
    ):
        return _of_context(Contexts.read(), context, token_source(token, token_file), tls)
    orchestrator = orchestrator or environment.get(ORCHESTRATOR_VARIABLE, "")
    leaderboard = leaderboard or environment.get(LEADERBOARD_VARIABLE, "")
    source = token_source(token, token_file)
    if not orchestrator and not leaderboard:
        try:
            found = ConnectionFile.connection(folder or DEFAULT_FOLDER)
        except NotFound:
            contexts = Contexts.read()
            if folder is not None or not contexts.current:
                raise
            return _of_context(contexts, contexts.current, source, tls)
        return Connection(found.orchestrator, found.leaderboard, source or found.token, tls)
    if tls is None and (set_tls := environment.get(TLS_VARIABLE)):
        tls = Path(set_tls)
    source = source or token_source(
        environment.get(TOKEN_VARIABLE), environment.get(TOKEN_FILE_VARIABLE)
    )
    if source is None and folder is not None:
        # no server of that folder runs: it has no bearing on the given one
        with suppress(NotFound):
            source = ConnectionFile.connection(folder).token
    if source is None:
        raise InvalidInput(
            f"no token for {orchestrator or leaderboard}: give --token-file, or set "
            f"{TOKEN_FILE_VARIABLE} or {TOKEN_VARIABLE}",
            reason="NO_TOKEN",
        )
    return Connection(orchestrator, leaderboard, source, tls)


def _of_context(
    contexts: Contexts, name: str, source: TokenSource | None, tls: Path | None
) -> Connection:
    place = contexts[name]
    if place.orchestrator:
        tls = tls or (Path(place.tls) if place.tls else None)
        return Connection(
            place.orchestrator, place.leaderboard, source or FileToken(Path(place.token_file)), tls
        )
    from podracer_client.servers import cluster  # late: most commands need none

    found = cluster.connect(place)
    return found if source is None else replace(found, token=source)

"""Serving the page from a thread of this process."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from podracer_core.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

    from podracer_client.jobs.client import Client


@contextmanager
def serve_page(
    connect: Callable[[], Client],
    client: Client | None = None,
    *,
    port: int = 0,
    hosts: Collection[str] = (),
    state_folder: Path | None = None,
) -> Iterator[str]:
    """The page's URL while it is served on loopback; its fragment is the key.

    `connect` finds the servers whenever they are not known or do not answer; `client` is one that is open already.
    `state_folder` is theirs where they run on this machine: its policies are filmed, whatever code they bring.
    Raises InvalidInput where the extra `web` is not installed or the port cannot be had.
    """
    try:
        import uvicorn

        from podracer_client.web.application import Page, make_application
        from podracer_client.web.following import Upstream
        from podracer_client.web.videos import Videos
    except ModuleNotFoundError as error:
        if error.name not in ("uvicorn", "starlette"):
            raise
        message = "the live page needs Starlette and uvicorn: `pip install 'podracer-client[web]'`"
        raise InvalidInput(message, reason="NO_WEB") from error
    key = secrets.token_urlsafe(32)
    with _listening(port) as listener, closing(Upstream(connect, client)) as upstream:
        port, page = listener.getsockname()[1], Page(upstream, Videos(state_folder))
        config = uvicorn.Config(
            make_application(page, key, port, hosts),
            access_log=False,
            log_level="warning",
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), name="live page", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}/#key={key}"
        finally:
            page.close()
            server.should_exit = True
            thread.join(5.0)


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise InvalidInput(f"--port {port}: {error.strerror}", reason="ADDRESS_IN_USE") from error

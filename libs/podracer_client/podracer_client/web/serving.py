"""Serves the page from a thread of this process."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from podracer_core.errors import InvalidInput
from podracer_platform.rpc import Address, FileToken, TokenSource, parse_address

if TYPE_CHECKING:
    from podracer_client.jobs import Client

_LEAST_KEY = 32
"""The least number of characters of a key in a file: the page does not limit guesses."""


@contextmanager
def serve_page(
    connect: Callable[[], Client],
    client: Client | None = None,
    *,
    listen: str = "127.0.0.1:0",
    key_file: Path | None = None,
    hosts: Collection[str] = (),
    state_folder: Path | None = None,
) -> Iterator[str]:
    """Serve the page and yield its URL. The fragment is the key, unless `key_file` holds one, which
    may change later.

    `connect` finds the servers if they are unknown or do not answer; `client` is an open client.
    `state_folder` is the servers' folder if they run on this machine: its policies are filmed,
    including their code. Raises InvalidInput if the extra `web` is not installed, for a weak key,
    for an address that cannot be used, and without a key file for an address beyond this machine.
    """
    try:
        import uvicorn

        from podracer_client.web.application import (
            ImpatientProtocol,
            Page,
            Videos,
            make_application,
        )
        from podracer_client.web.following import Upstream
    except ModuleNotFoundError as error:
        if error.name not in ("uvicorn", "starlette"):
            raise
        message = "the live page needs Starlette and uvicorn: `pip install 'podracer-client[web]'`"
        raise InvalidInput(message, reason="NO_WEB") from error
    address, key = parse_address(listen), _key(key_file)
    if address.is_unix:
        raise _refused(address, "INVALID_ADDRESS", "expected host:port, which a browser can open")
    if not (address.is_local or key_file):
        raise _refused(
            address,
            "NO_KEY",
            "not a loopback address: give the page a key of yours, with --key-file",
        )
    with _listening(address) as listener, closing(Upstream(connect, client)) as upstream:
        address = address.with_port(listener.getsockname()[1])
        page = Page(upstream, Videos(state_folder))
        config = uvicorn.Config(
            make_application(page, key, address.port, {str(address), *hosts}),
            http=ImpatientProtocol,
            access_log=False,
            log_level="warning",
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(
            target=server.run, args=([listener],), name="live page", daemon=True
        )
        thread.start()
        try:
            yield f"http://{address}/" + ("" if key_file else f"#key={key()}")
        finally:
            page.close()
            server.should_exit = True
            thread.join(5.0)


def _key(file: Path | None) -> TokenSource:
    """The key in `file`, or a new one. Raises InvalidInput if the file holds no key, or a weak
    one."""
    if file is None:
        return partial(str, secrets.token_urlsafe(_LEAST_KEY))
    key = FileToken(file)
    if len(key()) < _LEAST_KEY:
        raise InvalidInput(
            f"{file}: a key has {_LEAST_KEY} characters or more, this one has {len(key())}",
            path=file,
        )
    return key


def _listening(address: Address) -> socket.socket:
    """The listening socket; for the address [::] it accepts IPv4, too."""
    is_v6 = ":" in address.host
    family = socket.AF_INET6 if is_v6 else socket.AF_INET
    try:
        return socket.create_server(
            (address.host, address.port), family=family, dualstack_ipv6=is_v6
        )
    except (OSError, ValueError) as error:
        raise _refused(
            address, "ADDRESS_IN_USE", getattr(error, "strerror", "") or str(error)
        ) from error


def _refused(address: Address, reason: str, problem: str) -> InvalidInput:
    return InvalidInput(f"--listen {address}: {problem}", reason=reason)

"""`podracer web`: jobs in a browser, live."""

from __future__ import annotations

import os
import sys
import threading
from typing import Annotated

import typer

from podracer_client.command.options import ServerOptions, with_server

Port = Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Port of the page.", show_default="a free one")]


@with_server
def web(
    server: ServerOptions,
    port: Port = 0,
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:PORT]", help="Another name by which browsers reach it; may be repeated."),
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Show jobs live in a browser, on loopback, until Ctrl-C: curves, lineage, pods, leaderboard; and act on them.

    Of a state folder also when nothing runs there.
    """
    from podracer_client.processes.interrupts import INTERRUPTED, Interrupts
    from podracer_client.web.serving import serve_page

    stop = threading.Event()
    with (
        Interrupts(stop.set, lambda: os._exit(INTERRUPTED)),
        server.read() as client,
        serve_page(server.connect, client, port=port, hosts=host or (), state_folder=server.folder) as url,
    ):
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        if open_browser:
            typer.launch(url)
        stop.wait()
    raise typer.Exit(INTERRUPTED)

"""`podracer web`: jobs in a browser, live."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from podracer_client.command.options import ServerOptions, with_server


@with_server
def web(
    server: ServerOptions,
    listen: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address that the page listens on. Beyond loopback, --key-file is required.",
        ),
    ] = "127.0.0.1:0",
    key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the page's key, instead of a key in the URL.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:PORT]", help="A further host name of the page; may be repeated."
        ),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser.")
    ] = False,
    view: Annotated[
        str, typer.Option(metavar="PATH", help="The first view, as after # in the page's links.")
    ] = "",
) -> None:
    """Serve a live web page until Ctrl-C: curves, lineage, pods, leaderboard, and actions on jobs.

    Needs no running server for a state folder.
    """
    from podracer_client.processes import INTERRUPTED, Interrupts
    from podracer_client.web import serve_page

    stop = threading.Event()
    with (
        Interrupts(stop.set, lambda: os._exit(INTERRUPTED)),
        server.read() as client,
        serve_page(
            server.connect,
            client,
            listen=listen,
            key_file=key_file,
            hosts=host or (),
            state_folder=server.folder,
        ) as url,
    ):
        if view:
            url += f"{'&to=' if '#' in url else '#'}{view}"
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        if open_browser:
            typer.launch(url)
        stop.wait()
    raise typer.Exit(INTERRUPTED)

"""`podracer secrets` and `token`: the secrets of a deployment."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from podracer_core.errors import InvalidInput


def secrets(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="The folder to write.", show_default=False)
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further host name or address for the certificates; may be repeated."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, metavar="N", help="How long the certificates are valid.")] = 365,
    renew: Annotated[
        bool, typer.Option("--renew", help="Renew the certificates, signed by the same authority.")
    ] = False,
    kubernetes: Annotated[
        bool,
        typer.Option("--kubernetes", help="Instead of DIR: create and renew Secrets in this pod's namespace."),
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="With --kubernetes: exit once all Secrets exist.")] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="With --kubernetes: a Secret (or a pattern) to leave alone."),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            envvar="PODRACER_KUBECONFIG",
            metavar="FILE",
            help="With --kubernetes: kubeconfig for use outside a cluster.",
        ),
    ] = None,
) -> None:
    """Make the missing tokens, certificates and keys of a deployment. DIR/roles/ROLE holds the files of each role."""
    if kubernetes == (folder is not None):
        raise typer.BadParameter("expected either DIR or --kubernetes")
    if folder is None:
        from podracer_client.secrets.cluster import ClusterSecrets, keep
        from podracer_core.kubernetes.access import in_cluster, read_kubeconfig
        from podracer_core.kubernetes.api import ClusterApi
        from podracer_core.telemetry.logging import configure_logging

        configure_logging("secrets")
        stop = threading.Event()
        if not once:  # the first process of a container gets only the signals that it handles
            signal.signal(signal.SIGTERM, lambda *_: stop.set())
        api = ClusterApi(in_cluster() if kubeconfig is None else read_kubeconfig(kubeconfig))
        keep(ClusterSecrets(api, without or (), host or (), days), stop, once=once, renew=renew)
        return
    from podracer_client.secrets.deployment import create_secrets

    written = create_secrets(folder, host or (), days, renew=renew)
    sys.stdout.write("".join(f"{path}\n" for path in written) or f"{folder} is complete\n")


def token(
    tokens: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder with the token files.", show_default="$PODRACER_TOKENS"),
    ] = None,
) -> None:
    """Print the client token, for PODRACER_TOKEN_FILE or for the call metadata `authorization: Bearer TOKEN`."""
    from podracer_core.rpc.tokens import FileToken

    folder = tokens or (Path(os.environ["PODRACER_TOKENS"]) if os.environ.get("PODRACER_TOKENS") else None)
    if folder is None:
        raise InvalidInput("no folder of tokens: give --tokens DIR, or set PODRACER_TOKENS", reason="NO_TOKENS")
    sys.stdout.write(f"{FileToken(folder / 'client')()}\n")

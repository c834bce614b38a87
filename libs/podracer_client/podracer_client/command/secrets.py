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
        Path | None, typer.Argument(metavar="[DIR]", help="Where they are to lie.", show_default=False)
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A host's name or address that the certificates are to bear as well."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, metavar="N", help="How long the certificates are valid.")] = 365,
    renew: Annotated[bool, typer.Option("--renew", help="Make the certificates anew, by the same authority.")] = False,
    kubernetes: Annotated[
        bool,
        typer.Option("--kubernetes", help="Instead of DIR: Secrets of this pod's namespace, looked after for ever."),
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="With --kubernetes: end when none is missing.")] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="With --kubernetes: Secrets (or a pattern) that something else makes."),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(envvar="PODRACER_KUBECONFIG", metavar="FILE", help="With --kubernetes: from outside a cluster."),
    ] = None,
) -> None:
    """Make the tokens, certificates and keys of a deployment, as far as they are missing; DIR/roles/ROLE has what each
    role is given."""
    if kubernetes == (folder is not None):
        raise typer.BadParameter("expected either DIR or --kubernetes")
    if folder is None:
        from podracer_client.secrets.cluster import ClusterSecrets, keep
        from podracer_core.kubernetes.access import in_cluster, read_kubeconfig
        from podracer_core.kubernetes.api import ClusterApi
        from podracer_core.telemetry.logging import configure_logging

        configure_logging("secrets")
        stop = threading.Event()
        if not once:  # the first process of a container hears no signal that it does not ask for
            signal.signal(signal.SIGTERM, lambda *_: stop.set())
        api = ClusterApi(in_cluster() if kubeconfig is None else read_kubeconfig(kubeconfig))
        keep(ClusterSecrets(api, without or (), host or (), days), stop, once=once, renew=renew)
        return
    from podracer_client.secrets.deployment import create_secrets

    written = create_secrets(folder, host or (), days, renew=renew)
    sys.stdout.write("".join(f"{path}\n" for path in written) or f"nothing is missing below {folder}\n")


def token(
    tokens: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder with the token files.", show_default="$PODRACER_TOKENS"),
    ] = None,
) -> None:
    """Print a client's token: for PODRACER_TOKEN_FILE, or for the metadata `authorization: Bearer TOKEN` of a call."""
    from podracer_core.rpc.tokens import FileToken

    folder = tokens or (Path(os.environ["PODRACER_TOKENS"]) if os.environ.get("PODRACER_TOKENS") else None)
    if folder is None:
        raise InvalidInput("which tokens? Give --tokens DIR, or set PODRACER_TOKENS", reason="NO_TOKENS")
    sys.stdout.write(f"{FileToken(folder / 'client')()}\n")

"""`podracer secrets` and `token`: the secrets of a deployment."""

from __future__ import annotations

import os
import signal
import sys
import threading
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from podracer_client.display import columns
from podracer_core.errors import InvalidInput

Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        envvar="PODRACER_KUBECONFIG",
        metavar="FILE",
        help="With --kubernetes: kubeconfig for use outside a cluster.",
    ),
]


def secrets(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="The folder to write.", show_default=False),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A further host name or address for the certificates; may be repeated.",
        ),
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, metavar="N", help="How long the certificates are valid.")
    ] = 365,
    renew: Annotated[
        bool, typer.Option("--renew", help="Renew the certificates, signed by the same authority.")
    ] = False,
    kubernetes: Annotated[
        bool,
        typer.Option(
            "--kubernetes", help="Instead of DIR: create and renew Secrets in this pod's namespace."
        ),
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="With --kubernetes: exit once all Secrets exist.")
    ] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="With --kubernetes: a Secret (or a pattern) to leave alone."
        ),
    ] = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Make the missing tokens, certificates and keys of a deployment. DIR/roles/ROLE holds the
    files of each role."""
    if kubernetes == (folder is not None):
        raise typer.BadParameter("expected either DIR or --kubernetes")
    if folder is None:
        from podracer_client.secrets import ClusterSecrets, keep
        from podracer_platform.kubernetes import ClusterApi, in_cluster, read_kubeconfig
        from podracer_platform.telemetry import configure_logging

        configure_logging("secrets")
        stop = threading.Event()
        if not once:  # the first process of a container gets only the signals that it handles
            signal.signal(signal.SIGTERM, lambda *_: stop.set())
        api = ClusterApi(in_cluster() if kubeconfig is None else read_kubeconfig(kubeconfig))
        keep(ClusterSecrets(api, without or (), host or (), days), stop, once=once, renew=renew)
        return
    from podracer_client.secrets import create_secrets

    written = create_secrets(folder, host or (), days, renew=renew)
    sys.stdout.write("".join(f"{path}\n" for path in written) or f"{folder} is complete\n")


tokens = typer.Typer(invoke_without_command=True)
IssuingFolder = Annotated[
    Path,
    typer.Option("--dir", metavar="DIR", help="The folder of `podracer secrets` or `podracer up`."),
]


@tokens.callback()
def token(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--tokens",
            metavar="DIR",
            help="Folder with the token files.",
            show_default="$PODRACER_TOKENS",
        ),
    ] = None,
) -> None:
    """Print the client token, for PODRACER_TOKEN_FILE or the call metadata `authorization: Bearer
    TOKEN`. The commands issue signed tokens: each has a name, a role and an end."""
    from podracer_platform.rpc import FileToken

    if context.invoked_subcommand:
        return
    folder = folder or (
        Path(os.environ["PODRACER_TOKENS"]) if os.environ.get("PODRACER_TOKENS") else None
    )
    if folder is None:
        raise InvalidInput(
            "no folder of tokens: give --tokens DIR, or set PODRACER_TOKENS", reason="NO_TOKENS"
        )
    sys.stdout.write(f"{FileToken(folder / 'client')()}\n")


@tokens.command("create")
def create_token(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Whose it is, such as anna or ci.", show_default=False),
    ],
    role: Annotated[
        str, typer.Option(metavar="ROLE", help="client, viewer (only reads), pod or control.")
    ] = "client",
    project: Annotated[
        list[str], typer.Option(metavar="projects/ID", help="Only for these projects.")
    ] = [],  # noqa: B006
    audience: Annotated[
        list[str], typer.Option(metavar="SERVER", help="Only for these, as policy.")
    ] = [],  # noqa: B006
    days: Annotated[
        int, typer.Option(min=1, max=3650, metavar="N", help="How long it is valid.")
    ] = 90,
    folder: IssuingFolder = Path("runs"),
) -> None:
    """Print a new signed token. It is not stored."""
    from podracer_client.secrets import create_token as create

    sys.stdout.write(f"{create(folder, name, role, project, audience, days)}\n")


@tokens.command("list")
def list_tokens(folder: IssuingFolder = Path("runs")) -> None:
    """List the signed tokens that were issued."""
    from podracer_client.secrets import issued_tokens

    rows = []
    for claims, state in issued_tokens(folder):
        limits = (" ".join(each) or "all" for each in (claims.projects, claims.audience))
        rows.append(
            (
                claims.id,
                claims.name,
                claims.role,
                *limits,
                str(date.fromtimestamp(claims.expires)),
                state,
            )
        )
    sys.stdout.write(
        columns(("id", "name", "role", "projects", "audience", "expires", "state"), rows) + "\n"
    )


@tokens.command("revoke")
def revoke_token(
    token: Annotated[
        str,
        typer.Argument(metavar="ID|NAME", help="One token, or all of a name.", show_default=False),
    ],
    folder: IssuingFolder = Path("runs"),
) -> None:
    """Revoke signed tokens: servers refuse them from the next call on."""
    from podracer_client import secrets as issuing

    sys.stdout.writelines(f"revoked {each}\n" for each in issuing.revoke_token(folder, token))

"""`podracer context`: servers by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from podracer_client.display.output import columns
from podracer_client.servers.connection import Contexts, Place

application = typer.Typer(no_args_is_help=True, help="Name the servers that commands connect to.")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The context's name.", show_default=False)
]


@application.command()
def add(
    name: Name,
    kubernetes: Annotated[
        bool,
        typer.Option(
            "--kubernetes",
            help="Connect to a cluster through kubectl and your kubeconfig. Required.",
        ),
    ] = False,
    namespace: Annotated[
        str, typer.Option(metavar="NAMESPACE", help="Podracer's namespace in the cluster.")
    ] = "podracer",
    kube_context: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The kubectl context.", show_default="kubectl's current one"
        ),
    ] = "",
) -> None:
    """Add a context, or replace the one of that name, and use it from now on.

    Each command then reads a client's token and certificate from the cluster's Secrets, and keeps a
    `kubectl port-forward` open while it runs.
    """
    from podracer_client.servers.cluster import current_kube_context

    if not kubernetes:
        raise typer.BadParameter("required: a context names a cluster", param_hint="--kubernetes")
    place = Place(namespace, kube_context or current_kube_context())
    _keep(
        name,
        place,
        f"the namespace {namespace} of {place.kube_context or 'the cluster that kubectl finds'}",
    )


@application.command("set")
def set_servers(
    name: Name,
    address: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Of the orchestrator.", show_default=False)
    ],
    token_file: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="File with the client token. The context stores its path only.",
            show_default=False,
        ),
    ],
    leaderboard: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Of the leaderboard.", show_default="none")
    ] = "",
    tls: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with ca.pem, cert.pem, key.pem: talk TLS.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Add a context of servers at addresses, or replace the one of that name, and use it from now
    on."""
    from podracer_platform.rpc.address import parse_address
    from podracer_platform.rpc.tokens import FileToken

    for each in filter(None, (address, leaderboard)):
        parse_address(each)
    FileToken(token_file)
    files = {"token_file": str(token_file.absolute()), "tls": str(tls.absolute()) if tls else ""}
    _keep(name, Place(orchestrator=address, leaderboard=leaderboard, **files), address)


@application.command()
def use(name: Name) -> None:
    """Use a context wherever no server is named and none runs in ./runs."""
    contexts = Contexts.read()
    _ = contexts[name]
    contexts.current = name
    contexts.write()


@application.command("list")
def list_contexts() -> None:
    """List the contexts; a star marks the one in use."""
    contexts = Contexts.read()
    known = sorted(contexts.known.items())
    rows = [
        (
            "*" * (name == contexts.current),
            name,
            place.orchestrator or place.namespace,
            place.kube_context,
        )
        for name, place in known
    ]
    sys.stdout.write(columns(("", "name", "namespace or address", "kube context"), rows) + "\n")


@application.command()
def remove(name: Name) -> None:
    """Remove a context. The servers keep running."""
    contexts = Contexts.read()
    _ = contexts[name]
    del contexts.known[name]
    contexts.current = contexts.current if contexts.current != name else ""
    contexts.write()


def _keep(name: str, place: Place, where: str) -> None:
    contexts = Contexts.read()
    contexts.known[name], contexts.current = place, name
    sys.stdout.write(f"{name}: {where}, used from now on; kept in {contexts.write()}\n")

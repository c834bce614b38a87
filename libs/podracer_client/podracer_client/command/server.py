"""Servers: `podracer context` names them, `capacity` shows the pool of pods, `gc` cleans the store
of checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from podracer_client.command.options import Json, ServerOptions, with_server
from podracer_client.display import columns, write_json
from podracer_client.names import seconds, short_name
from podracer_client.servers import Contexts, Place

if TYPE_CHECKING:
    from podracer.orchestrator.v1 import job_service_pb2

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
    from podracer_client.servers import current_kube_context

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
    from podracer_platform.rpc import FileToken, parse_address

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


@with_server
def capacity(server: ServerOptions, json: Json = False) -> None:
    """Show the pool's resources and their use, what limits its growth, and each job's share."""
    from podracer_client.display import capacity_json

    with server.connect() as client:
        found = client.capacity()
    if json:
        write_json(capacity_json(found))
    else:
        sys.stdout.write(capacity_text(found))


@with_server
def gc(
    server: ServerOptions,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Delete checkpoints of all jobs that are no longer needed.

    Checkpoints stay if they are on a leaderboard, have an alias, are an agent's newest or best, are
    in use, or are younger than an hour. The server also does this by itself from time to time."""
    with server.connect() as client:
        found = client.collect_checkpoints(dry_run=dry_run)
    if json:
        prefixes = list(found.prefixes)
        write_json(
            {
                "checkpoints": found.checkpoint_count,
                "size_bytes": found.size_bytes,
                "prefixes": prefixes,
            }
        )
    else:
        sys.stdout.write(gc_text(found, dry_run=dry_run))


def capacity_text(found: job_service_pb2.GetCapacityResponse) -> str:
    """Two tables: the machine's, where there is one, and the jobs'; and one line for what limits
    growth."""
    free = f", room for {found.free_pod_count} more" if found.free_pod_count >= 0 else ""
    parts = [
        f"{found.backend} pool: {found.pod_count} {'pod' if found.pod_count == 1 else 'pods'}{free}"
    ]
    if found.HasField("total"):
        parts.append(_machine_table(found))
    if found.shares:
        parts.append(_share_table(found))
    parts.append(
        f"limit: {found.limit}" if found.limit else "every job has the pods that it asks for"
    )
    return "\n\n".join(parts) + "\n"


def _machine_table(found: job_service_pb2.GetCapacityResponse) -> str:
    resources = (found.total, found.reserved, found.used)
    rows = [
        ("cores", *(f"{each.cpu:.3g}" for each in resources)),
        ("memory", *(f"{each.memory_bytes / 2**30:.1f} GiB" for each in resources)),
        ("GPUs", *(str(each.gpu) for each in resources)),
    ]
    titles = ("", "all", "promised", "in use")
    return columns(titles, rows, right=titles[1:])


def _share_table(found: job_service_pb2.GetCapacityResponse) -> str:
    rows = [
        (
            short_name(share.job),
            f"{share.weight:g}",
            str(share.pod_count),
            str(share.wanted_count),
            f"{share.min_count} to {share.max_count}",
            f"{seconds(share.used):.1f}",
        )
        for share in found.shares
    ]
    titles = ("job", "weight", "at work", "to have", "asks for", "device s")
    return columns(titles, rows, right=titles[1:])


def gc_text(found: job_service_pb2.CollectCheckpointsResponse, *, dry_run: bool) -> str:
    """The result as one line."""
    if not found.checkpoint_count:
        return "nothing to delete\n"
    what = "checkpoint" if found.checkpoint_count == 1 else "checkpoints"
    would = "would be deleted" if dry_run else "deleted"
    return f"{found.checkpoint_count} {what} {would}, {found.size_bytes / 2**20:,.1f} MiB\n"

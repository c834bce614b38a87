"""`podracer capacity` and `gc`: the pool of pods, and the store of checkpoints."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from podracer_client.command.options import Json, ServerOptions, with_server
from podracer_client.display import columns, write_json
from podracer_client.names import seconds, short_name

if TYPE_CHECKING:
    from podracer.orchestrator.v1 import job_service_pb2


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

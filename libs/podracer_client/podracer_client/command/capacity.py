"""`podracer capacity`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from podracer_client.command.options import Json, ServerOptions, with_server

if TYPE_CHECKING:
    from podracer.orchestrator.v1 import job_service_pb2


@with_server
def capacity(server: ServerOptions, json: Json = False) -> None:
    """Show what the pool of pods has and uses, what keeps it from growing, and each job's share."""
    from podracer_client.display.messages import write_json

    with server.connect() as client:
        found = client.capacity()
    if json:
        write_json(capacity_json(found))
    else:
        sys.stdout.write(capacity_text(found))


def capacity_json(found: job_service_pb2.GetCapacityResponse) -> dict[str, Any]:
    """Plain values: seconds, bytes, cores; null where the pool cannot tell."""
    from podracer_client.display.numbers import seconds

    return {
        "backend": found.backend,
        "pods": found.pod_count,
        "free_pods": found.free_pod_count if found.free_pod_count >= 0 else None,
        "limit": found.limit or None,
        **{name: _resources(found, name) for name in ("total", "reserved", "used")},
        "shares": [
            {
                "job": share.job,
                "weight": share.weight,
                "pods": share.pod_count,
                "wanted": share.wanted_count,
                "min": share.min_count,
                "max": share.max_count,
                "device_seconds": round(seconds(share.used), 3),
            }
            for share in found.shares
        ],
    }


def capacity_text(found: job_service_pb2.GetCapacityResponse) -> str:
    """Two tables: the machine's, where there is one, and the jobs'; and one line for what limits growth."""
    free = f", room for {found.free_pod_count} more" if found.free_pod_count >= 0 else ""
    parts = [f"{found.backend} pool: {found.pod_count} {'pod' if found.pod_count == 1 else 'pods'}{free}"]
    if found.HasField("total"):
        parts.append(_machine_table(found))
    if found.shares:
        parts.append(_share_table(found))
    parts.append(f"limit: {found.limit}" if found.limit else "every job has the pods that it asks for")
    return "\n\n".join(parts) + "\n"


def _machine_table(found: job_service_pb2.GetCapacityResponse) -> str:
    from podracer_client.display.listing import columns

    resources = (found.total, found.reserved, found.used)
    rows = [
        ("cores", *(f"{each.cpu:.3g}" for each in resources)),
        ("memory", *(f"{each.memory_bytes / 2**30:.1f} GiB" for each in resources)),
        ("GPUs", *(str(each.gpu) for each in resources)),
    ]
    titles = ("", "all", "promised", "in use")
    return columns(titles, rows, right=titles[1:])


def _share_table(found: job_service_pb2.GetCapacityResponse) -> str:
    from podracer_client.display.listing import columns
    from podracer_client.display.numbers import seconds
    from podracer_client.names import short_name

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


def _resources(found: job_service_pb2.GetCapacityResponse, name: str) -> dict[str, Any] | None:
    if not found.HasField(name):  # type: ignore[arg-type]
        return None
    resources = getattr(found, name)
    return {"cores": resources.cpu, "memory_bytes": resources.memory_bytes, "gpus": resources.gpu}

"""Whether a device has room for what is about to be allocated."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from podracer_core.errors import InvalidInput

_MEMORY_INFO = Path("/proc/meminfo")
_GROUP_LIMIT, _GROUP_USE = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")


def free_bytes(device: torch.device) -> int | None:
    """Bytes that may still be allocated on `device`, within the container's limit; None if
    unknown."""
    if device.type == "cuda":
        # by torch, and free
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + int(held)
    known = [number for number in (_available_bytes(), _group_bytes()) if number is not None]
    return min(known, default=None)


def total_bytes() -> int:
    """The machine's memory, in a container its limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _GROUP_LIMIT.read_text().strip()
    except OSError:  # no limits here
        return machine
    return min(machine, int(limit)) if limit.isdigit() else machine


def require_memory(
    size_bytes: int,
    device: torch.device,
    what: str,
    *,
    field: str,
    unit_bytes: float | None = None,
    reason: str = "REPLAY_TOO_LARGE",
) -> None:
    """Raises InvalidInput (`reason`), naming the hyperparameter `field`, unless `size_bytes` are
    free.

    unit_bytes   what one more in `field` takes: then the message says how many would fit
    """
    free = free_bytes(device)
    if free is not None and size_bytes > free:
        advice = f"a smaller {field} fits"
        if unit_bytes:
            advice += f", such as {_rounded_down(0.7 * free / unit_bytes):_}"
        message = (
            f"{what} takes {size_bytes / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free on "
            f"{device.type}; {advice}"
        )
        raise InvalidInput(message, field=field, reason=reason)


def _rounded_down(number: float) -> int:
    """The number rounded down to its first digit."""
    digits = len(str(int(number))) - 1
    unit: int = 10**digits
    return int(number) // unit * unit


def _available_bytes() -> int | None:
    """Bytes that Linux could allocate without swapping, the page cache included."""
    try:
        lines = _MEMORY_INFO.read_text().splitlines()
    except OSError:  # not Linux
        return None
    return next(
        (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None
    )


def _group_bytes() -> int | None:
    """Bytes left below the limit of the container."""
    try:
        limit, use = _GROUP_LIMIT.read_text().strip(), _GROUP_USE.read_text().strip()
    except OSError:  # no limits here
        return None
    return int(limit) - int(use) if limit.isdigit() and use.isdigit() else None

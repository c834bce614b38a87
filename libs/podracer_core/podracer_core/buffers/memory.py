"""Whether a device has room for what is about to be allocated."""

from __future__ import annotations

import os

import torch

from podracer_core.errors import FieldViolation, InvalidInput


def free_bytes(device: torch.device) -> int | None:
    """Memory that may still be allocated on `device`; None where nobody can tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not a POSIX system
        return None


def require_memory(size_bytes: int, device: torch.device, what: str, *, field: str) -> None:
    """Raises InvalidInput (REPLAY_TOO_LARGE), naming the hyperparameter `field`, unless `size_bytes` are free."""
    free = free_bytes(device)
    if free is not None and size_bytes > free:
        message = (
            f"{what} takes {size_bytes / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free on {device.type}; "
            f"a smaller {field} fits"
        )
        raise InvalidInput(message, violations=[FieldViolation(field, message)], reason="REPLAY_TOO_LARGE")

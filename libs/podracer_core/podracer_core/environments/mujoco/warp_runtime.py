"""Warp beside torch: started quietly, and working on torch's streams."""

from __future__ import annotations

import functools
import os
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

import torch
import warp as wp

from podracer_core.errors import PreconditionFailed

__all__ = ["on_torch_stream", "start_warp", "warp_stream"]


def start_warp(device: torch.device) -> None:
    """Initialize Warp without its banner; kernels go where they can be written. Calling it again is harmless.

    Warp compiles its kernels at their first use (a minute or two for a GPU) and keeps them in `WARP_CACHE_PATH`, or in
    the user's cache folder; where neither can be written, in a folder of this process that nobody finds again.
    Raises PreconditionFailed where `device` is CUDA and its driver is too old (before 12.4) for loops inside graphs.
    """
    wp.config.log_level = max(wp.config.log_level, wp.LOG_WARNING)
    if wp.config.kernel_cache_dir is None and "WARP_CACHE_PATH" not in os.environ and not _cache_is_writable():
        wp.config.kernel_cache_dir = tempfile.mkdtemp(prefix="podracer-warp-")
    wp.init()
    if device.type == "cuda" and not wp.is_conditional_graph_supported():
        raise PreconditionFailed(
            "MuJoCo on a GPU needs a driver for CUDA 12.4 or newer; install one, or use device 'cpu'",
            reason="CUDA_DRIVER_TOO_OLD",
        )


def _cache_is_writable() -> bool:
    """Whether Warp's default folder, or the nearest of its parents that exists, can be written."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "warp" / wp.config.version
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return os.access(existing, os.W_OK | os.X_OK)


@functools.cache
def warp_stream(stream: torch.cuda.Stream) -> wp.Stream:
    """`stream` as Warp knows it; always the same object, because Warp looks for an open capture by the object."""
    return wp.stream_from_torch(stream)


def on_torch_stream(device: torch.device) -> AbstractContextManager[object]:
    """Warp's work in this context comes in order with torch's: on torch's current stream of `device`."""
    if device.type == "cuda":
        context: AbstractContextManager[object] = wp.ScopedStream(
            warp_stream(torch.cuda.current_stream(device)), sync_enter=False
        )
    else:
        context = wp.ScopedDevice("cpu")
    return context

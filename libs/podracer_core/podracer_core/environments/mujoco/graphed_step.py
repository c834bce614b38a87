"""An environment's whole step, Warp's work and torch's, as one CUDA graph."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
import warp as wp

from podracer_core.environments.mujoco.warp_runtime import warp_stream

__all__ = ["GraphedStep"]


class GraphedStep:
    """Calls `advance`: the first time as it is, which compiles all kernels, from then on as one graph.

    `advance` must read and write the same tensors every time, must not wait for the device and must not copy from the
    host. MuJoCo Warp ends its solver's loop on the device, with a conditional graph node; CUDA takes none inside a
    child graph, so physics cannot be captured first and put into a graph of torch's afterwards. Therefore Warp
    captures, and torch works along on the captured stream, with a memory pool that lives as long as the graph.
    """

    def __init__(self, advance: Callable[[], None], device: torch.device) -> None:
        self._advance = advance
        self._device = device
        self._has_run = False
        self._graph: wp.Graph | None = None
        self._pool: torch.cuda.MemPool | None = None
        self._joined: list[wp.ScopedCapture] = []  # keeps the kernels of others' graphs loaded

    def __call__(self) -> None:
        """Advance once. While someone else captures torch's current stream, their graph takes the step in."""
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            if torch.cuda.is_current_stream_capturing():
                with wp.ScopedCapture(stream=warp_stream(current), external=True) as joined:
                    self._advance()
                self._joined.append(joined)
            elif not self._has_run:
                self._advance()
                self._has_run = True
            else:
                if self._graph is None:
                    self._graph = self._capture(current)
                wp.capture_launch(self._graph, stream=warp_stream(current))

    def _capture(self, current: torch.cuda.Stream) -> wp.Graph:
        """The graph of one step; capturing runs nothing. The default stream cannot be captured, hence one aside.

        Garbage goes first, as in `torch.cuda.graph`: memory of an earlier environment, freed meanwhile, would end it.
        """
        gc.collect()
        self._pool = torch.cuda.MemPool()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(current)
        with (
            torch.cuda.stream(aside),
            torch.cuda.use_mem_pool(self._pool),
            wp.ScopedCapture(stream=warp_stream(aside)) as capture,
        ):
            self._advance()
        return capture.graph

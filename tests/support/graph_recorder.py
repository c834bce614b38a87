"""A CUDA graph in miniature, for a CPU: records each operation with the tensors that it touched,
and does them again.

What a graph would not notice goes unnoticed here as well: a number that the host has changed, a
tensor that lies elsewhere now. Reading a tensor's value raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

captures: list[int] = []
"""How many operations each graph has."""


def use_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the CPU has graphs."""
    captures.clear()
    monkeypatch.setattr("podracer_core.device.can_capture", lambda device: True)
    monkeypatch.setattr("podracer_core.device.capture", record)


def record(work: Callable[[], Any], device: torch.device) -> tuple[Any, Callable[[], None]]:
    """See `cuda_graphs.capture`. Here recording does the work, so the first replay does nothing."""
    with _Recording() as recording:
        result = work()
    captures.append(len(recording.operations))
    is_first = True

    def replay() -> None:
        nonlocal is_first
        if not is_first:
            recording.replay()
        is_first = False

    return result, replay


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if operation is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("the host waits for the device")
        result = operation(*args, **(kwargs or {}))
        self.operations.append((operation, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        """Every operation again, each result where it was the first time."""
        for operation, args, kwargs, result in self.operations:
            again = operation(*args, **kwargs)
            for own, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(own, Tensor) and own.numel() and own.data_ptr() != new.data_ptr():
                    own.detach().copy_(new)

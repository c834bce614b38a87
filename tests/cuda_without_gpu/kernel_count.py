"""How many kernels a GPU would run: by torch's dispatch, and by what its compiler makes of a
function for an H100."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch._dynamo.device_interface import CudaInterface
from torch._inductor.graph import GraphLowering
from torch.utils import _triton
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode_temporarily

H100 = SimpleNamespace(
    type="cuda", index=0, name="H100", cc=90, major=9, minor=0, multi_processor_count=132,
    warp_size=32, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
    max_threads_per_block=1024, total_memory=80 << 30, shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448, L2_cache_size=50 << 20, gcnArchName="",
)  # fmt: skip
FREE = {
    "aten::detach",
    "aten::alias",
    "aten::new_empty",
    "aten::_unsafe_view",
    "prim::device",
    "aten::scalar_tensor",
}
OWN = {"podracer::ppo_move": 2}
"""Operators that are more than one kernel."""


_LAUNCH = re.compile(r"\.run\(|extern_kernels\.|= torch\.ops\.podracer\.|aten\.[a-z_]+\.[a-z_]+\(")
COMPILE = torch.compile


class Kernels(TorchDispatchMode):
    """Counts what is not a view, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """In other modes torch's compiler does nothing."""
        return True

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def add(self, name: str, count: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + count

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = operation._schema.name
        is_view = any(
            a.alias_info is not None and not a.alias_info.is_write
            for a in operation._schema.returns
        )
        if not is_view and name not in FREE and not name.startswith("aten::empty"):
            self.add(name, OWN.get(name, 1))
        return operation(*args, **(kwargs or {}))


class _CompiledError(BaseException):
    """How far a compilation goes here."""


@contextlib.contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    """Counts; a compiled function counts as the kernels that torch's compiler makes of it."""
    kernels = Kernels()
    monkeypatch.setattr("podracer_core.device.can_capture", lambda _: False)
    monkeypatch.setattr(CudaInterface, "is_available", staticmethod(lambda: True))
    for owner in (CudaInterface, CudaInterface.Worker):
        monkeypatch.setattr(owner, "get_device_properties", staticmethod(lambda *_: H100))
        monkeypatch.setattr(owner, "current_device", staticmethod(lambda: 0))
    monkeypatch.setattr(CudaInterface, "get_compute_capability", staticmethod(lambda *_: "90"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: H100)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda *_: torch.zeros(16, dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *_: None)
    monkeypatch.setattr(_triton, "triton_hash_with_backend", lambda: "")
    sources: list[str] = []

    def stop(graph: GraphLowering) -> None:
        source = graph.codegen()[0]
        sources.append(getattr(source, "value", source))
        raise _CompiledError

    monkeypatch.setattr(GraphLowering, "compile_to_module", stop)
    monkeypatch.setattr(GraphLowering, "_compile_to_module", stop)

    def compile_here(work: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        counts: list[int] = []
        options["options"] = options["options"] | {
            "fx_graph_cache": False,
            "joint_graph_constant_folding": False,
        }

        @functools.wraps(work)
        def call(*arguments: Any, **named: Any) -> Any:
            with _pop_mode_temporarily():
                if not counts:
                    sources.clear()  # none for what does nothing
                    with contextlib.suppress(_CompiledError):
                        COMPILE(work, **options)(*arguments, **named)
                    counts.append(sum(len(_LAUNCH.findall(source)) for source in sources))
                result = work(*arguments, **named)
            kernels.add(f"compiled {work.__qualname__}", counts[0])
            return result

        return call

    monkeypatch.setattr(torch, "compile", compile_here)
    with kernels:
        yield kernels

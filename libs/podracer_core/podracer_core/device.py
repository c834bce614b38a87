"""How torch uses the processor and CUDA devices: its settings, work on tensors as few compiled
kernels or as CUDA graphs, by which the host starts hundreds of small kernels with one call, and
whether there is room for what is about to be allocated."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Hashable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from podracer_core.errors import InvalidInput
from podracer_core.native import missing

logger = logging.getLogger(__name__)


def set_up_torch(threads: int | None, cpu_products: Literal["float32", "bf16"] = "float32") -> None:
    """Threads of the CPU (None: torch's own choice), and TF32 for products and convolutions of CUDA
    devices alone.

    With bf16 oneDNN may round the factors of a CPU's float32 products to bfloat16. It does so where
    the processor has AMX; elsewhere nothing changes. `torch.set_float32_matmul_precision` would
    decide for a GPU and a CPU at once."""
    if threads is not None:
        torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    if cpu_products == "bf16":
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]


P = ParamSpec("P")
Result = TypeVar("Result")

_OPTIONS: dict[str, str | int | bool | Callable[..., object]] = {
    "deterministic": True,  # its own choice among forms of a kernel would depend on a measurement
    "compile_threads": 1,  # in this process, whose memory and threads are counted
}
_MOST_FORMS = 64
"""Forms of arguments for which a function is compiled."""


@functools.cache
def can_compile(device: torch.device) -> bool:
    """Whether kernels for this device are compiled here. Warns once where only a compiler is
    missing."""
    if device.type != "cuda":
        return False
    if lacks := missing():
        logger.warning("training on the GPU is slower than it could be: there is no %s", lacks)
    return not lacks


def compiled(work: Callable[P, Result], device: torch.device) -> Callable[P, Result]:
    """`work` as few kernels, compiled at its first call for each form of its arguments; on other
    devices as it is.

    What is elementwise becomes one kernel, as far as the shapes agree. Where `work` cannot be
    compiled (its Python depends on the numbers in a tensor) it is called as it is from then on, and
    the log says so once."""
    if not can_compile(device):
        return work
    # Environments of all sizes share one function, and so its limit.
    torch._dynamo.config.recompile_limit = max(_MOST_FORMS, torch._dynamo.config.recompile_limit)
    inner: Callable[P, Result] | None = torch.compile(
        work, dynamic=False, fullgraph=True, options=_OPTIONS
    )

    @functools.wraps(work)
    def call(*arguments: P.args, **named: P.kwargs) -> Result:
        nonlocal inner
        if inner is not None:
            try:
                return inner(*arguments, **named)
            except torch._dynamo.exc.TorchDynamoException as error:
                name = getattr(work, "__qualname__", work)
                logger.warning(
                    "%s cannot be compiled and is slower than it could be: %s", name, error
                )
                inner = None
        return work(*arguments, **named)

    return call


Record = TypeVar("Record")

WARM_UP = 2
"""Calls before a capture: kernels are compiled and libraries take their memory when they are first
used."""


class Graphed(Generic[Result]):
    """Calls `work`, on a CUDA device as a graph: captured once for each form of its arguments, then
    replayed.

    An argument is a dataclass of tensors, or a plain value, on which what `work` does may depend. A
    graph has tensors of its own, into which those that are given are copied; its result is
    overwritten by the next call of the same form. `work` must read and write whatever else it uses
    where it has always been, must not wait for the device, and must do nothing else on the host
    that matters.

    Where a capture fails, `work` is called as it is from then on, and the log says so once.

    is_active   whether calls are graphs, once they have warmed up
    """

    def __init__(
        self, work: Callable[..., Result], device: torch.device, *, wanted: bool = True
    ) -> None:
        """`wanted` False, or another device than a CUDA device: every call is a plain one."""
        self._work, self._device = work, device
        self.is_active = wanted and can_capture(device)
        self._calls: dict[Hashable, _Call[Result]] = {}

    def __call__(self, *arguments: Any) -> Result:
        if not self.is_active:
            return self._work(*arguments)
        form = tuple(_form(argument) for argument in arguments)
        call = self._calls.get(form)
        if call is None:
            call = self._calls[form] = _Call(self._work, self._device, arguments)
        try:
            return call(arguments)
        except CaptureFailed as error:
            logger.warning(
                "a CUDA graph could not be captured, the device will wait for its host: %s",
                error.__cause__,
            )
            self.is_active = False
            self.forget()
            return self._work(*arguments)

    def forget(self) -> None:
        """Something that `work` uses lies elsewhere now, or a plain value has changed: capture
        anew."""
        self._calls.clear()


class CaptureFailed(Exception):
    """A graph could not be captured; its cause says why."""


class _Call(Generic[Result]):
    """One form of a call: plain at first, then a graph."""

    def __init__(
        self, work: Callable[..., Result], device: torch.device, arguments: tuple[Any, ...]
    ) -> None:
        self._work, self._device = work, device
        self._arguments = tuple(map_tensors(argument, torch.empty_like) for argument in arguments)
        self._tensors = [tensor for argument in self._arguments for tensor in tensors_of(argument)]
        self._plain_calls = 0
        self._captured: tuple[Result, Callable[[], None]] | None = None

    def __call__(self, arguments: tuple[Any, ...]) -> Result:
        given = (tensor for argument in arguments for tensor in tensors_of(argument))
        for own, tensor in zip(self._tensors, given, strict=True):
            own.copy_(tensor, non_blocking=True)
        if self._plain_calls < WARM_UP:
            self._plain_calls += 1
            return self._work(*self._arguments)
        if self._captured is None:
            self._captured = capture(lambda: self._work(*self._arguments), self._device)
        result, replay = self._captured
        replay()
        return result


def can_capture(device: torch.device) -> bool:
    """Whether this device has graphs."""
    return device.type == "cuda"


def capture(work: Callable[[], Result], device: torch.device) -> tuple[Result, Callable[[], None]]:
    """Record what `work` does on the device, without doing it: its result, which each call of the
    second fills.

    Other threads may go on using the device meanwhile. Raises CaptureFailed.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.device(device):
            aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):
                result = work()
    except RuntimeError as error:
        raise CaptureFailed from error
    return result, graph.replay


def tensors_of(record: Any) -> Iterator[Tensor]:
    """The tensors of a dataclass at any depth, always in the same order."""
    if isinstance(record, Tensor):
        yield record
    elif is_dataclass(record):
        for field in fields(record):
            yield from tensors_of(getattr(record, field.name))


def map_tensors(record: Record, change: Callable[[Tensor], Tensor]) -> Record:
    """A dataclass with `change` applied to each tensor in it, at any depth; all else stays as it
    is."""
    if isinstance(record, Tensor):
        return cast("Record", change(record))
    if is_dataclass(record) and not isinstance(record, type):
        return replace(
            record,
            **{
                field.name: map_tensors(getattr(record, field.name), change)
                for field in fields(record)
            },
        )
    return record


def _form(argument: Any) -> Hashable:
    """The form of an argument; two calls share a graph if all forms are equal."""
    if isinstance(argument, Tensor):
        return argument.shape, argument.dtype
    if is_dataclass(argument):
        return tuple(_form(getattr(argument, field.name)) for field in fields(argument))
    return argument  # type: ignore[no-any-return]


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

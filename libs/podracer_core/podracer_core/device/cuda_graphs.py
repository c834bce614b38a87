"""Work on tensors as CUDA graphs: the host starts hundreds of small kernels by one call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
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

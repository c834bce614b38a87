"""Work on tensors, compiled to few kernels."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from podracer_core.toolchain import missing

logger = logging.getLogger(__name__)

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

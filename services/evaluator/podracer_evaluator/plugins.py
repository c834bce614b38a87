"""The package that back-tests policies, if it is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

from podracer.evaluator.v1 import evaluator_service_pb2
from podracer_core.checkpoint import Checkpoint
from podracer_core.errors import PreconditionFailed
from podracer_platform.attachments.cache import FileCache

GROUP = "podracer.backtests"
"""A package gives the function of the entry point `backtest`."""

Backtest = Callable[
    [
        Sequence[Checkpoint],
        Sequence[evaluator_service_pb2.CheckpointDescription],
        evaluator_service_pb2.BacktestRequest,
        FileCache,
        Callable[[], None],
    ],
    Sequence[evaluator_service_pb2.BacktestResponse],
]
"""Of checkpoints with their descriptions; the last argument raises once the work is no longer
wanted."""


def backtest_function() -> Backtest:
    """The function that answers `Backtest`. Raises PreconditionFailed (EXTRA_NOT_INSTALLED) if no
    package gives one."""
    found = sorted(entry_points(group=GROUP, name="backtest"), key=lambda entry: entry.value)
    if not found:
        message = "back-tests need a package that is not installed here: "
        message += "pip install podracer-trading"
        raise PreconditionFailed(message, reason="EXTRA_NOT_INSTALLED")
    function: Backtest = found[0].load()
    return function

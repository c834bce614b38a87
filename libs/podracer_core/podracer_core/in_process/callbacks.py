"""Hooks for the caller during training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from podracer_core.errors import InvalidInput
from podracer_core.in_process.order import Order
from podracer_core.in_process.reporting import Look
from podracer_core.in_process.result import Result


class Callback:
    """Hooks during training; override those that you need. The training loop calls them and waits.
    An exception ends training and is raised to the caller."""

    def on_start(self, run: Order) -> None:
        """Everything is set up. `run` describes the training: its members, hyperparameters and
        limits."""

    def on_look(self, look: Look) -> bool | None:
        """The members were evaluated. Returning False ends training."""
        return None

    def on_end(self, result: Result) -> None:
        """Training has ended with a result."""


Callbacks = Callback | Callable[[Look], object] | Sequence[Callback | Callable[[Look], object]]
"""One or several; a plain function is an `on_look`."""


class _Function(Callback):
    def __init__(self, call: Callable[[Look], object]) -> None:
        self._call = call

    def on_look(self, look: Look) -> bool | None:
        return False if self._call(look) is False else None


def as_callbacks(given: Callbacks | None) -> list[Callback]:
    """The callbacks of `train`. Raises InvalidInput for anything else."""
    every = given if isinstance(given, list | tuple) else () if given is None else (given,)
    found: list[Callback] = []
    for each in every:
        if isinstance(each, type) or not (isinstance(each, Callback) or callable(each)):
            problem = (
                "expected a podracer.Callback such as Patience(10), or a function of a "
                f"look; got {each!r:.100}"
            )
            raise InvalidInput.of("callbacks", problem)
        found.append(each if isinstance(each, Callback) else _Function(each))
    return found

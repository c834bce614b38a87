"""Hooks for the caller during training."""

from __future__ import annotations

from podracer_core.in_process.order import Order
from podracer_core.in_process.reporting import Look
from podracer_core.in_process.result import Result


class Callback:
    """Hooks during training; override those that you need. The training loop calls them and waits. An exception ends
    training and is raised to the caller."""

    def on_start(self, run: Order) -> None:
        """Everything is set up. `run` describes the training: its members, hyperparameters and limits."""

    def on_look(self, look: Look) -> bool | None:
        """The members were evaluated. Returning False ends training."""
        return None

    def on_end(self, result: Result) -> None:
        """Training has ended with a result."""

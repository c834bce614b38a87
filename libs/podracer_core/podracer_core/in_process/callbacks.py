"""What a caller may do while training goes on."""

from __future__ import annotations

from podracer_core.in_process.order import Order
from podracer_core.in_process.reporting import Look
from podracer_core.in_process.result import Result


class Callback:
    """What a caller wants to do on the way: override what is needed. The calls come from the training loop, which waits
    for them; what they raise ends training and goes to the caller."""

    def on_start(self, run: Order) -> None:
        """Everything is set up: `run` is what is trained, with its members, hyperparameters and limits."""

    def on_look(self, look: Look) -> bool | None:
        """The members were looked at. False ends training."""
        return None

    def on_end(self, result: Result) -> None:
        """Training has ended with a result."""

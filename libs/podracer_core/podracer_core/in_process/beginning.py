"""The start of a training: a former result or checkpoint, from which every member goes on."""

from __future__ import annotations

import os
from pathlib import Path

from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.checkpoint import Checkpoint
from podracer_core.errors import InvalidInput
from podracer_core.in_process.result import Result, load
from podracer_core.training.member_states import inherit, resume

Start = Result | Path | str | None
"""A result, or a path that `podracer.load` accepts."""


def find_start(start: Start, algorithm: str | None) -> Checkpoint | None:
    """The checkpoint of `start`. Raises InvalidInput if there is none, or if it is of another algorithm; DataCorrupted
    if its bytes have changed."""
    if start is None:
        return None
    if not isinstance(start, Result | str | os.PathLike):
        raise _refused(f"expected a Result, or the path of a saved one or of a checkpoint; got {start!r:.100}")
    checkpoint = (start if isinstance(start, Result) else load(start)).checkpoint
    trained = checkpoint.metadata["algorithm"]
    if algorithm not in (None, trained):
        raise _refused(
            f"it was trained by {trained}, not by {algorithm}: leave `algorithm` out to go on with {trained}"
        )
    return checkpoint


def begin_from(checkpoint: Checkpoint, algorithm: Algorithm) -> None:
    """Give every member the weights, optimizer state and statistics of `checkpoint`, where it has them.

    The first member goes on exactly; the others have their own streams of random numbers.
    """
    resume(algorithm, 0, checkpoint.groups)
    for member in range(1, algorithm.members):
        inherit(algorithm, member, "copy", [(checkpoint.groups, 1.0)], keep_optimizer=True)


def _refused(problem: str) -> InvalidInput:
    return InvalidInput.of("start", problem, "NO_START")

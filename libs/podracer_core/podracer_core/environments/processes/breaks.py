"""What breaks in the environments of a process with user code, and which exceptions are not borne;
no torch."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

IN_A_ROW = 3
_FEWEST_EPISODES = 8  # of which more than half may not end at one line
_MOST = 1_000  # that wait to be told
LONGEST_TEXT = 300  # characters
LONGEST_MESSAGE = 2_000
LONGEST_TRACEBACK = 20_000  # from its end
_OUR_FOLDER = str(Path(__file__).parent.parent) + os.sep
# a decorator of ours is torch's
_TORCH_FOLDER = sysconfig.get_path("purelib") + os.sep + "torch" + os.sep


def describe_error(error: BaseException) -> tuple[str, str]:
    """The message and the traceback for the user: without Podracer's frames above the first line of
    the user's code."""
    described = traceback.TracebackException.from_exception(error)
    own = 0
    while own < len(described.stack) and described.stack[own].filename.startswith(
        (_OUR_FOLDER, _TORCH_FOLDER)
    ):
        own += 1
    if own < len(described.stack):
        del described.stack[:own]
    message = "; ".join([f"{type(error).__name__}: {described}", *(described.__notes__ or ())])
    return message[:LONGEST_MESSAGE], "".join(described.format())[-LONGEST_TRACEBACK:]


def name_number(reward: float, observation: NDArray[Any]) -> str:
    """The first number of a row that is not finite; empty if all are."""
    if not np.isfinite(reward):
        return f"the reward was {reward:g}"
    strange = np.argwhere(~np.isfinite(observation))
    if not len(strange):
        return ""
    index = ", ".join(map(str, strange[0]))
    return f"observation[{index}] was {observation[tuple(strange[0])]:g}"


class Breaks:
    """Notes what has broken in some rows of a batch, for `VecEnvironment.take_breaks`.

    An exception is tolerated once the environments have worked, as a death is: the row's world is
    made anew. It is raised the third time without a step between, the third time at the same step
    of the same seed, and at one source line in more than half of all episodes.

    first_row  of these rows in the batch
    worked     whether a step has succeeded since the environments were opened
    begun      episodes so far
    """

    first_row = begun = 0
    worked = False

    def __init__(self) -> None:
        self._noted: list[dict[str, Any]] = []
        # row → when it failed last, and how often in a row
        self._last: dict[int, tuple[int, int]] = {}
        # seed and step → when it failed there
        self._places: dict[tuple[int, int], set[int]] = defaultdict(set)
        self._lines: Counter[str] = Counter()

    def note(self, row: int, step: int, what: str, *, numbers: bool = True, text: str = "") -> None:
        """Something broke in a step of the row's episode, or in its reset (step 0). `text`: the
        user's traceback."""
        if len(self._noted) < _MOST:
            place = f"step {step}" if step else "reset"
            told = f"{place}: {what}"[:LONGEST_TEXT]
            self._noted.append(
                {"row": self.first_row + row, "numbers": numbers, "text": told, "traceback": text}
            )

    def fail(self, row: int, step: int, seed: int, now: int, error: BaseException) -> None:
        """Note an exception in step `now` of the batch; raises it if it is not tolerated."""
        what, text = describe_error(error)
        before, times = self._last.get(row, (-IN_A_ROW, 0))
        times = times + 1 if before >= now - (step > 0) else 1
        self._last[row] = now, times
        if times >= IN_A_ROW:
            _raise(error, f"it came {times} times in a row, without a step between")
        moments = self._places[seed, step]
        moments.add(now)  # at the same time, it is one failure of many rows
        if len(moments) >= IN_A_ROW:
            _raise(
                error,
                f"it came {len(moments)} times at step {step} of the episode with seed {seed}",
            )
        line = str(traceback.extract_tb(error.__traceback__, limit=-1))
        self._lines[line] += 1
        if self.begun >= _FEWEST_EPISODES and 2 * self._lines[line] > self.begun:
            _raise(error, f"it ended {self._lines[line]} of {self.begun} episodes")
        self.note(row, step, what, numbers=False, text=text)

    def take(self) -> list[dict[str, Any]]:
        """What has broken since the last call: the fields of `Break`."""
        if not self._noted:  # as in nearly all steps
            return self._noted
        noted, self._noted = self._noted, []
        return noted


def _raise(error: BaseException, why: str) -> None:
    error.add_note(f"Podracer does not go on after this exception: {why}.")
    raise error

"""Some rows of a batch, in a process with user code: what `preprocess_child` asks of them, whatever
is behind them; and what breaks in them, with the exceptions that are not borne.

Neither torch nor user code is imported here.
"""

from __future__ import annotations

import copy
import os
import sysconfig
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from podracer_core.catalogue import to_json
from podracer_core.environments.processes.exchange import (
    SharedArrays,
    create_memory,
    map_memory,
    size_memory,
)
from podracer_core.environments.spaces import (
    action_array_space,
    action_mask_size,
    from_gymnasium,
    observation_array_space,
    sample_allowed,
)
from podracer_core.errors import InvalidInput

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


_TRACED_STEPS, _TRACED_EPISODES, _TRACED_NUMBERS, _LONGEST_TRACE_S = 100, 2, 1024, 5.0


class Rows(ABC):
    """`count` rows, whose arrays lie in the file `memory` from `map` on."""

    count: int
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    doing: str = "construction"  # what the user's code is doing, for the message when it fails
    # called before each row's turn; raises TimeUp to end a step
    check: Callable[[], None] | None = None
    _arrays: SharedArrays | None = None

    def __init__(self) -> None:
        self.breaks = Breaks()

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Spaces, time limit and whatever else the other side wants to know of it, as JSON
        values."""

    @abstractmethod
    def inspect(self) -> dict[str, Any]:
        """Reset and take random steps, looking at everything that comes back: `Checker.report`, or
        what is known of it. InvalidInput if something cannot be used."""

    @abstractmethod
    def has_action_mask(self) -> bool:
        """Whether every reset and step gives masks."""

    @abstractmethod
    def start(self) -> None:
        """Start the episode whose number stands in `episode`, in every row."""

    @abstractmethod
    def set_ages(self, ages: bytes) -> bool:
        """See `VecEnvironment.set_ages`; int64 [count]."""

    @abstractmethod
    def play_once(self) -> bool:
        """See `VecEnvironment.play_once`."""

    @abstractmethod
    def step(self) -> None:
        """Act once in every row; where an episode ends, start the next one."""

    def trace(self) -> NDArray[np.float64]:
        """What row 0 shows of two episodes of random actions, in at most 100 steps [steps, n],
        while the other rows act too; of a large observation the sums of its parts."""
        memory, masked = create_memory(), self.mask_size()
        size_memory(
            memory,
            self.count,
            observation_array_space(self.observation_space),
            self.action_space,
            masked,
        )
        self.map(memory, self.count, 0, masked)
        os.close(memory)
        rows = self.arrays
        rows.seed[:] = np.arange(self.count)
        # Copies: a class may have one space for all worlds, and a space draws from its own state.
        spaces = [copy.deepcopy(self.action_space) for _ in range(self.count)]
        for row, space in enumerate(spaces):
            space.seed(row)
        shown: list[NDArray[np.float64]] = []
        self.start()
        end = time.monotonic() + _LONGEST_TRACE_S
        while (
            len(shown) < _TRACED_STEPS
            and rows.episode[0] < _TRACED_EPISODES
            and time.monotonic() < end
        ):
            for row, space in enumerate(spaces):
                action = sample_allowed(space, rows.action_mask[row] if masked else None)
                rows.action[row] = np.asarray(action) - getattr(space, "start", 0)
            self.step()
            flat = rows.final_observation[0].ravel().astype(np.float64)
            parts = np.linspace(
                0, flat.size, min(flat.size, _TRACED_NUMBERS), endpoint=False, dtype=np.int64
            )
            shown.append(np.array([*np.add.reduceat(flat, parts), rows.reward[0], rows.episode[0]]))
        return np.stack(shown)

    def frame(self) -> NDArray[np.uint8]:
        """The picture [height, width, 3] of row 0 as the last step left it, before any new
        episode."""
        raise InvalidInput(
            "a batched environment has no pictures; only a gymnasium.Env with rgb_array has"
        )

    def state(self) -> bytes:
        """The complete state, as bytes. Raises InvalidInput if the environment cannot provide
        it."""
        raise InvalidInput("a gymnasium.Env has no state that can be stored")

    def load_state(self, state: bytes) -> None:
        """Go back to `state`."""
        raise InvalidInput("a gymnasium.Env has no state that can be stored")

    def close(self) -> None:  # noqa: B027 - most rows have nothing to give back
        """Let the user's code clean up."""

    def mask_size(self) -> int:
        """Flags in a mask, 0 where there are none."""
        size = action_mask_size(self.action_space)
        return size if size and self.has_action_mask() else 0

    def map(self, memory: int, num_envs: int, first: int, mask_size: int) -> None:
        """Attach the shared arrays of all `num_envs` rows of the batch; `first` is the first of
        these."""
        space = observation_array_space(self.observation_space)
        arrays = map_memory(memory, num_envs, space, self.action_space, mask_size)
        self.breaks.first_row, self._arrays = first, arrays[first : first + self.count]

    @property
    def arrays(self) -> SharedArrays:
        """The rows' own part of the shared arrays."""
        if self._arrays is None:
            raise InvalidInput("map must come before start and step")
        return self._arrays


def describe_spaces(
    observation: gymnasium.Space[Any], action: gymnasium.Space[Any]
) -> Mapping[str, Any]:
    """Both spaces as JSON values. Raises InvalidInput if a batch cannot show or act in them."""
    observation_array_space(observation)
    return {
        "observation_space": to_json(from_gymnasium(observation)),
        "action_space": to_json(from_gymnasium(action_array_space(action))),
    }


_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def episode_seed(seed: int, episode: int) -> int:
    """The seed to pass to `reset`: `seed` itself for episode 0 if Gymnasium can take it, else 31
    bits mixed from both.

    The mixture is SplitMix64's (Steele, Lea and Flood, OOPSLA 2014): an episode may last only a few
    steps, and `numpy.random.SeedSequence` takes as long as two steps of a cheap environment."""
    if episode == 0 and 0 <= seed < 2**31:
        return seed
    return _mix(_mix(seed + _GOLDEN) ^ _mix((episode + 1) * _GOLDEN)) >> 33


def _mix(word: int) -> int:
    word &= _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)

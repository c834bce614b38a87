"""Environments as users write them, good and bad; the tests start them in child processes by entry
point."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Counter(gymnasium.Env[Any, Any]):
    """Shows (random number of the episode, step); ends after a random number of steps; reward is
    the action's sum."""

    def __init__(
        self, action_space: spaces.Space[Any] | None = None, trouble: str = "", trouble_at: int = 5
    ) -> None:
        self.observation_space = spaces.Box(-1e6, 1e6, (2,), np.float64)
        self.action_space = action_space or spaces.Discrete(3, start=1)
        self._trouble, self._trouble_at = trouble, trouble_at
        if trouble == "fractions":
            self.observation_space = spaces.Box(0, 255, (2,), np.uint8)
        if trouble == "construction":
            raise ValueError("no map for this maze")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._number = self.np_random.random()
        self._length = int(self.np_random.integers(3, 9))
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self._steps += 1
        if self._steps == self._trouble_at:
            self._get_into_trouble()
        reward = float(np.sum(action))
        return self._observation(), reward, self._steps >= self._length, False, {}

    def _observation(self) -> Any:
        if self._trouble == "nan" and self._steps == self._trouble_at:
            return np.array([np.nan, 0.0])
        if self._trouble == "shape" and self._steps == self._trouble_at:
            return np.float64(0.0)
        if self._trouble == "fractions":
            return np.array([0.5, 1.0]) if self._steps else np.zeros(2, np.uint8)
        if self._trouble == "bounds":
            return np.array([2e6, 0.0])
        return np.array([self._number, float(self._steps)])

    def _get_into_trouble(self) -> None:
        match self._trouble:
            case "raise":
                raise RuntimeError("the maze has no exit")
            case "exit":
                sys.exit(3)
            case "hang":
                time.sleep(600)
            case "die":
                os.kill(os.getpid(), signal.SIGSEGV)


class DieOnce(Counter):
    """Kills its process at the fifth step of an episode, but only once."""

    def __init__(self, flag: str) -> None:
        super().__init__()
        self._flag = Path(flag)

    def _get_into_trouble(self) -> None:
        if not self._flag.exists():
            self._flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Hostile(Counter):
    """Does something terrible in the first step or `where` else, but only once."""

    def __init__(self, what: str, flag: str, where: str = "step") -> None:
        super().__init__()
        self._what, self._where, self._flag = what, where, Path(flag)
        self._resets = 0
        self._misbehave("construction")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._resets += 1
        if self._resets == 2:  # the first one may only be looking for action masks
            self._misbehave("reset")
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._misbehave("step")
        return super().step(action)

    def close(self) -> None:
        self._misbehave("close")

    def _misbehave(self, where: str) -> None:
        if where != self._where or self._flag.exists():
            return
        self._flag.touch()
        match self._what:
            case "raise":
                raise _Unspeakable
            case "exit":
                os._exit(7)
            case "segfault":
                ctypes.string_at(0)
            case "loop":
                while True:
                    pass
            case "write to every descriptor":
                for descriptor in _descriptors():
                    try:
                        os.write(descriptor, b"all my numbers\n")
                    except OSError:
                        continue
            case "close every descriptor":
                os.closerange(3, max(_descriptors()) + 1)
            case "fork and exit":
                if os.fork():
                    os._exit(7)
                time.sleep(600)
            case "print megabytes":
                print("a long line " * 250_000)
            case "start a process and a thread":
                sleeper = subprocess.Popen(["sleep", "600"], close_fds=False)
                self._flag.write_text(str(sleeper.pid))
                threading.Thread(target=time.sleep, args=(600,)).start()
            case "fork on and on":
                for _ in range(10):
                    if not os.fork():
                        os.setsid()
                        os.fork()
                        with self._flag.open("a") as file:
                            file.write(f"{os.getpid()} ")
                        time.sleep(600)
                while len(self._flag.read_text().split()) < 20:
                    time.sleep(0.01)
            case "take all memory":
                limit = int(
                    Path("/proc/self/statm").read_text().split()[0]
                ) * resource.getpagesize() + (64 << 20)
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
                taken = []
                while True:
                    taken.append(bytearray(1 << 20))
            case "be killed":  # as the kernel does with who takes too much
                os.kill(os.getpid(), signal.SIGKILL)


def _descriptors() -> list[int]:
    """Those above the standard three; a pipe keeps the number that it had in a parent with many of
    them."""
    return [number for each in Path("/proc/self/fd").iterdir() if (number := int(each.name)) > 2]


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class NeverEnds(Counter):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, False, info


class BoxActions(Counter):
    def __init__(self) -> None:
        super().__init__(spaces.Box(np.array([-1.0, -2.0]), np.array([1.0, 2.0]), dtype=np.float64))


class MultiDiscreteActions(Counter):
    def __init__(self) -> None:
        super().__init__(spaces.MultiDiscrete([2, 3], start=[0, 5]))


class MultiBinaryActions(Counter):
    def __init__(self) -> None:
        super().__init__(spaces.MultiBinary(3))


class DictObservations(Counter):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(
            {
                "place": spaces.Tuple([spaces.Discrete(4), spaces.MultiBinary(2)]),
                "count": spaces.Box(0, 9, (1,)),
            }
        )

    def _observation(self) -> Any:
        place = (np.int64(2), np.array([1, 0], dtype=np.int8))
        return {"place": place, "count": np.array([self._steps], dtype=np.float32)}


class Images(Counter):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (4, 5, 3), np.uint8)

    def _observation(self) -> Any:
        return np.full((4, 5, 3), self._steps, dtype=np.uint8)


class HugeImages(Images):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (1024, 1024, 3), np.uint8)

    def _observation(self) -> Any:
        return np.full((1024, 1024, 3), self._steps, dtype=np.uint8)


class OldStep(Counter):
    """As environments were before Gymnasium."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class Film(Counter):
    """Pictures of the step's number; `trouble` is what render does wrong."""

    def __init__(self, render_mode: str | None = None, trouble: str = "", length: int = 4) -> None:
        super().__init__()
        self.render_mode = None if trouble == "ignores render_mode" else render_mode
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
        self._film_trouble, self._film_length = trouble, length

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, _, _, info = super().step(action)
        return observation, 1.5, self._steps >= self._film_length, False, info

    def render(self) -> Any:
        if self._film_trouble == "raise":
            raise RuntimeError("no light")
        width = 50 + 2 * self._steps if self._film_trouble == "size" else 51
        picture = np.full((40, width, 3), 60 * self._steps, dtype=np.uint8)
        return [picture] if self._film_trouble == "list" else picture


def limited(limit: int) -> Any:
    """A time limit of its own, in a wrapper that we take off."""
    return gymnasium.wrappers.TimeLimit(gymnasium.wrappers.OrderEnforcing(Counter()), limit)


class Secretive(Counter):
    """Tells which of the environment variables it was asked about it can see, as bits of its
    observation."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self._names = names

    def _observation(self) -> Any:
        return np.array(
            [sum((name in os.environ) << bit for bit, name in enumerate(self._names)), 0.0]
        )


class Talkative(Counter):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        print("a line for the console")
        return super().step(action)


class TextObservations(Counter):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Text(5)


class Masked(Counter):
    """Forbids action number `step % 3`; allows nothing once an episode has ended."""

    def __init__(self, trouble: str = "", trouble_at: int = 5) -> None:
        super().__init__(trouble=trouble, trouble_at=trouble_at)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self._mask()[int(action) - 1], f"{action} is not allowed in step {self._steps}"
        return super().step(action)

    def _mask(self) -> Any:
        mask = np.ones(3, dtype=np.int8)
        mask[self._steps % 3] = 0
        if self._steps == self._trouble_at:
            match self._trouble:
                case "length":
                    return mask[:2]
                case "nothing":
                    return 0 * mask
                case "numbers":
                    return np.where(mask, 0.0, -np.inf)
        return mask if self._steps < self._length else 0 * mask


class InfoMasks(Masked):
    """As Gymnasium's Taxi tells them."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed)
        return observation, self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, self._info()

    def _info(self) -> dict[str, Any]:
        missing = self._trouble == "missing" and self._steps == self._trouble_at
        return {} if missing else {"action_mask": self._mask()}


class MethodMasks(Masked):
    """As sb3-contrib asks for them."""

    def action_masks(self) -> list[bool]:
        if self._trouble == "raise in action_masks":
            raise RuntimeError("no rules for this maze")
        return [bool(allowed) for allowed in self._mask()]


class WrapperWithMasks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Like sb3-contrib's ActionMasker."""

    def __init__(self) -> None:
        super().__init__(Masked())

    def action_masks(self) -> Any:
        return self.env.unwrapped._mask()


class MultiDiscreteMasks(MultiDiscreteActions):
    """Allows two pairs of choices, told flat or (`parts`) one row a part; `half` a mask allows none
    in the second."""

    def __init__(self, parts: bool = False, half: bool = False) -> None:
        super().__init__()
        self._parts, self._half = parts, half

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed)
        return observation, self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action[0] == 1
        assert action[1] in (5, 7)
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, self._info()

    def _info(self) -> dict[str, Any]:
        first = np.array([0, 1], dtype=np.int8)
        second = np.array([1, 0, 1], dtype=np.int8) * (not self._half)
        return {"action_mask": (first, second) if self._parts else np.concatenate([first, second])}


class BoxWithMasks(BoxActions):
    """Its masks mean nothing to us."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed)
        return observation, {"action_mask": None, "other": 1}

    def action_masks(self) -> Any:
        raise RuntimeError("not to be called")


def not_an_environment() -> int:
    return 3

"""An environment that does random wrong things in its construction, resets, steps and close."""

from __future__ import annotations

import builtins
import ctypes
import gc
import itertools
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from podracer_core import errors

SPACES = (
    spaces.Box(-1, 1, (2,)), spaces.Box(-1e300, 1e300, (2,), np.float64),
    spaces.Box(0, 255, (2,), np.uint8), spaces.Box(-1, 1, ()),
    spaces.Box(-np.inf, np.inf, (2,), np.int64), spaces.Discrete(3), spaces.MultiBinary(4),
    spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)}),
)  # fmt: skip
ODD_SPACES = (
    None, 5, spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), spaces.Box(-1, 1, (0,)),
    spaces.Box(-1, 1, (3, 0)), spaces.Dict(), spaces.Tuple([spaces.Dict(), spaces.Discrete(2)]),
    spaces.Box(-1, 1, (1000, 100)), spaces.Discrete(2**62), spaces.MultiDiscrete([2, 2**40]),
    spaces.Box(-1, 1, (2,), np.float16),
)  # fmt: skip
_BREAK = {"row": 0, "numbers": True, "text": "x" * 10**6, "traceback": ""}
ANSWERS: tuple[Any, ...] = (
    {}, {"made": 1}, {"made": "x"}, {"payload_bytes": -5}, {"payload_bytes": "x"},
    {"payload_bytes": 1 << 60}, 5, [], {"breaks": 5}, {"breaks": [{}]}, {"breaks": [_BREAK]},
    {"breaks": [_BREAK | {"row": 99, "text": "x"}]}, {"error": 5}, {"error": {}},
    {"error": {"kind": "", "message": "m" * 10**6, "traceback": ""}}, {"mask_size": -1},
    {"mask_size": "x"}, {"possible": 5}, {"shape": [-1]},
)  # fmt: skip
LINES = (
    *(json.dumps(answer).encode() + b"\n" for answer in ANSWERS),
    b"\n\n", b"all my numbers\n", b"\xff\n", b"[" * 99_999 + b"\n", b"9" * 9999 + b"\n", b"{",
    b"NaN\n",
)  # fmt: skip


class Odd:
    """Each question gets a wrong answer or an exception."""

    def __init__(self, chance: random.Random) -> None:
        self.__dict__["_chance"] = chance

    def _answer(self, *_: Any, **__: Any) -> Any:
        act = self._chance.choice(
            (_raise, lambda chance: self, lambda chance: chance.choice(VALUES))
        )
        return act(self._chance)

    def __getattr__(self, name: str) -> Any:
        return self._answer()

    __array__ = __float__ = __int__ = __index__ = __bool__ = __len__ = __eq__ = __iter__ = (
        __getitem__
    ) = _answer
    __repr__ = __str__ = __contains__ = __call__ = __hash__ = __lt__ = __abs__ = __array_ufunc__ = (
        _answer  # type: ignore[assignment]
    )


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Noted(ValueError):
    __notes__ = 5  # type: ignore[assignment]


VALUES: tuple[Any, ...] = (
    None, 0, True, -1, 3e38, 1e39, np.nan, np.inf, "", "x" * 10**6, b"\0", (), [], {},
    [[1], [1, 2]], 10**5000, 1j, np.zeros(2), np.zeros((2, 2)), np.zeros(2, complex),
    np.zeros(2, object), np.array(["a", "b"]), np.zeros(2, bool), np.array([3e38, -3e38]),
    np.array([1e39, 0]), np.array([np.nan, 0]), np.array([256, -1]), np.zeros(0), np.float32(3e38),
    np.zeros(2, "M8[s]"), np.ma.masked_array([1.0, 2.0], [True, False]), np.zeros(2, [("a", "f4")]),
    np.broadcast_to(np.float32(1), (1 << 20, 32)), range(10**7), itertools.count(), lambda: 0,
    memoryview(b"ab"), {"a": np.zeros(2), "b": 1}, {"a": None, "b": 99},
    {"action_mask": np.ones(3, np.int8)}, {"action_mask": None}, {"action_mask": "abc"},
    {"action_mask": np.zeros(3)}, np.array([[0.1], [0.2]], np.float32)[:, 0],
)  # fmt: skip


def _raise(chance: random.Random) -> None:
    text = chance.choice(("", "why", "x" * 10**6, "\0\ud800\x1b[2J\u202e", "line\n" * 1000))
    error: BaseException = chance.choice((
        ValueError(text), SystemExit(text), KeyboardInterrupt(), GeneratorExit(),
        StopIteration(text), OSError(4, text), BaseException(text), Unspeakable(text), Noted(text),
        RecursionError(), MemoryError(text), KeyError(text),
        ExceptionGroup("many", [ValueError(text)] * 1000),
        type("E" * 10**5, (Exception,), {})(text), errors.TimeUp(text), errors.InvalidInput(text),
        errors.Fenced(text), errors.PodracerError(text),
    ))  # fmt: skip
    if chance.random() < 0.2:
        error.__cause__ = error.__context__ = chance.choice((error, ValueError("x" * 10**6)))
    raise error


def _end(chance: random.Random) -> None:
    number = chance.choice(
        (
            signal.SIGKILL,
            signal.SIGSEGV,
            signal.SIGTERM,
            signal.SIGABRT,
            signal.SIGINT,
            signal.SIGSTOP,
        )
    )
    chance.choice((
        lambda: os._exit(chance.choice((0, 1, 7, 255))), sys.exit, os.abort,
        lambda: ctypes.string_at(0), lambda: os.kill(os.getpid(), number),
        lambda: os.kill(0, number), lambda: os.execv("/bin/true", ["true"]),
    ))()  # fmt: skip


def _loop(chance: random.Random) -> None:
    if chance.random() < 0.5:
        sum(itertools.repeat(0))  # no other thread gets a turn
    time.sleep(600)


def _fork(chance: random.Random) -> None:
    """The child may leave its group, and the parent it."""
    kind = chance.randrange(4)
    if kind == 0:
        subprocess.Popen(["sleep", "600"], close_fds=False, start_new_session=True)
        threading.Thread(target=time.sleep, args=(600,)).start()
    else:
        for _ in range(chance.choice((1, 20))):
            if not os.fork():
                if kind > 1:
                    os.setsid()
                    os.fork()
                time.sleep(600)
        if kind > 2:
            os._exit(7)


def _come_back_twice(chance: random.Random) -> None:
    os.fork()  # both answer


def _write(chance: random.Random) -> None:
    numbers = [number for number in map(int, os.listdir("/proc/self/fd")) if number > 2]
    line, times = chance.choice(LINES), chance.choice((1, 1, 2, 100_000))
    for number in numbers:
        if chance.random() < 0.2:
            os.close(number)
            continue
        try:
            with socket.socket(fileno=os.dup(number)) as ours:
                for _ in range(times):
                    ours.sendall(line)
                    if times > 2:
                        time.sleep(0.001)
        except (OSError, ValueError):
            continue


def _print(chance: random.Random) -> None:
    stream = chance.choice((sys.stdout, sys.stderr))
    stream.write(
        chance.choice(("a long line " * 100_000 + "\n", "\0\x1b[2J", "x\n" * 100_000, "\ud800"))
    )


def _allocate(chance: random.Random) -> None:
    """Until there is no more; the limit stands for that of a container."""
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used_bytes + (chance.choice((0, 64)) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    kept = []
    while chance.random() < 0.999:
        kept.append(bytearray(1 << 20))


def _patch(chance: random.Random) -> None:
    """Changes what others rely on."""
    value = chance.choice(
        (None, lambda *_, **__: _raise(chance), lambda *_, **__: chance.choice(VALUES))
    )
    place, name = chance.choice((
        (np, "asarray"), (np, "isfinite"), (np, "flatnonzero"), (gymnasium.Env, "reset"),
        (spaces.Box, "shape"), (json, "dumps"), (json, "loads"), (socket.socket, "sendall"),
        (socket.socket, "recv"), (time, "monotonic"), (os, "close"), (builtins, "isinstance"),
        (builtins, "len"), (builtins, "repr"), (sys, "stderr"), (sys, "modules"),
        (errors.InvalidInput, "__init__"), (threading, "Thread"),
    ))  # fmt: skip
    setattr(place, name, value)


def _settings(chance: random.Random) -> None:
    chance.choice((
        lambda: np.seterr(all="raise"), lambda: warnings.simplefilter("error"),
        lambda: sys.setrecursionlimit(60), lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        lambda: os.chdir("/"), gc.disable, os.setsid,
        lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0)),
        lambda: signal.setitimer(signal.ITIMER_REAL, 0.01), lambda: os.umask(0o777),
        os.environ.clear, sys.path.clear, lambda: sys.settrace(lambda *_: _raise(chance)),
    ))()  # fmt: skip


ACTS: dict[Callable[[random.Random], None], float] = {
    _raise: 5, _end: 2, _loop: 0.3, _fork: 2, _print: 1, _allocate: 0.5, _settings: 2,
}  # fmt: skip
TAMPERING: dict[Callable[[random.Random], None], float] = {
    _write: 6,
    _come_back_twice: 1,
    _patch: 6,
}


class Hostile(gymnasium.Env[Any, Any]):
    """`rate`: of wrong things in a call; `number` decides which. `tampers`: also with what tells us
    of it."""

    def __init__(self, number: int, rate: float, tampers: bool) -> None:
        # each life of the process is another
        mark = Path(tempfile.gettempdir(), os.environ["HOSTILE_PROGRAM"])
        with mark.open("ab") as file:
            file.write(b"x")
        self.chance = random.Random(f"{number}-{mark.stat().st_size}")
        self.rate = rate
        space = random.Random(number)
        self.acts = ACTS | (TAMPERING if tampers else {})
        self.observation_space = space.choice(SPACES if space.random() < 0.8 else ODD_SPACES)
        self.action_space = space.choice(
            (spaces.Discrete(3), spaces.Box(-1, 1, (2,))) if space.random() < 0.9 else ODD_SPACES
        )
        self._shown: list[Any] = []
        self._misbehave(0.2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._misbehave(0.5)
        return self._returned((self._observation(), {}))

    def step(self, action: Any) -> Any:
        self._misbehave()
        return self._returned((self._observation(), 1.0, self.chance.random() < 0.2, False, {}))

    def close(self) -> None:
        self._misbehave()

    def _misbehave(self, share: float = 1.0) -> None:
        chance = self.chance
        if chance.random() < self.rate * share:
            chance.choices(tuple(self.acts), tuple(self.acts.values()))[0](chance)
        if chance.random() < self.rate * share * 0.1:
            self.observation_space, self.action_space = (
                chance.choice((*SPACES, *ODD_SPACES)) for _ in range(2)
            )
        if self._shown and chance.random() < self.rate:
            np.asarray(self._shown[0]).fill(np.nan)  # what has been returned is changed later

    def _observation(self) -> Any:
        if not self._shown:
            self._shown = [self.observation_space.sample()]
        return self._shown[0] if self.chance.random() < 0.5 else self.observation_space.sample()

    def _returned(self, right: tuple[Any, ...]) -> Any:
        """The same, or with wrong parts, or another number of them."""
        chance = self.chance
        parts = [self._odd() if chance.random() < self.rate * 0.3 else part for part in right]
        if chance.random() < self.rate * 0.1:
            return chance.choice((parts, parts[:-1], (*parts, 1), self._odd(), iter(parts)))
        return tuple(parts)

    def _odd(self) -> Any:
        return Odd(self.chance) if self.chance.random() < 0.2 else self.chance.choice(VALUES)

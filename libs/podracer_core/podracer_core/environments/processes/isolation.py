"""Proves whether the worlds of one process share state: each world then needs a process of its own."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from podracer_core.catalogue.environments import EnvironmentSpec, find_environment
from podracer_core.environments.processes.child_process import ChildLost, ChildProcess
from podracer_core.environments.processes.exchange import create_memory
from podracer_core.environments.processes.row_processes import send_open
from podracer_core.environments.registry import batched_class, gymnasium_spec
from podracer_core.errors import PodracerError

_PATIENCE_S = 30.0  # for processes that play at the same time
_TOLERANCE = {"rtol": 1e-3, "atol": 1e-8}  # the last digits may depend on places in memory
_LOOK_S = 0.1


class IsolationProof:
    """Fresh processes play with the same seed and the same actions: one with a world alone, one with a second world,
    which is stepped between. If they differ, two more play alone and one beside a second world again.

    The worlds share state if all are alike that were alone, and those beside another differ from them or fail. All else
    proves nothing: an environment that ignores its seed, that cannot be started twice, or that takes too long.
    """

    def __init__(self, spec: EnvironmentSpec, code: bytes = b"") -> None:
        """`code`: what makes an environment, packed (see `own_code`). A thread begins with `start`."""
        self._spec, self._code = spec, code
        self._children: list[ChildProcess] = []
        self._lock = threading.Lock()
        self._closed = False
        self._shares_state = False
        self._thread = threading.Thread(target=self._run, name="isolation", daemon=True)

    def start(self) -> Self:
        """Begin to prove it."""
        self._thread.start()
        return self

    def shares_state(self, check: Callable[[], None] = lambda: None, deadline: float = math.inf) -> bool:
        """Whether it has been proved; waits for the end, and calls `check` meanwhile. It is not if that takes until
        `deadline` (of `time.monotonic`)."""
        if self._thread.ident is None:
            self.start()
        while self._thread.is_alive():
            self._thread.join(_LOOK_S)
            check()
            if time.monotonic() > deadline:
                self.close()
        return self._shares_state

    def close(self) -> None:
        """End it, proved or not."""
        with self._lock:
            self._closed = True
            children = list(self._children)
        for child in children:
            child.kill()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(ChildLost):  # it takes too long
            self._shares_state = self._is_shared() and not self._closed

    def _is_shared(self) -> bool:
        alone, beside = self._shown(1, 2)
        if alone is None or _alike(alone, beside):
            return False
        *others, again = self._shown(1, 1, 2)
        return all(_alike(alone, other) for other in others) and not _alike(alone, again)

    def _shown(self, *counts: int) -> list[NDArray[np.float64] | None]:
        """The traces of fresh processes with so many worlds each; None of one that fails."""
        memory, deadline = create_memory(), time.monotonic() + _PATIENCE_S
        try:
            with self._lock:
                if self._closed:
                    return [None] * len(counts)
                children = self._children = [ChildProcess(self._spec, memory) for _ in counts]
            for child, count in zip(children, counts, strict=True):
                send_open(child, self._spec, count, code=self._code)
            opened = {child: _answer(child, deadline) for child in children}
            for child, answer in opened.items():
                if answer is not None:
                    child.send("trace")
            shown = [answer and _answer(child, deadline) for child, answer in opened.items()]
            return [each and np.frombuffer(each[1]).reshape(each[0]["shape"]) for each in shown]
        finally:
            ChildProcess.end_all(self._children)
            os.close(memory)


def _answer(child: ChildProcess, deadline: float) -> tuple[dict[str, Any], bytes] | None:
    """The answer of a process; None if it has failed. Raises ChildLost if it took too long."""
    try:
        return child.receive_payload(deadline)
    except PodracerError:
        if time.monotonic() >= deadline:
            raise ChildLost("it takes too long") from None
        return None


def _alike(one: NDArray[np.float64], other: NDArray[np.float64] | None) -> bool:
    """Whether they begin alike: one may have taken fewer steps in its time."""
    if other is None or one.shape[1:] != other.shape[1:]:
        return False
    rows = min(len(one), len(other))
    return np.allclose(one[:rows], other[:rows], **_TOLERANCE, equal_nan=True)


def isolation_proof(spec: EnvironmentSpec) -> IsolationProof | None:
    """A proof for an environment; None if it is isolated or batched, or one of Gymnasium's own, of which it is known
    that they share nothing."""
    known = bool(spec.id) and find_environment(spec.id).is_gymnasiums
    return None if spec.isolation or known or batched_class(spec) else IsolationProof(gymnasium_spec(spec))

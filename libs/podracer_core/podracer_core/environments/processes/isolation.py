"""Proves whether the worlds of one process share state: each world then needs a process of its own."""

from __future__ import annotations

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

_PATIENCE_S = 30.0  # for the start of all three processes, and for their steps again
_TOLERANCE = {"rtol": 1e-3, "atol": 1e-8}  # the last digits may depend on places in memory
_LOOK_S = 0.1


class IsolationProof:
    """Three fresh processes play with the same seed and the same actions: a world alone, one alone again, and one with
    a second world in its process, which is stepped between.

    The worlds share state if the first two are alike and the third differs, or only the third fails. It is proved
    twice, so that rare events do not look like it. All else proves nothing: an environment that ignores its seed, that
    cannot be started three times, or that takes too long.
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
        self._shares_state = self._is_shared_once() and self._is_shared_once() and not self._closed

    def _is_shared_once(self) -> bool:
        """Whether this try shows it."""
        memory = create_memory()
        try:
            with self._lock:
                if self._closed:
                    return False
                self._children = [ChildProcess(self._spec.name, memory) for _ in range(3)]
            return self._compare(*self._children)
        finally:
            ChildProcess.end_all(self._children)
            os.close(memory)

    def _compare(self, *children: ChildProcess) -> bool:
        """Whether the traces of a world alone and of one alone again are alike, but not that of the third process."""
        deadline = time.monotonic() + _PATIENCE_S
        try:
            for child, count in zip(children, (1, 1, 2), strict=True):
                send_open(child, self._spec, count, code=self._code)
            opened = [_answer(child, deadline) for child in children]
            for child, answer in zip(children, opened, strict=True):
                if answer is not None:
                    child.send("trace")
            shown = [answer and _answer(child, deadline) for child, answer in zip(children, opened, strict=True)]
        except ChildLost:
            return False
        first, second, third = (each and np.frombuffer(each[1]).reshape(each[0]["shape"]) for each in shown)
        if first is None or second is None or not _alike(first, second):
            return False
        return third is None or not _alike(first, third)


def _answer(child: ChildProcess, deadline: float) -> tuple[dict[str, Any], bytes] | None:
    """The answer of a process; None if it has failed. Raises ChildLost if it took too long."""
    try:
        return child.receive_payload(deadline)
    except PodracerError:
        if time.monotonic() >= deadline:
            raise ChildLost("it takes too long") from None
        return None


def _alike(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Whether they begin alike: one may have taken fewer steps in its time."""
    rows = min(len(one), len(other))
    return one.shape[1:] == other.shape[1:] and np.allclose(one[:rows], other[:rows], **_TOLERANCE, equal_nan=True)


def isolation_proof(spec: EnvironmentSpec) -> IsolationProof | None:
    """A proof for an environment; None if it is isolated or batched, or one of Gymnasium's own, of which it is known
    that they share nothing."""
    known = bool(spec.id) and find_environment(spec.id).is_gymnasiums
    return None if spec.isolation or known or batched_class(spec) else IsolationProof(gymnasium_spec(spec))

"""Proves whether the worlds of one process share state: each world then needs a process of its
own."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import numpy as np
from numpy.typing import NDArray

from podracer_core.catalogue import EnvironmentSpec, find_environment
from podracer_core.environments.processes import RowProcesses
from podracer_core.environments.registry import batched_class, gymnasium_spec
from podracer_core.errors import PodracerError

_PATIENCE_S = 30.0  # for processes that play at the same time
_TOLERANCE = {"rtol": 1e-3, "atol": 1e-8}  # the last digits may depend on places in memory
_LOOK_S = 0.1


class IsolationProof:
    """Fresh processes play with the same seed and the same actions: one with a world alone, one
    with a second world, which is stepped between. If they differ, two more play alone and one
    beside a second world again.

    The worlds share state if all are alike that were alone, and those beside another differ from
    them or fail. All else proves nothing: an environment that ignores its seed, that cannot be
    started twice, or that takes too long."""

    def __init__(self, spec: EnvironmentSpec, code: bytes = b"") -> None:
        """`code`: what makes an environment, packed (see `own_code`)."""
        self._spec, self._code = spec, code
        self._processes: list[RowProcesses] = []
        self._closed = self._shares_state = False
        self._thread = threading.Thread(target=self._run, name="isolation", daemon=True)

    def start(self) -> Self:
        """Begin to prove it."""
        self._thread.start()
        return self

    def shares_state(
        self, check: Callable[[], None] = lambda: None, deadline: float = math.inf
    ) -> bool:
        """Whether it has been proved; waits for the end, and calls `check` meanwhile. It is not if
        that takes until `deadline` (of `time.monotonic`)."""
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
        self._closed = True
        while self._thread.is_alive():
            for each in list(self._processes):
                each.kill()
            self._thread.join(_LOOK_S)

    def _run(self) -> None:
        with contextlib.suppress(PodracerError):  # it takes too long
            self._shares_state = self._is_shared() and not self._closed

    def _is_shared(self) -> bool:
        with ThreadPoolExecutor() as threads:
            alone, beside = threads.map(self._shown, (1, 2))
            if alone is None or _alike(alone, beside):
                return False
            *others, again = threads.map(self._shown, (1, 1, 2))
        return all(_alike(alone, other) for other in others) and not _alike(alone, again)

    def _shown(self, count: int) -> NDArray[np.float64] | None:
        """What the first of so many worlds of a fresh process shows; None if one fails. Raises
        PodracerError if it takes too long."""
        if self._closed:
            return None
        processes = RowProcesses(
            self._spec,
            count,
            1,
            step_timeout_s=_PATIENCE_S,
            start_timeout_s=_PATIENCE_S,
            code=self._code,
        )
        self._processes.append(processes)
        end = time.monotonic() + _PATIENCE_S
        try:
            if processes.open().get("batched"):
                return None  # it keeps its worlds apart by itself
            answer, payload = processes.ask_first("trace")
            return np.frombuffer(payload).reshape(answer["shape"])
        except PodracerError:
            if time.monotonic() >= end:
                raise
            return None
        finally:
            processes.close()


def _alike(one: NDArray[np.float64], other: NDArray[np.float64] | None) -> bool:
    """Whether they begin alike: one may have taken fewer steps in its time."""
    if other is None or one.shape[1:] != other.shape[1:]:
        return False
    rows = min(len(one), len(other))
    return np.allclose(one[:rows], other[:rows], **_TOLERANCE, equal_nan=True)


def isolation_proof(spec: EnvironmentSpec, code: bytes = b"") -> IsolationProof | None:
    """A proof for an environment, not begun; None if it is isolated or batched, or one of
    Gymnasium's own, of which it is known that they share nothing."""
    known = bool(spec.id) and find_environment(spec.id).is_gymnasiums
    return (
        None
        if spec.isolation or known or batched_class(spec)
        else IsolationProof(gymnasium_spec(spec), code)
    )

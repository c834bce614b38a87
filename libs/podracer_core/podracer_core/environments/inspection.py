"""Inspects an environment before any agent exists: its spaces, and whether it works."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from podracer_core.catalogue import EnvironmentSpec, Space, find_environment, from_json
from podracer_core.environments.processes import LocalRows, MakeEnvironment, RowProcesses
from podracer_core.environments.registry import batched_class, gymnasium_spec, make_vec_environment
from podracer_core.environments.spaces import from_gymnasium
from podracer_core.errors import PodracerError

_logger = logging.getLogger(__name__)


class Inspection(NamedTuple):
    """The properties of an environment, before spaces are flattened for a batch; see
    VecEnvironment's attributes.

    warnings         sentences on what trains but may surprise
    start_s, step_s  seconds that one environment and one step of it take; 0 if unknown
    waits            a step waits more than it computes, as a simulator behind a connection does
    observation_origin  the spec's, or one that keeps apart what float32 does not
    """

    observation_space: Space
    action_space: Space
    max_episode_steps: int | None
    deterministic_evaluation: bool = False
    preparation: str = ""
    warnings: Sequence[str] = ()
    start_s: float = 0.0
    step_s: float = 0.0
    waits: bool = False
    observation_origin: tuple[float, ...] = ()


def inspect_environment(
    spec: EnvironmentSpec, timeout_s: float = 120.0, make: MakeEnvironment | None = None
) -> Inspection:
    """Start one environment and try it with `Checker`; an id of Gymnasium's own is only started.
    `make`: makes it in this process, else it has its own.

    Raises InvalidInput if a value is outside its space or no algorithm could act in it. Raises
    UserCodeFailed with the user's traceback if the code raises, its process dies, or everything
    together takes longer than `timeout_s`; in this process the code's own exceptions are raised
    unchanged."""
    if batched_class(spec) is not None:
        environment = make_vec_environment(spec, 1)
        observed = environment.original_space or from_gymnasium(environment.observation_space)
        spaces = observed, from_gymnasium(environment.action_space)
        environment.close()
        if environment.preparation:
            _logger.info("%s: %s", spec.name, environment.preparation)
        return Inspection(
            *spaces,
            environment.max_episode_steps,
            environment.deterministic_evaluation,
            environment.preparation,
        )
    end = time.monotonic() + timeout_s
    spec = gymnasium_spec(spec)
    rows = LocalRows(make, spec, 1) if make else RowProcesses(spec, 1, 1, start_timeout_s=timeout_s)
    try:
        found = rows.open()
        rows.step_timeout_s = end - time.monotonic()
        if make or not (spec.id and find_environment(spec.id).is_gymnasiums):
            found |= rows.ask_first("inspect")[0]
    finally:
        rows.close()
    spaces = from_json(found["observation_space"]), from_json(found["action_space"])
    rest = {name: found[name] for name in Inspection._fields[len(spaces) :] if name in found}
    rest["observation_origin"] = spec.observation_origin or tuple(
        rest.get("observation_origin", ())
    )
    return Inspection(*spaces, **rest)


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

"""Random delays at the seams of the product, in every Python process that has this folder in
PYTHONPATH.

`make test-stress` sets that variable and STRESS_SEED; without STRESS_SEED this module does nothing.
A delay comes before a call or after it: the call takes longer. Nothing happens in an order that a
slow machine could not bring about, so the table has no coroutine function that begins or ends
without waiting."""

from __future__ import annotations

import asyncio
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType
from typing import Any

SEED = "STRESS_SEED"
SHORT_S = 0.005
"""The longest of the delays that most delayed calls have."""
SHARE, LONG_SHARE = 0.2, 0.05
"""Of the calls that are delayed at all, and by up to their longest delay."""

_RPC = "podracer_platform.rpc"
_STORAGE = "podracer_core.storage"
_ORCHESTRATOR = "podracer_orchestrator"
LONGEST_S = {
    # Calls on their way out, and their answers.
    f"{_RPC}.channel:CallInterceptor.intercept_unary_unary": 0.3,
    f"{_RPC}.channel:CallInterceptor.intercept_unary_stream": 0.3,
    f"{_RPC}.channel:CallInterceptor.intercept_stream_unary": 0.3,
    f"{_RPC}.channel:CallInterceptor.intercept_stream_stream": 0.3,
    f"{_RPC}.channel:_UnaryUnary.intercept_unary_unary": 0.3,
    f"{_RPC}.channel:_UnaryStream.intercept_unary_stream": 0.3,
    f"{_RPC}.channel:_StreamUnary.intercept_stream_unary": 0.3,
    f"{_RPC}.channel:_StreamStream.intercept_stream_stream": 0.3,
    # Calls that have arrived.
    f"{_RPC}.guard:Guard.intercept_service": 0.3,
    f"{_RPC}.guard:Requests._read": 0.1,
    # Messages of streams, in the threads that move them; work for the main thread.
    f"{_RPC}.streams:StreamCall._put": 0.1,
    f"{_RPC}.streams:_read_requests": 0.3,
    f"{_RPC}.streams:WorkQueue.submit": 0.1,
    # Checkpoints on their way to the store.
    "podracer_platform.storage.stores:Spool.put": 0.1,
    "podracer_platform.storage.stores:Spool._bring": 0.3,
    "podracer_platform.storage.stores:Spool.settle": 0.1,
    f"{_STORAGE}.object_store:FolderStore.put": 0.1,
    # The orchestrator's transactions, and what it tells the leaderboard.
    f"{_ORCHESTRATOR}.transactions:Transactions.read": 0.1,
    f"{_ORCHESTRATOR}.transactions:Transactions.write": 0.1,
    f"{_ORCHESTRATOR}.board.delivery:Delivery._deliver": 0.3,
    f"{_ORCHESTRATOR}.board.delivery:Delivery._call": 0.3,
    f"{_ORCHESTRATOR}.board.delivery:Delivery._hear_next_claim": 0.3,
    # Pods that start and end.
    f"{_ORCHESTRATOR}.pool.reconciler:PoolReconciler.reconcile": 0.3,
    f"{_ORCHESTRATOR}.pool.reconciler:PoolReconciler.process_died": 0.3,
    f"{_ORCHESTRATOR}.pool.reconciler:PoolReconciler.pod_stopped": 0.3,
    f"{_ORCHESTRATOR}.pool.local:LocalPool.measure": 0.3,
    f"{_ORCHESTRATOR}.pool.local:LocalPool._stop_pod": 0.3,
    "podracer_platform.service.supervision:SupervisedProcess._run_once": 0.3,
}
"""The longest delay of each function, by `module:Class.method` or `module:function`."""


class Delays:
    """How long each call is delayed, for one process."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self.begin()

    def begin(self) -> None:
        """Draw anew, by the seed and this process's number; a forked process does that too."""
        self._chance = random.Random(f"{self._seed}/{os.getpid()}")

    def draw(self, longest_s: float) -> tuple[float, float]:
        """Seconds before and after a call; one of them is 0, and mostly both."""
        luck = self._chance.random()
        if luck >= SHARE:
            return 0.0, 0.0
        delay_s = self._chance.uniform(
            0.0, longest_s if luck < LONG_SHARE else min(SHORT_S, longest_s)
        )
        return (delay_s, 0.0) if self._chance.random() < 0.5 else (0.0, delay_s)


def delayed(function: Callable[..., Any], longest_s: float, delays: Delays) -> Callable[..., Any]:
    """The same function with delays. Raises TypeError for a generator: only its first step would be
    delayed."""
    if not isinstance(function, FunctionType) or inspect.isgeneratorfunction(function):
        raise TypeError(
            f"{function!r} cannot be delayed: it is no plain function and no coroutine function"
        )
    if inspect.isasyncgenfunction(function):
        raise TypeError(f"{function!r} cannot be delayed: it is a generator")

    @functools.wraps(function)
    def later(*arguments: Any, **named: Any) -> Any:
        before_s, after_s = delays.draw(longest_s)
        if before_s:
            time.sleep(before_s)
        result = function(*arguments, **named)
        if after_s:
            time.sleep(after_s)
        return result

    @functools.wraps(function)
    async def later_too(*arguments: Any, **named: Any) -> Any:
        before_s, after_s = delays.draw(longest_s)
        if before_s:
            await asyncio.sleep(before_s)
        result = await function(*arguments, **named)
        if after_s:
            await asyncio.sleep(after_s)
        return result

    return later_too if inspect.iscoroutinefunction(function) else later


def delay_module(module: ModuleType, delays: Delays) -> None:
    """Put delays into the functions of a module that stand in the table. Raises AttributeError
    where one is missing."""
    for name, longest_s in LONGEST_S.items():
        module_name, _, path = name.partition(":")
        if module_name == module.__name__:
            owner, attribute = owner_of(module, path)
            setattr(
                owner,
                attribute,
                delayed(inspect.getattr_static(owner, attribute), longest_s, delays),
            )


def owner_of(module: ModuleType, path: str) -> tuple[Any, str]:
    """What has the last word of `path` as its attribute: the module, or a class in it."""
    *classes, attribute = path.split(".")
    return functools.reduce(getattr, classes, module), attribute


class _Finder(importlib.abc.MetaPathFinder):
    """Has the modules of the table delayed as soon as they are imported."""

    def __init__(self, delays: Delays) -> None:
        self._delays = delays
        self._names = {name.partition(":")[0] for name in LONGEST_S}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._names:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(
            (found for finder in others if (found := finder.find_spec(fullname, path, target))),
            None,
        )
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_delay(module: ModuleType) -> None:
            execute(module)
            delay_module(module, self._delays)

        spec.loader.exec_module = execute_and_delay  # type: ignore[method-assign]
        return spec


def _install(seed: str) -> None:
    delays = Delays(seed)
    os.register_at_fork(after_in_child=delays.begin)
    sys.meta_path.insert(0, _Finder(delays))


if os.environ.get(SEED):
    _install(os.environ[SEED])

"""The systems that benchmarks/environments.py compares, ours among them: each makes its
environments and steps them.

This runs in a process of its own for each row; the libraries are imported when they are needed.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import pkgutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.stock_market import write_market

ACTION_BATCHES = 64
WARM_UP_S = 0.3

Advance = Callable[[], object]  # one step of all of a system's environments


@dataclass(frozen=True)
class Row:
    """One environment. Ours is `environment` (its id, or an entry point of Gymnasium's) with
    `num_envs`; the peers are the same id or entry point with `peer_envs`, and with `peer_kwargs`
    that make them do the same.

    Every system has `cores` to run on; `threads` are those of torch, MuJoCo and envpool, or the
    processes of ours."""

    name: str
    group: str
    environment: str
    num_envs: int
    peers: tuple[str, ...] = ()
    peer_envs: int = 0
    cores: int = 2
    threads: int = 2
    max_episode_steps: int | None = None
    peer_kwargs: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False


def measure(row: Row, repeats: int, seconds: float) -> dict[str, list[float]]:
    """Steps/s of ours and of those peers that are installed: `repeats` windows of each, in turn."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: row.cores])
    warnings.simplefilter("ignore")
    # Peers first: AsyncVectorEnv forks, and has less to copy before torch is there.
    systems = {name: made for name in row.peers if (made := PEERS[name](row)) is not None}
    systems = {"ours": _ours(row), **systems}
    speeds: dict[str, list[float]] = {name: [] for name in systems}
    for advance, count in systems.values():
        _steps_per_second(advance, count, WARM_UP_S)
    for _ in range(repeats):
        for name, (advance, count) in systems.items():
            speeds[name].append(_steps_per_second(advance, count, seconds))
    return speeds


def _steps_per_second(advance: Advance, count: int, seconds: float) -> float:
    steps, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        advance()
        steps += count
    return steps / elapsed


def _actions(space: Any, count: int) -> Iterator[Any]:
    """Batches of random actions in `space`, of a single environment, over and over."""
    import gymnasium

    batch = gymnasium.vector.utils.batch_space(space, count)
    batch.seed(0)
    return itertools.cycle([batch.sample() for _ in range(ACTION_BATCHES)])


def _ours(row: Row) -> tuple[Advance, int]:
    import torch

    from podracer_core.catalogue import EnvironmentSpec
    from podracer_core.environments import make_vec_environment

    torch.set_num_threads(row.threads)
    kwargs = (
        {"table": str(write_market(Path("prices.csv")))}
        if row.environment == "StockTrading-v0"
        else {}
    )
    named = {"entry_point" if ":" in row.environment else "id": row.environment}
    spec = EnvironmentSpec(**named, kwargs=kwargs, max_episode_steps=row.max_episode_steps)
    environment = make_vec_environment(spec, row.num_envs, processes=row.threads)
    environment.reset(torch.arange(row.num_envs))
    batches = itertools.islice(_actions(environment.action_space, row.num_envs), ACTION_BATCHES)
    actions = itertools.cycle([torch.as_tensor(batch) for batch in batches])
    return lambda: environment.step(next(actions)), row.num_envs


def _single(row: Row) -> Callable[[], Any]:
    """What makes one environment of the peers."""
    import gymnasium

    if ":" not in row.environment:
        return functools.partial(gymnasium.make, row.environment, **row.peer_kwargs)
    kind, limit = pkgutil.resolve_name(row.environment), row.max_episode_steps
    return lambda: gymnasium.wrappers.TimeLimit(kind(**row.peer_kwargs), limit)


def _bare_loop(row: Row) -> tuple[Advance, int]:
    """Without any vector environment: what one of Gymnasium's costs by itself."""
    singles = [_single(row)() for _ in range(row.peer_envs)]
    actions = _actions(singles[0].action_space, row.peer_envs)
    for seed, single in enumerate(singles):
        single.reset(seed=seed)

    def advance() -> None:
        for single, action in zip(singles, next(actions), strict=True):
            *_, terminated, truncated, _ = single.step(action)
            if terminated or truncated:
                single.reset()

    return advance, row.peer_envs


def _stable_baselines(row: Row) -> tuple[Advance, int] | None:
    """Stable-Baselines3's environments as its PPO steps them: monitored, in one process, and
    normalized."""
    if importlib.util.find_spec("stable_baselines3") is None:
        return None
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    made = make_vec_env(
        row.environment, n_envs=row.peer_envs, seed=0, env_kwargs=dict(row.peer_kwargs)
    )
    vector = VecNormalize(made)
    vector.reset()
    actions = _actions(vector.action_space, row.peer_envs)
    return lambda: vector.step(next(actions)), row.peer_envs


def _gymnasium_vector(row: Row, kind: str) -> tuple[Advance, int]:
    import gymnasium

    vector: Any = getattr(gymnasium.vector, kind)([_single(row)] * row.peer_envs)
    return _started(vector, vector.single_action_space, row.peer_envs)


def _cartpole_vector(row: Row) -> tuple[Advance, int]:
    import gymnasium

    vector = gymnasium.make_vec(
        row.environment, row.num_envs, vectorization_mode="vector_entry_point"
    )
    return _started(vector, vector.single_action_space, row.num_envs)


def _envpool(row: Row) -> tuple[Advance, int] | None:
    if importlib.util.find_spec("envpool") is None:
        return None
    import envpool

    ids = [row.environment, row.environment.replace("-v5", "-v4")]
    name = next((name for name in ids if name in envpool.list_all_envs()), None)
    if name is None:
        return None
    # No system here computes contact forces.
    plain = {"post_constraint": False, "use_contact_force": False} if row.peer_kwargs else {}
    pool = envpool.make_gymnasium(
        name, num_envs=row.peer_envs, num_threads=row.threads, seed=0, **plain
    )
    pool.reset()
    actions = _actions(pool.action_space, row.peer_envs)
    return lambda: pool.step(next(actions)), row.peer_envs


def _stock_trading(row: Row, kind: str) -> tuple[Advance, int]:
    from peers import stock_trading_env

    from podracer_trading.environment import StockTrading

    market = StockTrading(
        1, evaluation=True, table=str(write_market(Path("prices.csv"))), evaluation_split="train"
    )
    single: Any = getattr(stock_trading_env, kind)(market)
    single.reset(seed=0)
    actions = _actions(single.action_space, 1)

    def advance() -> None:
        *_, terminated, truncated, _ = single.step(next(actions)[0])
        if terminated or truncated:
            single.reset()

    return advance, 1


def _started(vector: Any, space: Any, count: int) -> tuple[Advance, int]:
    vector.reset(seed=0)
    actions = _actions(space, count)
    return lambda: vector.step(next(actions)), count


PEERS: dict[str, Callable[[Row], tuple[Advance, int] | None]] = {
    "loop": _bare_loop,
    "baselines": _stable_baselines,
    "sync": functools.partial(_gymnasium_vector, kind="SyncVectorEnv"),
    "async": functools.partial(_gymnasium_vector, kind="AsyncVectorEnv"),
    "envpool": _envpool,
    "vector": _cartpole_vector,
    "python": functools.partial(_stock_trading, kind="StockTradingEnv"),
    "arrays": functools.partial(_stock_trading, kind="ArrayStockTradingEnv"),
}

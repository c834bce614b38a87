"""What a row of benchmarks/gpu.py measures, in a process of its own: figures and a return, as the
last line of output.

`rounds` and `replaying` time rounds as a pod's learner takes them, `train` and `start` are calls of
`podracer.train`, `pod` is a job, `purejaxrl` the peer. What has been trained plays its greedy
episodes on a CPU, MuJoCo's in C MuJoCo."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from lab.processes import run_job
from lab.report import print_table
from pipeline import FUSED, START_S, Task, job, steady_pace
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import podracer
from podracer_core import device
from podracer_core.algorithms import CohortConfig, MemberConfig, algorithm_class
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.device import map_tensors, set_up_torch
from podracer_core.environments import make_vec_environment
from podracer_core.evaluate import GreedyEvaluator
from podracer_core.random_numbers import CONFIRMATION, SCREENING, evaluation_seeds
from podracer_core.training import OverlappingSource

Found = tuple[dict[str, float], float] | None
"""Figures by name, and the return; None where only kernels were printed."""

FULL = {"repeats": 5, "episodes": 100, "window_s": 3.0}
SHORT = {"repeats": 1, "episodes": 2, "window_s": 0.1}
PATIENCE_S = 20.0
FRESH = 1_000_000  # the first seed of episodes that judge what `podracer.train` has trained
WARM_UP = 6  # rounds: two plain calls and a capture for each of two buffers
UPDATES = 200  # of the peer, which learns for as long as it is timed
MARK, KERNELS = "call ", 25
REPLAYING = {"hidden_sizes": (16, 16), "batch_size": 16, "learning_starts": 16}
ON_POLICY = {"hidden_sizes": (16, 16), "horizon": 4, "minibatch_size": 0, "epochs": 1}


def measure(order: dict[str, Any]) -> None:
    set_up_torch(1 if order["device"] == "cpu" else None)
    if order["profile"]:
        device.can_capture = lambda device: False
    settings = argparse.Namespace(**order, **(SHORT if order["tiny"] else FULL))
    if found := FUNCTIONS[order["function"]](settings, **order["arguments"]):
        print(json.dumps({"figures": found[0], "return": found[1]}))


class WeightsOnTheWay:
    """The actors' weights after all gradient steps that were started, copied to the CPU while it
    does other things."""

    def __init__(self, algorithm: Any) -> None:
        state = algorithm.actor_state()
        self._copies = {name: tensor.to("cpu", non_blocking=True) for name, tensor in state.items()}
        self._copied = torch.cuda.Event()
        self._copied.record()

    def wait(self) -> dict[str, torch.Tensor]:
        self._copied.synchronize()
        return self._copies


class Trainer:
    """Agents of one algorithm, each with `worlds` environments on the device `place`; training is
    on the order's."""

    def __init__(
        self, order: Any, name: str, task: str, members: int, worlds: int, recipe: Any, place: str
    ) -> None:
        self.task, self._version = EnvironmentSpec(id=task), 0
        environment = make_vec_environment(self.task, members * worlds, place)
        spaces: tuple[Any, Any] = (environment.observation_space, environment.action_space)
        seeds = range(order.seed * members, (order.seed + 1) * members)
        recipe = {
            key: tuple(value) if isinstance(value, list) else value for key, value in recipe.items()
        }
        cohort = CohortConfig(name, tuple(MemberConfig(str(seed), seed) for seed in seeds), recipe)
        self.algorithm = algorithm_class(name)(cohort, *spaces, order.device)
        self.actor, self._judged = (
            self.algorithm.make_actor(cohort, *spaces, each) for each in (place, "cpu")
        )
        self.actor.load_state(self.algorithm.actor_state())
        self.collector = Collector(environment, self.actor, torch.tensor(seeds), buffers=2)
        self.steps = members * worlds * self.algorithm.horizon

    def mean_return(self, purpose: int, episodes: int) -> float:
        """Of all agents, in greedy episodes that are new to them."""
        self._version += 1
        self._judged.load_state(self.algorithm.actor_state())
        evaluator = GreedyEvaluator(
            lambda count: make_vec_environment(self.task, count, evaluation=True)
        )
        found = evaluator.evaluate(self._judged, evaluation_seeds(self._version, purpose, episodes))
        evaluator.close()
        return statistics.fmean(result.mean for result in found)


def rounds(
    order: Any, task: str, worlds: int, recipe: Mapping[str, Any],
    members: int = 1, ahead: int = 0, least: float = -math.inf, physics: bool = False,
) -> Found:  # fmt: skip
    """PPO's steps/s; `physics`: and of its environment alone. Training goes on until the return is
    at `least`."""
    if order.tiny:
        worlds, members, recipe, least = 16, min(members, 2), ON_POLICY, -math.inf
    trainer = Trainer(order, "ppo", task, members, worlds, recipe, order.device)
    source = OverlappingSource(trainer.collector, trainer.algorithm, ahead)

    def turn() -> None:
        trainer.algorithm.update(source.collect())

    if order.profile:
        rollout = source.collect()
        trainer.algorithm.update(rollout)
        profile("collecting", source.collect)
        return profile("updating", lambda: trainer.algorithm.update(rollout))
    acts = [
        (turn, trainer.steps),
        *([(stepping(trainer.task, worlds, order.device), worlds)] if physics else []),
    ]
    paces = [[pace(*act, order) for act in acts] for _ in range(order.repeats)]
    figures = {"steps/s": statistics.median(ours for ours, *_ in paces)}
    if physics:
        figures["learning ÷ physics"] = statistics.median(ours / alone for ours, alone in paces)
    end = time.monotonic() + PATIENCE_S
    while (
        least > -math.inf
        and time.monotonic() < end
        and trainer.mean_return(SCREENING, order.episodes) < least
    ):
        for _ in range(10):
            turn()
    mean = trainer.mean_return(CONFIRMATION, order.episodes)
    if mean < least:
        sys.exit(f"no confirmed {least:g} but {mean:g} after {PATIENCE_S:g} s")
    return figures, mean


def stepping(task: EnvironmentSpec, worlds: int, device: str) -> Callable[[], object]:
    """A call that steps environments under one of a few batches of random actions, their episodes
    under way."""
    environment = make_vec_environment(task, worlds, device)
    environment.reset(torch.arange(worlds, device=device))
    shape = worlds, *environment.action_space.shape
    actions = itertools.cycle([torch.rand(shape, device=device) * 2 - 1 for _ in range(16)])
    return lambda: environment.step(next(actions))


def pace(act: Callable[[], object], steps: int, order: Any) -> float:
    """Steps/s of calls of so many `steps`, over a window, until the device has done them."""

    def timed(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            act()
        if order.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    timed(WARM_UP)
    count = max(1, int(order.window_s / timed(2) * 2))
    return count * steps / timed(count)


def replaying(order: Any, seeds: int) -> Found:
    """Steps/s of SAC on one CPU environment a seed: the device takes 8 gradient steps while the CPU
    takes 8 steps."""
    recipe = {"horizon": 8, "updates_per_step": 1.0, "learning_starts": 1000} | (
        REPLAYING if order.tiny else {}
    )
    trainer = Trainer(order, "sac", "HalfCheetah-v5", seeds, 1, recipe, "cpu")
    algorithm, actor, on_gpu = trainer.algorithm, trainer.actor, order.device == "cuda"
    weights = WeightsOnTheWay(algorithm) if on_gpu else None

    def turn() -> None:
        nonlocal weights
        rollout = trainer.collector.collect(algorithm.horizon, policy_version=algorithm.version)
        actor.load_state(weights.wait() if weights is not None else algorithm.actor_state())
        algorithm.update(map_tensors(rollout, lambda tensor: tensor.to(order.device)))
        weights = WeightsOnTheWay(algorithm) if on_gpu else None

    while algorithm.gradient_steps < (8 if order.tiny else 200):
        turn()
    found = [pace(turn, trainer.steps, order) for _ in range(order.repeats)]
    return {"steps/s": statistics.median(found)}, trainer.mean_return(CONFIRMATION, order.episodes)


def train(
    order: Any,
    task: str,
    seconds: float,
    algorithm: str = "ppo",
    members: int = 1,
    **arguments: Any,
) -> Found:
    """The return of what `podracer.train` makes in `seconds`, its start included."""
    if order.tiny:
        seconds, members = 2.0, min(members, 4)
        arguments |= {"envs_per_member": 2, "episodes": order.episodes}
        arguments["hyperparameters"] = ON_POLICY if algorithm == "ppo" else REPLAYING
    arguments |= {"seed": order.seed, "device": order.device, "progress": False}
    result = podracer.train(task, algorithm, seconds=seconds, members=members, **arguments)
    return {"steps of the best": result.env_steps}, result.evaluate(order.episodes, seed=FRESH).mean


def start(order: Any, task: str, target: float) -> Found:
    """Seconds to a confirmed target, from the start of this process, and again with what it has
    compiled."""

    def reach(seed: int) -> tuple[float, float]:
        begin = time.monotonic()
        result = podracer.train(
            task, members=1, target=30.0 if order.tiny else target, statistic="mean",
            episodes=order.episodes, seconds=60.0, seed=seed, device=order.device, progress=False,
        )  # fmt: skip
        if result.stopped_by != "target" or result.best is None:
            sys.exit(f"no confirmed {target:g} in 60 s")
        return time.monotonic() - begin, result.best.mean

    reach(order.seed)
    cold_s = time.time() - order.started
    warm_s, mean = reach(order.seed + FRESH)
    return {
        "seconds from process start, caches empty": cold_s,
        "seconds, kernels warm": warm_s,
    }, mean


def pod(order: Any, task: str, worlds: int, recipe: Mapping[str, Any]) -> Found:
    """Steps/s that a fused pod's learner tells, in a job of one agent with all its services."""
    settle_s, seconds = 20.0, 20.0
    if order.tiny:
        settle_s, seconds, worlds, recipe = 1.0, 1.0, 16, ON_POLICY
    environment = Task(task, {"id": task}, recipe, worlds, settle_s)
    run = job(environment, FUSED, START_S + settle_s + seconds)
    measured = run_job(run, Path(), 150.0, PODRACER_DEVICE=order.device)
    told = measured.last("progress")
    if told is None or told[1]["best_return"] is None:
        sys.exit(f"the job has no return: {measured.tail[-300:]}")
    return {"steps/s": steady_pace(measured, settle_s)}, told[1]["best_return"]


def purejaxrl(order: Any, worlds: int) -> Found:
    """PureJaxRL's own ppo.py on gymnax, its networks 64-64; the return is that of training
    episodes, as it tells it."""
    sys.path[:0] = [order.purejaxrl, f"{order.purejaxrl}/purejaxrl"]
    import jax
    from purejaxrl.ppo import make_train

    updates, worlds = (2, 16) if order.tiny else (UPDATES, worlds)
    settings: dict[str, Any] = {
        "LR": 2.5e-4, "NUM_ENVS": worlds, "NUM_STEPS": 32, "UPDATE_EPOCHS": 4, "NUM_MINIBATCHES": 4,
        "TOTAL_TIMESTEPS": updates * worlds * 32, "GAMMA": 0.99, "GAE_LAMBDA": 0.95,
        "CLIP_EPS": 0.2, "ENT_COEF": 0.01, "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5,
        "ACTIVATION": "tanh", "ANNEAL_LR": True, "ENV_NAME": "CartPole-v1", "DEBUG": False,
    }  # fmt: skip
    keys = jax.random.split(jax.random.PRNGKey(order.seed), order.repeats + 1)
    begin = time.perf_counter()
    compiled = jax.jit(make_train(settings)).lower(keys[0]).compile()
    figures, paces, returns = {"seconds to compile": time.perf_counter() - begin}, [], []
    for key in keys:
        begin = time.perf_counter()
        found = jax.block_until_ready(compiled(key))["metrics"]["returned_episode_returns"]
        paces.append(updates * worlds * 32 / (time.perf_counter() - begin))
        returns.append(float(found[-1].mean()))
    return figures | {"steps/s": statistics.median(paces[1:])}, statistics.fmean(returns)


class Traffic(TorchDispatchMode):
    """Notes each call's name and the bytes of its tensors, in and out, and marks it for the
    profiler by its number."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        with torch.profiler.record_function(f"{MARK}{len(self.calls)}"):
            result = function(*arguments, **(named or {}))
        sizes = {
            each.data_ptr(): min(each.nbytes, each.untyped_storage().nbytes())
            for each in tree_leaves((arguments, named, result))
            if isinstance(each, torch.Tensor)
        }
        self.calls.append((str(function), sum(sizes.values())))
        return result


def profile(title: str, act: Callable[[], object]) -> None:
    """Print the kernels of a call by name: how many, how long, and bytes/s by the tensors of the
    call that started them (Warp's have none). On a CPU the calls stand for kernels."""
    act()
    with torch.profiler.profile() as profiler, Traffic() as traffic:
        act()
        if on_gpu := torch.cuda.is_available():
            torch.cuda.synchronize()
    table: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])  # count, µs, bytes
    for event in profiler.events():
        is_mark, took_us = event.name.startswith(MARK), event.time_range.elapsed_us()
        if event.device_type != torch.autograd.DeviceType.CPU:
            found = [] if is_mark else [(event.name, 1, took_us, 0.0)]
        elif is_mark:
            name, size = traffic.calls[int(event.name.removeprefix(MARK))]
            kernels = [(one.name, one.duration) for one in _kernels(event)]
            total_us = sum(us for _, us in kernels) or 1.0
            found = [(kernel, 0, 0.0, size * us / total_us) for kernel, us in kernels]
            found = found if on_gpu else [(name, 1, took_us, size)]
        else:
            continue
        for name, *figures in found:
            table[name] = [before + more for before, more in zip(table[name], figures, strict=True)]
    cells = [
        [name[:80], count, us / 1e3, size / us * 1e6 if us else 0.0]
        for name, (count, us, size) in table.items()
    ]
    cells.sort(key=lambda row: -row[2])
    title += f": {sum(row[1] for row in cells):,} kernels, {sum(row[2] for row in cells):.3g} ms"
    print_table(title, ["kernel", "count", "ms", "bytes/s"], cells[:KERNELS])


def _kernels(event: Any) -> Iterator[Any]:
    """Those that an event or one inside it has started."""
    yield from event.kernels
    for inside in event.cpu_children:
        yield from _kernels(inside)


FUNCTIONS: Mapping[str, Callable[..., Found]] = {
    each.__name__: each for each in (rounds, replaying, train, start, pod, purejaxrl)
}

"""Environment steps/s on a CUDA device: MuJoCo's tasks on MuJoCo Warp, CartPole in torch, and PPO on Ant.

A step is one decision: the 5 physics steps of Ant's and Humanoid's frame skip count as one. Nothing learns but in the
last row. Actions are drawn beforehand; episodes end and start again within the step, as in training, after a warm-up
that compiles the kernels, captures the graph and lets the episodes come out of step with one another.

CartPole steps from one CUDA graph too, captured here by torch. Without a CUDA device tiny batches step on the CPU, to
see that it runs; no target is measured then.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from report import Target, finish, print_table, spread, versions

from podracer_core.algorithms.algorithm import algorithm_class
from podracer_core.algorithms.cohort import CohortConfig, MemberConfig
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.device.torch_settings import set_up_torch
from podracer_core.environments.registry import make_vec_environment
from podracer_core.environments.vec_environment import VecEnvironment

TARGETS = {"Ant-v5": 300e3, "Humanoid-v5": 300e3, "CartPole-v1": 300e6}
OTHERS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
ACTION_BATCHES = 16
RECIPE = {"horizon": 16, "minibatch_size": 32_768, "epochs": 4, "hidden_sizes": (256, 256)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short windows, only what has a target")
    parser.add_argument("--worlds", type=int, default=8192, help="of MuJoCo")
    parser.add_argument("--cart-poles", type=int, default=1 << 20)
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    place = torch.cuda.get_device_name() if on_gpu else "NO CUDA DEVICE: tiny batches on the CPU, no target measured"
    print(versions("torch", "mujoco-core", "mujoco-warp", "warp-lang"), "·", place)
    set_up_torch(None)
    worlds, cart_poles = (options.worlds, options.cart_poles) if on_gpu else (64, 1024)
    repeats, window_s = (3, 2.0) if options.quick else (7, 5.0)
    if not on_gpu:
        repeats, window_s = 3, 0.2
    names = [*TARGETS] if options.quick or not on_gpu else [*TARGETS, *OTHERS]

    rows, figures = [], {}
    for name in names:
        num_envs = cart_poles if name == "CartPole-v1" else worlds
        speeds, broken = measure(name, num_envs, device, repeats, window_s)
        rows.append([name, num_envs, spread(speeds), broken])
        figures[name] = statistics.median(speeds)
    speeds = measure_training(worlds, device, repeats)
    rows.append(["PPO on Ant-v5, learning included", worlds, spread(speeds), ""])
    figures["PPO on Ant-v5"] = statistics.median(speeds)
    print_table(
        f"Environment steps/s on {device}, median of {repeats} (least – greatest)",
        ["environment", "at once", "steps/s", "broken worlds"],
        rows,
    )
    targets = {name: Target(figures[name] if on_gpu else None, target) for name, target in TARGETS.items()}
    finish("cuda_environments", {"device": place, **figures}, targets)


def measure(name: str, num_envs: int, device: str, repeats: int, window_s: float) -> tuple[list[float], int]:
    """Steps/s of each window, and how many worlds broke in all of them."""
    kwargs = {} if name == "CartPole-v1" else {"engine": "warp"}
    environment = make_vec_environment(EnvironmentSpec(id=name, kwargs=kwargs), num_envs, device)
    environment.reset(torch.arange(num_envs, device=device))
    act = stepper(environment, device)
    for _ in range(100 if device == "cuda" else 3):
        act()
    count = int(max(window_s / timed(act, 10, device) * 10, 1))
    speeds = [count * num_envs / timed(act, count, device) for _ in range(repeats)]
    broken = getattr(environment, "broken_count", torch.zeros(1)).sum()
    environment.close()
    return speeds, int(broken)


def stepper(environment: VecEnvironment, device: str) -> Callable[[], None]:
    """A call that steps under one of a few batches of random actions, in turn."""
    space = environment.action_space
    space.seed(0)
    one = torch.tensor(np.array([space.sample() for _ in range(1024)]), device=device)
    order = torch.randint(1024, (ACTION_BATCHES, environment.num_envs), device=device)
    batches = [one[each] for each in order]
    turn = 0

    def step() -> None:
        nonlocal turn
        turn = (turn + 1) % ACTION_BATCHES
        environment.step(batches[turn])

    if device != "cuda" or hasattr(environment, "physics"):  # MuJoCo's environments make a graph themselves
        return step
    action = batches[0].clone()
    environment.step(action)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        environment.step(action)

    def replay() -> None:
        nonlocal turn
        turn = (turn + 1) % ACTION_BATCHES
        action.copy_(batches[turn])
        graph.replay()

    return replay


def timed(act: Callable[[], None], count: int, device: str) -> float:
    """Seconds for `count` calls, until the device has done them."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        act()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure_training(num_envs: int, device: str, repeats: int) -> list[float]:
    """Steps/s of PPO, collecting and learning, an update each."""
    environment = make_vec_environment(EnvironmentSpec(id="Ant-v5", kwargs={"engine": "warp"}), num_envs, device)
    recipe = RECIPE if device == "cuda" else RECIPE | {"minibatch_size": 256}
    cohort = CohortConfig("ppo", (MemberConfig("ppo", 0),), recipe)
    algorithm = algorithm_class("ppo")(cohort, environment.observation_space, environment.action_space, device)
    collector = Collector(environment, algorithm.actor, torch.arange(1, device=device))

    def update() -> None:
        algorithm.update(collector.collect(algorithm.horizon, policy_version=algorithm.version))

    for _ in range(3):
        update()
    speeds = [algorithm.horizon * num_envs / timed(update, 1, device) for _ in range(repeats)]
    environment.close()
    return speeds


if __name__ == "__main__":
    main()

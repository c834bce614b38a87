"""Environment steps/s of PPO on one CUDA device, learning included, and what a cohort costs beside one agent.

CartPole-v1 collects and trains in one process, in lock-step and with the next rollout on a stream of its own, with two
hidden layers of 64 units and with one; all of it is CUDA graphs after a warm-up. What has been timed is what has
learned: each agent goes on until it has 475, and 100 fresh greedy episodes confirm it. A cohort
of 32 agents takes as many steps each as the one agent beside it: the two are timed in turns. Without a CUDA device tiny
batches run on the CPU, to see that it runs; no target is measured then.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from cuda_environments import timed
from report import Target, finish, print_table, spread, versions

from podracer_core.algorithms.algorithm import algorithm_class
from podracer_core.algorithms.cohort import CohortConfig, MemberConfig
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.device.torch_settings import set_up_torch
from podracer_core.environments.registry import make_vec_environment
from podracer_core.evaluate import GreedyEvaluator
from podracer_core.random_numbers import CONFIRMATION, SCREENING, evaluation_seeds
from podracer_core.training.source import OverlappingSource

RECIPE = {"horizon": 32, "minibatch_size": 0, "epochs": 4, "hidden_sizes": (64, 64)}
COHORT = 32
RETURN, EPISODES, PATIENCE_S = 475.0, 100, 20.0
CART_POLE = EnvironmentSpec(id="CartPole-v1")
WARM_UP = 6  # two plain calls and a capture for each of two buffers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short windows")
    parser.add_argument("--worlds", type=int, default=16_384, help="of the one agent that is to be fast")
    parser.add_argument("--member-worlds", type=int, default=256, help="of each agent beside a cohort")
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    place = torch.cuda.get_device_name() if on_gpu else "NO CUDA DEVICE: tiny batches on the CPU, no target measured"
    print(versions("torch"), "·", place)
    worlds, member_worlds = (options.worlds, options.member_worlds) if on_gpu else (256, 16)
    repeats, window_s = (3, 1.0) if options.quick else (9, 4.0)
    if not on_gpu:
        repeats, window_s = 3, 0.2

    set_up_torch(None)
    fast = {
        f"{name}, {'-'.join(map(str, sizes))}": Trainer(1, worlds, device, ahead, hidden_sizes=sizes)
        for name, ahead in (("lock-step", 0), ("overlapping", 1))
        for sizes in ((64, 64), (64,))
    }
    speeds = {name: [trainer.steps_per_second(window_s) for _ in range(repeats)] for name, trainer in fast.items()}
    returns = {name: trainer.confirmed(PATIENCE_S if on_gpu else 0.0) for name, trainer in fast.items()}
    fast.clear()
    one, cohort = Trainer(1, member_worlds, device, 0), Trainer(COHORT, member_worlds, device, 0)
    ratios = [cohort.round_s(window_s) / one.round_s(window_s) for _ in range(repeats)]

    print_table(
        f"PPO on CartPole-v1 on {device}, environment steps/s with learning, median of {repeats} (least – greatest)",
        ["", "agents", "environments each", "steps/s", f"return of {EPISODES} episodes", "steps"],
        [[name, 1, worlds, spread(found), *returns[name]] for name, found in speeds.items()],
    )
    print_table(
        "A cohort beside one agent, time of a rollout and the update on it",
        ["agents", "environments each", "times as long as one agent"],
        [[COHORT, member_worlds, spread(ratios)]],
    )
    medians, ratio = {name: statistics.median(found) for name, found in speeds.items()}, statistics.median(ratios)
    solved = [medians[name] for name, (mean, _) in returns.items() if mean >= RETURN]
    best = max(solved, default=None) if on_gpu else None
    finish(
        "cuda_training",
        {"device": place, **medians, **{f"{name}, return": mean for name, (mean, _) in returns.items()}}
        | {"cohort_ratio": ratio},
        {
            f"PPO on CartPole, steps/s of those with {RETURN:.0f} confirmed": Target(best, 13e6),
            "a cohort of 32, times one agent": Target(ratio if on_gpu else None, 3.0, at_most=True),
        },
    )


class Trainer:
    """Agents that train; every call of `round` is a rollout and an update."""

    def __init__(
        self, members: int, num_envs: int, device: str, ahead: int, hidden_sizes: tuple[int, ...] = (64, 64)
    ) -> None:
        environment = make_vec_environment(CART_POLE, members * num_envs, device)
        spaces: tuple[Any, Any] = (environment.observation_space, environment.action_space)
        recipe = RECIPE | {"hidden_sizes": hidden_sizes}
        cohort = CohortConfig("ppo", tuple(MemberConfig(str(seed), seed) for seed in range(members)), recipe)
        self._algorithm = algorithm_class("ppo")(cohort, *spaces, device)
        actor = self._algorithm.make_actor(cohort, *spaces, device)
        collector = Collector(environment, actor, torch.arange(members, device=device), buffers=2)
        self._source = OverlappingSource(collector, self._algorithm, ahead)
        self._evaluator = GreedyEvaluator(lambda count: make_vec_environment(CART_POLE, count, device, evaluation=True))
        self._steps, self._device = members * num_envs * self._algorithm.horizon, device
        self._rounds = 0
        for _ in range(WARM_UP):
            self.round()

    def round(self) -> None:
        """Collect and learn, without waiting for the device."""
        self._rounds += 1
        self._algorithm.update(self._source.collect())

    def round_s(self, window_s: float) -> float:
        """Seconds of a round, over about `window_s`."""
        count = max(1, int(window_s / timed(self.round, 2, self._device) * 2))
        return timed(self.round, count, self._device) / count

    def confirmed(self, patience_s: float) -> tuple[float, int]:
        """The mean return of fresh greedy episodes once it is `RETURN`, or as it is after `patience_s`, and the steps
        that have been learned from. A mean that passes is that of other episodes than those that showed it."""
        start = time.monotonic()
        while time.monotonic() < start + patience_s and self._mean(SCREENING) < RETURN:
            for _ in range(10):
                self.round()
        return self._mean(CONFIRMATION), self._rounds * self._steps

    def _mean(self, purpose: int) -> float:
        (result,) = self._evaluator.evaluate(self._algorithm.actor, evaluation_seeds(self._rounds, purpose, EPISODES))
        return result.mean

    def steps_per_second(self, window_s: float) -> float:
        """Environment steps of all agents."""
        return self._steps / self.round_s(window_s)


if __name__ == "__main__":
    main()

"""How often PPO forgets CartPole-v1 again: eight agents of 256 environments each as one cohort, for
80 updates.

A dip: more than 40 failures within 8,192 steps of an agent (32 of each environment) after 8,192
steps with 5 failures or fewer. The old recipe lets all environments begin at age 0 and learns from
32 steps of each; the default is what an agent gets that names no hyperparameter; --ablation adds
each change alone, and adaptive learning rates. Nothing is timed, so other work on the machine
changes no figure."""

from __future__ import annotations

import argparse
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from report import Target, finish, print_table, versions

ENVS, MEMBERS, WINDOW = 256, 8, 32
GOOD, BAD = 5, 40  # failures in a window
MOST_DIPPED = 1  # of the members of all sets


@dataclass(frozen=True)
class Recipe:
    title: str
    random_ages: bool = True
    hyperparameters: dict[str, Any] = field(default_factory=dict)


OLD = {"horizon": 32, "minibatch_size": 2048}
RECIPES = {
    "old": Recipe("old: horizon 32, all begin at age 0", False, OLD),
    "default": Recipe("default"),
}
ABLATION = {
    "ages": Recipe("random ages, horizon 32", True, OLD),
    "horizon": Recipe("default horizon, all begin at age 0", False),
    "adaptive": Recipe("default, desired_kl 0.01", True, {"desired_kl": 0.01}),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="one set of seeds, 24 updates: under a minute"
    )
    parser.add_argument(
        "--sets", type=int, nargs="+", default=[0, 1, 2], help="sets of eight seeds"
    )
    parser.add_argument(
        "--updates", type=int, default=80, help="of each recipe, however long its rollouts are"
    )
    parser.add_argument(
        "--recipes", nargs="+", choices=[*RECIPES, *ABLATION], default=list(RECIPES)
    )
    parser.add_argument(
        "--ablation",
        action="store_true",
        help="each change alone, and adaptive learning rates, too",
    )
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    options = parser.parse_args()
    sets, updates = ([0], 24) if options.quick else (options.sets, options.updates)
    known = RECIPES | ABLATION
    recipes = known if options.ablation else {name: known[name] for name in options.recipes}
    print(versions("torch"), f"· {updates} updates, sets {sets} of {MEMBERS} seeds")
    found: dict[str, list[list[Member]]] = {name: [] for name in recipes}
    for number in sets:
        seeds = range(number * MEMBERS, (number + 1) * MEMBERS)
        for name, recipe in recipes.items():
            failures = _train(recipe, list(seeds), updates, options.threads)
            found[name].append([_watch(list(counts)) for counts in zip(*failures, strict=True)])
    print_table(
        "Members with dips, of those that became good; most failures; times 8,192 steps until "
        "good, median",
        ["recipe", *(f"set {number}" for number in sets), "worst", "good after"],
        [
            [recipes[name].title, *(_share(each) for each in groups), *_overall(groups)]
            for name, groups in found.items()
        ],
    )
    figures = {
        name: [[asdict(member) for member in group] for group in groups]
        for name, groups in found.items()
    }
    dipped = sum(map(_dipped, found["default"])) if "default" in found else None
    finish("dips", figures, {"members_with_dips": Target(dipped, MOST_DIPPED, at_most=True)})


@dataclass(frozen=True)
class Member:
    """One agent: the window that was good first, how many bad ones came after it, and the most
    failures in one."""

    good_after: int | None
    dips: int
    worst: int


def _watch(failures: list[int]) -> Member:
    """Of one agent, window by window."""
    first = next((index for index, count in enumerate(failures) if count <= GOOD), None)
    if first is None:
        return Member(None, 0, 0)
    later = failures[first + 1 :]
    return Member(first + 1, sum(count > BAD for count in later), max(later, default=0))


def _dipped(group: list[Member]) -> int:
    return sum(member.dips > 0 for member in group)


def _share(group: list[Member]) -> str:
    return f"{_dipped(group)} of {sum(member.good_after is not None for member in group)}"


def _overall(groups: list[list[Member]]) -> tuple[int, object]:
    members = [member for group in groups for member in group]
    good = [member.good_after for member in members if member.good_after is not None]
    return max(member.worst for member in members), statistics.median(good) if good else "never"


def _train(recipe: Recipe, seeds: list[int], updates: int, threads: int) -> list[list[int]]:
    """Failures of each member in each window of 8,192 of its steps."""
    import torch

    from podracer_core.algorithms import CohortConfig, MemberConfig, algorithm_class
    from podracer_core.catalogue.environments import EnvironmentSpec
    from podracer_core.collect import Collector
    from podracer_core.environments import make_vec_environment

    torch.set_num_threads(threads)
    members = tuple(MemberConfig(f"agent-{seed}", seed) for seed in seeds)
    environment = make_vec_environment(EnvironmentSpec(id="CartPole-v1"), len(seeds) * ENVS)
    algorithm = algorithm_class("ppo")(
        CohortConfig("ppo", members, recipe.hyperparameters),
        environment.observation_space,
        environment.action_space,
    )
    collector = Collector(
        environment, algorithm.actor, torch.tensor(seeds), random_ages=recipe.random_ages
    )
    failures: list[list[int]] = []
    for _ in range(updates):
        rollout = collector.collect(algorithm.horizon, policy_version=algorithm.version)
        failures += [part.sum((0, 2)).tolist() for part in rollout.terminated.split(WINDOW)]
        algorithm.update(rollout)
    return failures


if __name__ == "__main__":
    main()

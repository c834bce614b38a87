"""Generators on synthetic agents, through the real proposals, submissions and database: a short
form of the benchmark.

`benchmarks/generators.py` runs all landscapes over 20 seeds; docs/benchmarks/generators.md has its
figures."""

from __future__ import annotations

import statistics
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from podracer_leaderboard.server import MIGRATIONS
from podracer_platform.database import Database, open_database
from support.new_database import new_database

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from synthetic.landscapes import LANDSCAPES, Drift, Mixed, SlowStarters
from synthetic.pool import Setting, run_job

GENERATORS = ("tournament", "generational", "elites", "search", "halving", "asha")


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(
        new_database(tmp_path / "leaderboard.sqlite", MIGRATIONS), MIGRATIONS
    ) as opened:
        yield opened


async def gains(
    database: Database, seeds: int, rounds: int, population: int
) -> dict[str, list[float]]:
    """What each generator's agents reach beyond those of random search with the same seed and
    budget."""
    found: dict[str, list[float]] = {generator: [] for generator in GENERATORS}
    for seed in range(seeds):
        outcomes = {
            generator: await run_job(
                database,
                Setting(Mixed, generator, seed, rounds, population, pods=1, members=population),
            )
            for generator in ("random", *GENERATORS)
        }
        assert len({outcome.env_steps for outcome in outcomes.values()}) == 1
        for generator in GENERATORS:
            found[generator].append(outcomes[generator].value - outcomes["random"].value)
    return found


@pytest.mark.thorough
async def test_every_generator_beats_random_search(database):
    for generator, gained in (await gains(database, seeds=4, rounds=40, population=4)).items():
        assert statistics.median(gained) > 0, (generator, gained)


@pytest.mark.slow
async def test_every_generator_beats_random_search_on_most_of_twelve_seeds(database):
    for generator, gained in (await gains(database, seeds=12, rounds=64, population=8)).items():
        won, lost = sum(gain > 0 for gain in gained), sum(gain < 0 for gain in gained)
        assert won >= max(8, (2 if generator == "asha" else 3) * lost), (generator, gained)


async def test_the_same_seed_and_order_of_completions_give_the_same_job(database, tmp_path):
    setting = Setting(Drift, "search", 1, rounds=32)
    first = await run_job(database, setting)
    async with open_database(f"sqlite:///{tmp_path}/another.sqlite", MIGRATIONS) as another:
        assert await run_job(another, setting) == first


async def test_a_budget_is_used_up_and_not_exceeded(database):
    outcome = await run_job(
        database, Setting(Drift, "tournament", 0, rounds=30, evolution={"adaptive_rounds": True})
    )
    # members of a last cohort share what is left evenly
    assert 30_000 - 8 <= outcome.env_steps <= 30_000


@pytest.mark.parametrize("landscape", LANDSCAPES)
def test_training_is_a_known_function(landscape):
    drawn = landscape(Random(3))
    values = {"learning_rate": 1e-3, "gamma": 0.95, "clip_range": 0.2, "epochs": 4}
    once = drawn.train(drawn.fresh, "ppo", values, 4.0)
    halves = drawn.train(drawn.train(drawn.fresh, "ppo", values, 2.0), "ppo", values, 2.0)
    assert once == pytest.approx(halves)
    assert drawn.value(once) == drawn.value(halves) >= 0.0 or once != halves
    assert landscape(Random(3)).train(drawn.fresh, "ppo", values, 4.0) == once


def test_slow_starters_begin_worst_and_end_best():
    drawn = SlowStarters(Random(0))
    curves = {}
    for gamma in (0.9, 0.999):
        state, curves[gamma] = drawn.fresh, []
        for _ in range(30):
            state = drawn.train(state, "ppo", {"learning_rate": 1e-3, "gamma": gamma}, 1.0)
            curves[gamma].append(drawn.value(state))
    assert curves[0.999][2] < curves[0.9][2]
    assert curves[0.999][-1] > 1.5 * curves[0.9][-1]


def test_what_is_best_in_the_drifting_landscape_changes_as_an_agent_learns():
    drawn = Drift(Random(0))

    def gain(skill: float, rate: float, gamma: float) -> float:
        return drawn.train((skill,), "ppo", {"learning_rate": rate, "gamma": gamma}, 1.0)[0] - skill

    assert gain(0.0, 4e-3, 0.925) > 5 * gain(0.0, 2e-4, 0.98)
    assert gain(0.9, 2e-4, 0.98) > 5 * gain(0.9, 4e-3, 0.925)

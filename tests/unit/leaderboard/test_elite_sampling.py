"""Children drawn from where the elites are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from podracer_core.catalogue import (
    Choice,
    HyperparameterValue,
    IntegerInterval,
    Interval,
    Range,
    find_algorithm,
)
from podracer_core.evolution import (
    Action,
    Agent,
    Cohort,
    CohortRequest,
    Elites,
    NewAgent,
    Population,
    Rules,
    SearchSpace,
    Start,
    State,
    Tournament,
    cholesky,
    sample_around,
    shape_of,
    shrink,
)

RATE, GAMMA = Interval(1e-4, 1e-2, logarithmic=True), Interval(0.9, 0.999)
RANGES: Mapping[str, Range] = {"learning_rate": RATE, "gamma": GAMMA}
SPACE = SearchSpace({"ppo": 1.0}, {"ppo": RANGES})
RULES = Rules(population=8, leaderboard_size=4, exploration=0.0)
DEFAULTS = find_algorithm("ppo").defaults()


def test_the_factor_gives_the_matrix_back():
    matrix = [[4.0, 2.0, 0.6], [2.0, 5.0, -1.0], [0.6, -1.0, 3.0]]
    lower = cholesky(matrix)
    product = [
        [math.fsum(a * b for a, b in zip(lower[i], lower[j], strict=True)) for j in range(3)]
        for i in range(3)
    ]
    assert product == [pytest.approx(row) for row in matrix]


def test_few_elites_are_believed_little_and_many_almost_alone():
    """Of one: the even distribution over a range of width 6, variance 3. Of four: three parts seen,
    one believed."""
    assert shrink([[0.0]], [6.0], 1) == [[3.0]]
    assert shrink([[1.0, 0.5], [0.5, 1.0]], [6.0, 6.0], 4) == [[1.5, 0.375], [0.375, 1.5]]
    assert shrink([[1.0]], [6.0], 1000) == [[pytest.approx(1.0, abs=0.01)]]


def test_samples_have_the_mean_and_the_correlation_of_the_elites():
    """A high learning rate goes with a low gamma in all of 40 elites."""
    elites = [
        {"learning_rate": 10 ** (-3 + 0.01 * (i - 20)), "gamma": 0.95 - 0.001 * (i - 20)}
        for i in range(40)
    ]
    random = Random(0)
    drawn = [sample_around(elites, RANGES, random) for _ in range(2000)]
    rates = [math.log10(float(each["learning_rate"])) for each in drawn]  # type: ignore[arg-type]
    gammas = [float(each["gamma"]) for each in drawn]  # type: ignore[arg-type]
    assert statistics.mean(rates) == pytest.approx(-3.0, abs=0.02)
    assert statistics.mean(gammas) == pytest.approx(0.95, abs=0.002)
    assert statistics.correlation(rates, gammas) < -0.5


def test_samples_stay_inside_whole_numbers_whole_and_what_is_no_number_is_not_sampled():
    ranges = {
        **RANGES,
        "epochs": IntegerInterval(2, 4, logarithmic=True),
        "horizon": Choice((16, 32)),
    }
    elites = [{"learning_rate": 1e-2, "gamma": 0.999, "epochs": 4, "horizon": 16}] * 3
    random = Random(0)
    for _ in range(300):
        drawn = sample_around(elites, ranges, random)
        assert set(drawn) == {"learning_rate", "gamma", "epochs"}
        assert all(ranges[name].contains(value) for name, value in drawn.items())


def test_elites_that_are_all_alike_are_no_dead_end():
    random = Random(0)
    rates = [
        sample_around([{"learning_rate": 1e-3}] * 4, {"learning_rate": RATE}, random)
        for _ in range(50)
    ]
    assert len({each["learning_rate"] for each in rates}) == 50


def agent(number: int, score: float, rate: float, **changes: object) -> Agent:
    hyperparameters: dict[str, HyperparameterValue] = {
        **DEFAULTS,
        "learning_rate": rate,
        "gamma": 0.95,
    }
    name = f"projects/p/jobs/j/agents/a{number:04}"
    standing = Agent(
        name, number, "ppo", hyperparameters, shape_of("ppo", hyperparameters), State.WAITING, name,
        1, 1000, 15.0, score, score, number, True,
    )  # fmt: skip
    return replace(standing, **changes)  # type: ignore[arg-type]


EIGHT = [
    agent(number, float(number), rate)
    for number, rate in enumerate([1e-4] * 4 + [8e-4, 1e-3, 1.2e-3, 1e-3], 1)
]


def propose(generator: type[Tournament], elites: list[Agent], seed: int = 0) -> Cohort:
    scores = tuple(float(each.score or 0.0) for each in EIGHT)
    people = Population(
        tuple(EIGHT), 8, {"ppo": 8}, {each.name: scores for each in EIGHT}, elites=tuple(elites)
    )
    return generator(SPACE, RULES).propose(people, CohortRequest(8), Random(seed))


@pytest.mark.parametrize("seed", range(5))
def test_losers_give_way_to_children_of_the_best_with_hyperparameters_around_the_elites(seed):
    cohort = propose(Elites, EIGHT[:3:-1], seed)
    children = [each for each in cohort.members if isinstance(each, NewAgent)]
    assert [child.replaced.number for child in children if child.replaced] == [1, 2]
    for child in children:
        assert (child.action, child.start) == (Action.EXPLOIT, Start.COPY)
        assert [parent.number for parent in child.parents] == [8]
        SPACE.check("ppo", child.hyperparameters)


def test_the_center_is_the_elites_mean():
    children = [new for seed in range(100) for new in propose(Elites, EIGHT[:3:-1], seed).created]
    rates = [math.log10(float(child.hyperparameters["learning_rate"])) for child in children]  # type: ignore[arg-type]
    assert statistics.mean(rates) == pytest.approx(-3.0, abs=0.1)


def test_with_fewer_than_three_elites_it_is_the_tournament():
    assert propose(Elites, EIGHT[:5:-1]) == propose(Tournament, EIGHT[:5:-1])


def test_the_same_seed_gives_the_same_children():
    assert propose(Elites, EIGHT[:3:-1], 3) == propose(Elites, EIGHT[:3:-1], 3)

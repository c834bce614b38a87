"""Optuna's suggestions: inside the space, better than chance, the same for the same seed, and
silent."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from podracer_core.catalogue import (
    Choice,
    Fixed,
    HyperparameterValue,
    IntegerInterval,
    Interval,
    Range,
    find_algorithm,
)
from podracer_core.evolution import (
    Action,
    Agent,
    CohortRequest,
    NewAgent,
    Population,
    Rules,
    Search,
    SearchSpace,
    Start,
    State,
    Suggestions,
    make_sampler,
    shape_of,
)
from podracer_core.sections import Round

RULES = Rules(population=8, leaderboard_size=4, exploration=0.0, round=Round(env_steps=1000))
RATE = Interval(1e-4, 1e-2, logarithmic=True)
ONE = SearchSpace({"ppo": 1.0}, {"ppo": {"learning_rate": RATE, "gamma": Interval(0.9, 0.999)}})
SAC: Mapping[str, Range] = {
    "learning_rate": Interval(1e-4, 1e-3, logarithmic=True),
    "batch_size": Choice((64, 128, 256)),
    "hidden_sizes": Choice(((64, 64), (256, 256))),
    "gamma": Fixed(0.97),
}
PPO: Mapping[str, Range] = {
    "learning_rate": RATE,
    "epochs": IntegerInterval(2, 16, logarithmic=True),
}
MANY = SearchSpace({"ppo": 1.0, "sac": 1.0}, {"ppo": PPO, "sac": SAC})


def agent(
    number: int,
    algorithm: str,
    values: Mapping[str, HyperparameterValue],
    score: float | None,
    **changes: object,
) -> Agent:
    hyperparameters: dict[str, HyperparameterValue] = {
        **find_algorithm(algorithm).defaults(),
        **values,
    }
    name = f"projects/p/jobs/j/agents/a{number:04}"
    standing = Agent(
        name, number, algorithm, hyperparameters, shape_of(algorithm, hyperparameters),
        State.WAITING, name, 1, 1000, 15.0, score, score, number, True,
    )  # fmt: skip
    return replace(standing, **changes)  # type: ignore[arg-type]


def past(space: SearchSpace, count: int, best_rate: float = 1e-3) -> list[Agent]:
    """Agents whose score falls off on either side of a learning rate."""
    random, agents = Random(5), []
    for number in range(1, count + 1):
        algorithm = list(space.shares)[number % len(space.shares)]
        values = space.sample(algorithm, random)
        miss = abs(math.log10(float(values["learning_rate"]) / best_rate))  # type: ignore[arg-type]
        agents.append(agent(number, algorithm, values, -miss))
    return agents


def suggest(
    space: SearchSpace, history: Sequence[Agent], seed: int, count: int
) -> list[tuple[str, dict[str, HyperparameterValue]]]:
    suggestions = Suggestions(
        space, RULES, Population((), 8, {}, history=tuple(history)), make_sampler(RULES, seed)
    )
    return [suggestions.suggest(None) for _ in range(count)]


def test_suggestions_are_complete_and_inside_every_kind_of_range():
    found = suggest(MANY, past(MANY, 30), 0, 40)
    assert {algorithm for algorithm, _ in found} == {"ppo", "sac"}
    for algorithm, values in found:
        assert set(values) == set(MANY.ranges[algorithm])
        MANY.check(algorithm, {**find_algorithm(algorithm).defaults(), **values})


def test_an_algorithm_that_is_given_is_kept():
    suggestions = Suggestions(
        MANY, RULES, Population((), 8, {}, history=tuple(past(MANY, 30))), make_sampler(RULES, 0)
    )
    assert {suggestions.suggest("sac")[0] for _ in range(10)} == {"sac"}


def test_suggestions_come_nearer_to_what_was_good_than_chance():
    rates = [float(values["learning_rate"]) for _, values in suggest(ONE, past(ONE, 40), 0, 20)]  # type: ignore[arg-type]
    misses = [abs(math.log10(rate / 1e-3)) for rate in rates]
    assert statistics.mean(misses) < 0.25  # of even draws it is 0.5


def test_what_was_given_up_early_is_worse_than_anything_that_lives():
    """All of one rate were given up after a round, with scores that those of the other rate, which
    live, never had."""
    given_up = [
        agent(
            number,
            "ppo",
            {"learning_rate": 5e-3, "gamma": 0.95},
            90.0 + number,
            state=State.RETIRED,
        )
        for number in range(1, 11)
    ]
    alive = [
        agent(number, "ppo", {"learning_rate": 2e-4, "gamma": 0.95}, float(number), env_steps=9000)
        for number in range(11, 16)
    ]
    rates = [
        float(values["learning_rate"]) for _, values in suggest(ONE, [*given_up, *alive], 0, 20)
    ]  # type: ignore[arg-type]
    assert statistics.median(rates) < 1e-3


def test_the_same_seed_gives_the_same_and_another_another():
    history = past(MANY, 20)
    assert (
        suggest(MANY, history, 1, 5) == suggest(MANY, history, 1, 5) != suggest(MANY, history, 2, 5)
    )


def test_nothing_is_printed(capfd, recwarn):
    suggest(MANY, past(MANY, 20), 1, 2)
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


def test_optuna_is_only_imported_when_something_is_suggested():
    code = "import podracer_core.evolution.optuna_search, sys; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def propose(
    rules: Rules = RULES, space: SearchSpace = ONE, seed: int = 0
) -> tuple[list[Agent], list[NewAgent]]:
    """What becomes of eight agents: who trains on, and who is new."""
    network: dict[str, HyperparameterValue] = (
        {"hidden_sizes": (8, 8)} if "hidden_sizes" in space.ranges["ppo"] else {}
    )
    values = {"learning_rate": 1e-3, "gamma": 0.95, **network}
    eight = [agent(number, "ppo", values, float(number)) for number in range(1, 9)]
    scores = tuple(float(number) for number in range(1, 9))
    people = Population(
        tuple(eight), 8, {"ppo": 8}, {each.name: scores for each in eight}, history=tuple(eight)
    )
    cohort = Search(space, rules).propose(people, CohortRequest(8), Random(seed))
    members = cohort.members
    return [each for each in members if isinstance(each, Agent)], list(cohort.created)


def test_it_trains_on_who_is_not_at_the_bottom_and_suggests_the_others():
    staying, new = propose()
    assert [each.number for each in staying] == [3, 4, 5, 6, 7, 8]
    assert [each.replaced.number for each in new if each.replaced] == [1, 2]
    for each in new:
        assert (each.action, each.start) == (Action.EXPLOIT, Start.COPY)
        assert each.replaced is not None and each.parents[0].number > each.replaced.number
        ONE.check("ppo", each.hyperparameters)
    assert propose() == propose()


def test_with_the_exploration_probability_they_begin_from_nothing():
    _, new = propose(replace(RULES, exploration=1.0))
    assert [(each.action, each.start, each.parents) for each in new] == [
        (Action.FRESH, Start.FRESH, ())
    ] * 2


def test_weights_that_do_not_fit_are_not_taken():
    """All that live have the narrow network; an agent with the wide one begins from scratch."""
    space = SearchSpace(
        {"ppo": 1.0}, {"ppo": {"learning_rate": RATE, "hidden_sizes": Choice(((8, 8), (16, 16)))}}
    )
    new = [each for seed in range(10) for each in propose(space=space, seed=seed)[1]]
    starts = {(each.hyperparameters["hidden_sizes"], each.start) for each in new}
    assert starts == {((8, 8), Start.COPY), ((16, 16), Start.FRESH)}

"""From a LeaderboardSpec to rules and search space, with a violation for each bad field."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf import duration_pb2

from podracer.common.v1 import agent_pb2, environment_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.catalogue import Choice, Fixed, Interval, find_algorithm
from podracer_core.errors import InvalidInput
from podracer_core.evolution import (
    Generational,
    LowerBoundUpdater,
    MeanUpdater,
    RandomSearch,
    Tournament,
)
from podracer_leaderboard.competition import read_competition

Spec = leaderboard_pb2.LeaderboardSpec
Dimension = evolution_pb2.Dimension
Value = agent_pb2.HyperparameterValue

DISCRETE = environment_pb2.EnvironmentDescription(
    action_space=environment_pb2.Space(discrete=environment_pb2.DiscreteSpace(n=2))
)
IMPOSSIBLE = environment_pb2.EnvironmentDescription(
    action_space=environment_pb2.Space(dict=environment_pb2.DictSpace())
)


def spec(**changes: object) -> Spec:
    values = {
        "objective": evolution_pb2.Objective(target_return=1.0),
        "environment_description": DISCRETE,
        **changes,
    }
    return Spec(job="projects/p/jobs/j", **values)  # type: ignore[arg-type]


def ppo(*space: Dimension) -> evolution_pb2.Search:
    return evolution_pb2.Search(
        algorithms=[evolution_pb2.AlgorithmShare(algorithm="ppo")], space=space
    )


def test_what_is_unset_takes_its_default():
    competition = read_competition(spec())
    rules = competition.rules
    assert (rules.population, rules.leaderboard_size, rules.lineage_limit) == (8, 4, 2)
    assert (rules.round_env_steps, rules.round_time_s) == (0, 15.0)
    assert (rules.tournament_size, rules.replaced_fraction, rules.exploration) == (2, 0.25, 0.1)
    assert competition.generator is Tournament
    assert type(competition.updater) is LowerBoundUpdater


def test_what_is_set_is_kept_zero_too():
    evolution = evolution_pb2.Evolution(
        population=6,
        leaderboard_size=5,
        round_env_steps=1000,
        tournament_size=3,
        replaced_fraction=0.0,
        exploration=0.0,
        lineage_limit=1,
    )
    rules = read_competition(spec(evolution=evolution, seed=7)).rules
    assert (rules.population, rules.leaderboard_size, rules.lineage_limit, rules.seed) == (
        6,
        5,
        1,
        7,
    )
    assert (rules.round_env_steps, rules.round_time_s) == (1000, 0.0)
    assert (rules.tournament_size, rules.replaced_fraction, rules.exploration) == (3, 0.0, 0.0)


def test_how_children_are_made_is_the_jobs_wish():
    plain = read_competition(spec()).rules
    assert (plain.selection, plain.crossover, plain.noise_scale, plain.generations) == (
        "tournament",
        0.0,
        0.0,
        0,
    )
    evolution = evolution_pb2.Evolution(
        selection=evolution_pb2.SELECTION_TRUNCATION,
        crossover=0.25,
        noise_scale=0.5,
        generations=7,
        scheduler=evolution_pb2.SCHEDULER_GENERATIONAL,
    )
    rules = read_competition(spec(evolution=evolution)).rules
    assert (rules.selection, rules.crossover, rules.noise_scale, rules.generations) == (
        "truncation",
        0.25,
        0.5,
        7,
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),  # auto: several algorithms
        ({"adaptive_rounds": False}, False),
        ({"generator": "tournament"}, True),
        ({"generator": "random"}, False),
        ({"generator": "random", "adaptive_rounds": True}, True),
        ({"scheduler": evolution_pb2.SCHEDULER_GENERATIONAL}, False),
    ],
)
def test_rounds_are_adaptive_where_a_tournament_has_several_algorithms(changes, expected):
    evolution = evolution_pb2.Evolution(**changes)  # type: ignore[arg-type]
    assert read_competition(spec(evolution=evolution)).rules.adaptive_rounds is expected
    alone = read_competition(spec(evolution=evolution, search=ppo())).rules.adaptive_rounds
    assert alone is bool(changes.get("adaptive_rounds")), (
        "one algorithm: only where the job says so"
    )


def test_the_scheduler_has_a_generator_of_its_own_which_stands_in_for_another():
    generational = evolution_pb2.Evolution(scheduler=evolution_pb2.SCHEDULER_GENERATIONAL)
    assert read_competition(spec()).generator is Tournament
    assert read_competition(spec(evolution=generational)).generator is Generational
    generational.generator = "random"
    named = read_competition(spec(evolution=generational))
    assert (named.generator, named.stand_in) == (RandomSearch, Generational)


def test_the_objectives_statistic_chooses_the_updater_unless_one_is_named():
    objective = evolution_pb2.Objective(
        target_return=1.0, statistic=evolution_pb2.TARGET_STATISTIC_MEAN
    )
    assert type(read_competition(spec(objective=objective)).updater) is MeanUpdater
    named = evolution_pb2.Evolution(updater="lower_bound")
    assert (
        type(read_competition(spec(objective=objective, evolution=named)).updater)
        is LowerBoundUpdater
    )


def test_without_algorithms_all_that_can_act_and_without_a_space_their_own_ranges():
    space = read_competition(spec()).space
    assert "ppo" in space.shares
    searched = {
        knob.name for knob in find_algorithm("ppo").hyperparameters if knob.search is not None
    }
    assert set(space.ranges["ppo"]) == searched


def test_discounts_are_searched_by_their_distance_from_one():
    for name, own in read_competition(spec()).space.ranges["ppo"].items():
        if isinstance(own, Interval):
            assert (own.near_one, own.logarithmic or not own.near_one) == (
                name in ("gamma", "gae_lambda"),
                True,
            )
    ranges = {"uniform": evolution_pb2.Interval(low=0.9, high=0.99)}
    asked = ppo(
        Dimension(hyperparameter="gamma", **ranges),
        Dimension(hyperparameter="clip_range", **ranges),
    )
    assert read_competition(spec(search=asked)).space.ranges["ppo"] == {
        "gamma": Interval(0.9, 0.99, near_one=True),
        "clip_range": Interval(0.9, 0.99),
    }


def test_a_space_names_all_that_is_searched_and_a_range_for_one_algorithm_goes_first():
    search = ppo(
        Dimension(hyperparameter="gamma", algorithm="ppo", fixed=Value(integer=1)),
        Dimension(
            hyperparameter="gamma",
            choice=evolution_pb2.Choice(values=[Value(number=0.9), Value(integer=1)]),
        ),
        Dimension(
            hyperparameter="learning_rate", log_uniform=evolution_pb2.Interval(low=1e-4, high=1e-2)
        ),
        Dimension(
            hyperparameter="hidden_sizes",
            choice=evolution_pb2.Choice(
                values=[Value(integers=agent_pb2.IntegerList(values=[32, 32]))]
            ),
        ),
    )
    assert read_competition(spec(search=search)).space.ranges == {
        "ppo": {
            "gamma": Fixed(1.0),
            "learning_rate": Interval(1e-4, 1e-2, logarithmic=True),
            "hidden_sizes": Choice(((32, 32),)),
        }
    }


def change_evolution(**fields: object) -> Callable[[], Spec]:
    return lambda: spec(evolution=evolution_pb2.Evolution(**fields))  # type: ignore[arg-type]


BAD: dict[str, tuple[Callable[[], Spec], str]] = {
    "unknown algorithm": (
        lambda: spec(
            search=evolution_pb2.Search(algorithms=[evolution_pb2.AlgorithmShare(algorithm="pppo")])
        ),
        "did you mean ppo",
    ),
    "unknown hyperparameter": (
        lambda: spec(search=ppo(Dimension(hyperparameter="gama", fixed=Value(number=0.9)))),
        "did you mean gamma",
    ),
    "low above high": (
        lambda: spec(
            search=ppo(
                Dimension(
                    hyperparameter="gamma", uniform=evolution_pb2.Interval(low=0.99, high=0.9)
                )
            )
        ),
        "low < high",
    ),
    "outside the bounds": (
        lambda: spec(search=ppo(Dimension(hyperparameter="gamma", fixed=Value(number=1.5)))),
        "from 0 to 1",
    ),
    "no range": (lambda: spec(search=ppo(Dimension(hyperparameter="gamma"))), "has no range"),
    "an action space without an algorithm": (
        lambda: spec(environment_description=IMPOSSIBLE),
        "no algorithm can act",
    ),
    "an action space that the algorithm cannot act in": (
        lambda: spec(environment_description=IMPOSSIBLE, search=ppo()),
        "ppo cannot act in Dict()",
    ),
    "auto without an action space": (
        lambda: spec(environment_description=None),
        "needs the environment's action space",
    ),
    "a board larger than the population": (
        change_evolution(population=3, leaderboard_size=4),
        "expected 1 to 3, got 4",
    ),
    "two lengths of a round": (
        change_evolution(round_env_steps=1, round_time=duration_pb2.Duration(seconds=1)),
        "either seconds or env_steps",
    ),
    "a probability above 1": (change_evolution(exploration=1.5), "expected 0.0 to 1.0, got 1.5"),
    "a generator that is not installed": (
        change_evolution(generator="optuna"),
        "no generator 'optuna' is installed; there are: ",
    ),
    "an updater that is not installed": (
        change_evolution(updater="x"),
        "there are: lower_bound, mean",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_right_is_refused_with_what_would_be(case):
    make, expected = BAD[case]
    with pytest.raises(InvalidInput) as caught:
        read_competition(make())
    assert expected in caught.value.message
    assert caught.value.violations

"""Halving on populations that are written out, and the portfolio that it begins with."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from podracer_core.evolution import (
    DIMENSIONS,
    Action,
    Agent,
    AsynchronousHalving,
    Cohort,
    CohortRequest,
    Halving,
    LineRound,
    Population,
    Rules,
    State,
    configuration,
    coordinate,
)
from podracer_core.sections import Evolution, Round
from support.evolution import NARROW, WIDE, Arena, inherited
from support.evolution import make_agent as agent
from support.evolution import make_population as population

RULES = Rules(
    population=8,
    leaderboard_size=4,
    exploration=0.0,
    round=Round(env_steps=1000),
    adaptive_rounds=True,
)


def propose(people: Population, places: int = 8, rules: Rules = RULES) -> Cohort:
    return Halving(NARROW, rules).propose(people, CohortRequest(places), Random(0))


def numbers(cohort: Cohort) -> list[int]:
    return sorted(member.number for member in cohort.members if isinstance(member, Agent))


def stopped(cohort: Cohort) -> list[int]:
    return [each.agent.number for each in cohort.retired]


EIGHT = [agent(number, float(number)) for number in range(1, 9)]
"""All at the end of the first rung, 1,000 steps."""


def further(member: Agent, steps: int) -> Agent:
    return replace(member, env_steps=steps, rung=steps // 1000)


def test_the_first_points_of_a_sobol_sequence():
    points = [[coordinate(number, dimension) for dimension in range(3)] for number in range(4)]
    assert points == [[0.0] * 3, [0.5] * 3, [0.25, 0.75, 0.75], [0.75, 0.25, 0.25]]


@pytest.mark.parametrize("dimension", range(DIMENSIONS))
def test_each_coordinate_is_once_in_each_of_equal_parts(dimension):
    assert sorted(int(32 * coordinate(number, dimension)) for number in range(32, 64)) == list(
        range(32)
    )


def test_a_portfolio_has_the_defaults_and_then_what_fills_the_space():
    first = configuration(NARROW, "ppo", 0, seed=7)
    assert (first["learning_rate"], first["gamma"]) == (1e-3, 0.99)
    rates = [
        configuration(NARROW, "ppo", number, seed=7)["learning_rate"] for number in range(1, 9)
    ]
    assert rates == [
        configuration(NARROW, "ppo", number, seed=7)["learning_rate"] for number in range(1, 9)
    ]
    assert rates[0] != configuration(NARROW, "ppo", 1, seed=8)["learning_rate"]
    # half of a logarithmic range
    assert sum(rate > 1e-3 for rate in rates if isinstance(rate, float)) == 4
    for number in range(20):
        WIDE.check("a2c", configuration(WIDE, "a2c", number, seed=0))


def test_the_first_population_is_fresh_and_trains_up_to_the_end_of_the_first_rung():
    cohort = propose(Population((), 0, {}))
    assert [each.action for each in cohort.created] == [Action.FRESH] * 8
    young = [replace(agent(number, 1.0), env_steps=500) for number in (1, 2)]
    assert numbers(propose(population([*young, *EIGHT[2:]]))) == [1, 2], "the others wait for them"


def test_the_best_third_goes_on_when_all_are_there():
    cohort = propose(population(EIGHT))
    assert (numbers(cohort), stopped(cohort), cohort.created) == ([6, 7, 8], [1, 2, 3, 4, 5], ())
    assert cohort.retired[0].reason == "stopped at place 8 of 8 in rung 1"


def test_no_agent_is_stopped_while_one_still_trains():
    last = replace(agent(1, 9.0), env_steps=500, state=State.TRAINING)
    cohort = propose(population([last, *EIGHT[1:]]), places=2)
    assert (numbers(cohort), stopped(cohort)) == ([6, 7], []), (
        "a free pod takes of the best three, the longest waiting"
    )
    ahead = [replace(further(each, 1500), state=State.TRAINING) for each in EIGHT[5:]]
    assert propose(population([last, *EIGHT[1:5], *ahead])) == Cohort(), (
        "the best third is on its way"
    )


def test_what_was_never_judged_goes_first_and_what_is_pinned_never():
    people = [
        replace(EIGHT[0], pinned=True),
        *EIGHT[1:7],
        replace(EIGHT[7], score=None, best_score=None),
    ]
    assert stopped(propose(population(people))) == [8, 2, 3, 4, 5]


def test_only_children_of_the_last_rung_are_made():
    three = [further(each, 3000) for each in EIGHT[5:]]
    elites = tuple(replace(each, state=State.RETIRED, best_score=99.0) for each in EIGHT[:2])
    people = replace(population(three, created=8), fresh_counts={"ppo": 8})
    cohort = propose(replace(people, agents=(*people.agents, *elites)))
    assert stopped(cohort) == [6, 7]
    assert [new.parents for new in cohort.created] == [(three[2],)] * 3
    assert len(cohort.members) == 4


def test_a_tournament_follows():
    """From the first child on."""
    four = [further(agent(number, float(number)), 4000) for number in (8, 9, 10, 11)]
    cohort = propose(population(four, created=11))
    assert [new.replaced.number for new in cohort.created if new.replaced] == [8]
    assert numbers(cohort) == [9, 10, 11]


def test_a_job_ends_with_descendants_of_the_best():
    arena = Arena(Halving, RULES, NARROW, 3)
    arena.train(
        lambda each: 100.0 - each.number + each.env_steps / 1e6, rounds=14, pods=2, places=4
    )
    assert {each.lineage for each in arena.alive} == {arena.agents[1].name}
    assert {new.parents[0].lineage for new in inherited(arena)} == {arena.agents[1].name}


@pytest.mark.parametrize(
    ("generator", "adaptive"), [("halving", [False, True]), ("asha", [True, True])]
)
def test_rounds_are_adaptive_where_a_generator_needs_them(generator, adaptive):
    rules = [
        Rules.of(Evolution(generator=generator), seed=0, updater="mean", algorithm_count=n)
        for n in (1, 2)
    ]
    assert [each.adaptive_rounds for each in rules] == adaptive


def asynchronous(agents: list[Agent], places: int = 8, population_size: int = 8) -> Cohort:
    """Proposed after rounds of 1,000 steps each."""
    curves = {
        each.name: (LineRound(each.name, each.env_steps - 1000, each.env_steps, each.score or 0.0),)
        for each in agents
    }
    people = replace(population(agents), curves=curves)
    rules = replace(RULES, population=population_size)
    return AsynchronousHalving(NARROW, rules).propose(people, CohortRequest(places), Random(0))


def test_asha_knows_the_curves_by_which_it_promotes_whatever_a_job_says():
    evolution = Evolution(generator="asha", adaptive_rounds=False)
    assert Rules.of(evolution, seed=0, updater="mean", algorithm_count=1).adaptive_rounds


def test_asha_promotes_the_best_third_of_a_rung_and_finishes_what_is_between_rungs():
    assert numbers(asynchronous(EIGHT)) == [7, 8]
    between = [further(EIGHT[0], 2000), *EIGHT[1:]]
    assert numbers(asynchronous(between)) == [1, 7, 8]
    ended = [further(EIGHT[0], 3000), *EIGHT[1:7], further(EIGHT[7], 3000)]
    assert numbers(asynchronous(ended, places=1)) == [8], "the higher rung first"


def test_asha_begins_more_agents_where_none_is_promoted_and_then_goes_on_with_the_best():
    cohort = asynchronous(EIGHT[:2], places=3)
    assert ([each.action for each in cohort.created], numbers(cohort)) == ([Action.FRESH] * 3, [])
    assert numbers(asynchronous(EIGHT[:2], places=1, population_size=2)) == [2]

"""Populations that are written out: who stays, who makes room, and for whom."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from median_stopping.generator import MedianStopping

from podracer_core.catalogue.algorithms import find_algorithm
from podracer_core.catalogue.ranges import Interval
from podracer_core.evolution.agents import Action, Agent, Cohort, CohortRequest, Population, State
from podracer_core.evolution.rules import Rules
from podracer_core.evolution.search_space import SearchSpace, shape_of

SPACE = SearchSpace(
    {"ppo": 1.0}, {"ppo": {"learning_rate": Interval(1e-4, 1e-2, logarithmic=True)}}
)
DEFAULTS = find_algorithm("ppo").defaults()


def waiting(number: int, score: float | None) -> Agent:
    name = f"projects/p/jobs/j/agents/a{number:04}"
    return Agent(
        name=name,
        number=number,
        algorithm="ppo",
        hyperparameters=DEFAULTS,
        shape=shape_of("ppo", DEFAULTS),
        state=State.WAITING,
        lineage=name,
        rung=1,
        env_steps=1000,
        cost_s=15.0,
        score=score,
        best_score=score,
        waiting_since=number,
        started=True,
    )


def propose(agents: list[Agent], places: int = 8, seed: int = 0) -> Cohort:
    scores = tuple(agent.score for agent in agents if agent.score is not None)
    population = Population(
        agents=tuple(agents),
        created=len(agents),
        fresh_counts={"ppo": len(agents)},
        peers={agent.name: scores for agent in agents if agent.score is not None},
    )
    random = Random(seed)  # noqa: S311 - repeatable is what it must be
    return MedianStopping(SPACE, Rules(population=8, seed=seed)).propose(
        population, CohortRequest(places), random
    )


def test_an_agent_below_the_median_makes_room_for_a_fresh_one() -> None:
    cohort = propose([waiting(number, float(number)) for number in range(1, 9)])
    assert sorted(each.number for each in cohort.members if isinstance(each, Agent)) == [5, 6, 7, 8]
    assert [new.replaced.number for new in cohort.created if new.replaced] == [1, 2, 3, 4]
    assert {new.action for new in cohort.created} == {Action.FRESH}
    assert len(cohort.members) == 8


def test_equal_scores_stop_no_agent() -> None:
    assert propose([waiting(number, 5.0) for number in range(1, 9)]).created == ()


def test_fewer_than_four_scores_stop_no_agent() -> None:
    cohort = propose([waiting(number, float(number)) for number in range(1, 4)])
    assert [new.replaced for new in cohort.created] == [None] * 5


def test_who_was_never_judged_trains_on() -> None:
    agents = [waiting(1, None), *(waiting(number, float(number)) for number in range(2, 9))]
    assert agents[0] in propose(agents).members


def test_agents_that_train_are_left_alone_and_count() -> None:
    busy = [replace(waiting(number, 0.0), state=State.TRAINING) for number in range(1, 7)]
    cohort = propose([*busy, waiting(7, 9.0)])
    assert len(cohort.created) == 1
    assert len(cohort.members) == 2


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_seed_gives_the_same_proposal(seed: int) -> None:
    agents = [waiting(number, float(number)) for number in range(1, 9)]
    assert propose(agents, seed=seed) == propose(agents, seed=seed) != propose(agents, seed=3)

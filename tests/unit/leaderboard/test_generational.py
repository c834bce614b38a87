"""Generations: what the barrier waits for, what it does not wait for, and the end of the last
one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from podracer_core.evolution import Agent, Generational, NewAgent, Rules, State
from support.evolution import WIDE, Arena, inherited

RULES = Rules(population=8, leaderboard_size=4, exploration=0.0)


def number(agent: Agent) -> float:
    return float(agent.number)


def test_all_agents_are_made_at_once_and_pods_take_their_share():
    arena = Arena(Generational, RULES)
    first, second, third = (arena.propose(places=3) for _ in range(3))
    assert [len(cohort.members) for cohort in (first, second, third)] == [3, 3, 2]
    assert len(first.created) == 8
    assert arena.propose(places=3).members == ()


def test_a_generation_begins_once_all_agents_have_ended_the_former_one():
    arena = Arena(Generational, RULES)
    arena.propose(places=5)
    for agent in arena.training:
        arena.end_round(agent, number(agent))
    # Five have ended, three have not begun: a pod gets these, and no more.
    rest = arena.propose(places=8)
    assert len(rest.members) == 3
    for agent in arena.training[:2]:
        arena.end_round(agent, number(agent))
    assert arena.propose().members == ()
    arena.end_round(arena.training[0], 1.0)
    following = arena.propose(places=8)
    assert len(following.members) == 8
    assert {member.generation for member in following.members} == {1}


def test_the_worst_part_gives_way_to_mutated_children_of_the_best():
    arena = Arena(Generational, replace(RULES, replaced_fraction=0.5))
    arena.propose()
    for agent in arena.training:
        arena.end_round(agent, number(agent))
    cohort = arena.propose()
    children = [member for member in cohort.members if isinstance(member, NewAgent)]
    assert [child.replaced.number for child in children if child.replaced] == [1, 2, 3, 4]
    assert {parent.number for child in children for parent in child.parents} <= {7, 8}
    assert sorted(member.number for member in cohort.members if isinstance(member, Agent)) == [
        5,
        6,
        7,
        8,
    ]
    assert children[0].reason.startswith("place 8 of 8 in generation 1; from a000")


def test_selection_happens_once_a_generation_however_many_pods_ask():
    arena = Arena(Generational, RULES)
    for _ in range(5):
        for pod in range(4):
            arena.propose(places=2)
            if pod == 1:  # pods come and go: two work at a time
                for agent in arena.training:
                    arena.end_round(agent, number(agent))
        for agent in arena.training:
            arena.end_round(agent, number(agent))
    assert {agent.generation for agent in arena.alive} == {5}
    assert len(inherited(arena)) == 4 * 2


def test_an_agent_that_failed_is_not_waited_for_and_its_place_is_filled_with_the_next_generation():
    arena = Arena(Generational, RULES)
    arena.propose()
    lost, *others = arena.training
    for agent in others:
        arena.end_round(agent, number(agent))
    assert arena.propose().members == ()
    arena.fail(lost)
    cohort = arena.propose()
    assert len(cohort.members) == 8
    vacant = [child for child in cohort.created if child.replaced is None]
    assert [child.generation for child in vacant] == [1]
    assert vacant[0].reason.startswith("a free place in generation 2; from a0")
    assert lost not in vacant[0].parents


def test_where_all_have_failed_a_new_population_begins():
    arena = Arena(Generational, RULES)
    arena.propose()
    for agent in arena.training:
        arena.fail(agent)
    assert len(arena.propose().members) == 8


def test_a_pod_that_can_train_nothing_does_not_begin_the_next_generation():
    arena = Arena(Generational, replace(RULES, exploration=1.0))
    arena.propose()
    for agent in arena.training:
        arena.end_round(agent, number(agent))
    assert arena.propose(algorithms=frozenset({"sac"})).created == ()
    assert len(arena.propose(algorithms=frozenset({"ppo"})).members) == 8


def test_a_round_that_was_given_up_untrained_is_repeated_in_the_same_generation():
    arena = Arena(Generational, RULES)
    arena.propose(places=4)
    given_up = [agent.number for agent in arena.training]
    for agent in arena.training:
        arena.end_round(agent, None, steps=0)
    arena.propose(places=8)
    assert {agent.generation for agent in arena.training} == {0}
    assert set(given_up) <= {agent.number for agent in arena.training}
    assert len(arena.training) == 8


def test_the_last_generation_is_the_last():
    arena = Arena(Generational, replace(RULES, generations=3))
    arena.train(number, rounds=3)
    assert {agent.generation for agent in arena.alive} == {3}
    over = arena.propose()
    assert over.finished
    assert over.members == ()
    assert {agent.state for agent in arena.alive} == {State.WAITING}


def test_without_a_limit_there_is_always_another():
    arena = Arena(Generational, RULES)
    arena.train(number, rounds=30)
    assert {agent.generation for agent in arena.alive} == {30}


@pytest.mark.parametrize("pods", [1, 3, 7])
def test_more_agents_than_pods_and_several_shapes(pods):
    """Each request gets one shape; every agent has had each generation once, however many cohorts
    that takes."""
    arena = Arena(Generational, replace(RULES, population=12, exploration=0.2, generations=6), WIDE)
    for _ in range(200):
        for _ in range(pods):
            if arena.propose(places=2).finished:
                break
        for agent in arena.training:
            arena.end_round(agent, number(agent))
    assert arena.propose().finished
    assert {agent.generation for agent in arena.alive} == {6}
    assert len(arena.alive) == 12

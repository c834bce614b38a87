"""What holds for every generator that comes with the leaderboard, whatever happens to its
agents."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podracer_core.evolution import (
    Action,
    Agent,
    Cohort,
    CohortRequest,
    Elites,
    Generational,
    Halving,
    NewAgent,
    RandomSearch,
    Rules,
    Search,
    Start,
    State,
    Tournament,
    shape_of,
)
from support.evolution import NARROW, WIDE, Arena, inherited, make_agent, make_population

GENERATORS = [Tournament, Generational, RandomSearch, Elites, Search, Halving]
EVOLVING = [Tournament, Generational]
RULES = Rules(population=8, leaderboard_size=4)

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "end", "end", "end", "give up", "fail"]),
        st.integers(1, 9),
        st.one_of(st.none(), st.integers(-3, 3)),
    ),
    max_size=60,
)


def play(arena: Arena, events: list[tuple[str, int, int | None]]) -> list[Cohort]:
    """Pods ask for `number` places; of the training agents the `number`-th ends its round with a
    score."""
    cohorts = []
    for event, number, score in events:
        if event == "ask":
            cohorts.append(arena.propose(number))
        elif training := arena.training:
            agent = training[number % len(training)]
            if event == "fail":
                arena.fail(agent)
            else:
                arena.end_round(
                    agent, None if score is None else float(score), steps=1000 * (event == "end")
                )
    return cohorts


@pytest.mark.parametrize("generator", GENERATORS)
@settings(max_examples=60)
@given(
    events=EVENTS,
    exploration=st.sampled_from([0.0, 0.3, 1.0]),
    selection=st.sampled_from(["tournament", "truncation"]),
    crossover=st.sampled_from([0.0, 0.7]),
    noise_scale=st.sampled_from([0.0, 0.02]),
    fraction=st.sampled_from([0.0, 0.25, 1.0]),
    seed=st.integers(0, 99),
)
def test_whatever_happens_proposals_are_sound_and_repeatable(
    generator, events, seed, fraction, **fields
):
    rules = replace(RULES, replaced_fraction=fraction, **fields)  # type: ignore[arg-type]
    arena = Arena(generator, rules, WIDE, seed)
    cohorts = play(arena, events)  # which checks each as the guard does
    assert cohorts == play(Arena(generator, rules, WIDE, seed), events)
    shapes = Counter(shape[0] for shape in {agent.shape for agent in arena.alive})
    assert all(count <= rules.shape_limit for count in shapes.values())


@pytest.mark.parametrize("generator", GENERATORS)
def test_another_seed_gives_other_agents(generator):
    first, second = (
        Arena(generator, replace(RULES, seed=seed), NARROW, seed).propose() for seed in (1, 2)
    )
    rates = [
        [each.hyperparameters["learning_rate"] for each in cohort.created]
        for cohort in (first, second)
    ]
    assert set(rates[0]) & set(rates[1]) == {1e-3}  # the first has the defaults


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("places", [3, 8])
def test_a_population_of_equal_scores_changes_nothing(generator, places):
    """Not even with all that could be drawn by chance."""
    rules = replace(RULES, exploration=0.5, crossover=0.5, noise_scale=0.1)
    arena = Arena(generator, rules, WIDE)
    arena.train(lambda agent: 5.0, rounds=12, places=places)
    assert len(arena.agents) == 8
    assert {agent.state for agent in arena.agents.values()} == {State.WAITING}
    assert all(agent.rung >= 1 for agent in arena.agents.values())


@pytest.mark.parametrize("generator", EVOLVING)
@pytest.mark.parametrize("selection", ["tournament", "truncation"])
def test_the_best_propagates_and_not_the_worst(generator, selection):
    """Planted: agents 3 and 6 are the best, 2 and 5 the worst; a child is as good as its parent."""
    plan = {3: 9.0, 6: 9.5, 2: -9.0, 5: -8.0}
    rules = replace(RULES, exploration=0.0, selection=selection, tournament_size=4, lineage_limit=8)  # type: ignore[arg-type]
    arena = Arena(generator, rules)

    def score(agent: Agent) -> float:
        return plan.get(int(agent.lineage[-4:]), int(agent.lineage[-4:]) / 10)

    arena.train(score, rounds=1)
    assert [agent.generation for agent in arena.agents.values()] == [1] * 8
    arena.train(score, rounds=12)
    parents = [parent.number for child in inherited(arena) for parent in child.parents]
    assert not {2, 5} & set(parents)
    best = [agent for agent in arena.alive if int(agent.lineage[-4:]) in (3, 6)]
    assert len(best) >= 5
    assert arena.agents[2].state is arena.agents[5].state is State.RETIRED


@pytest.mark.parametrize("generator", EVOLVING)
def test_children_are_mutations_that_keep_their_parents_weights(generator):
    arena = Arena(generator, replace(RULES, exploration=0.0))
    arena.train(lambda agent: float(agent.number), rounds=4)
    children = inherited(arena)
    assert children
    for child in children:
        (parent,) = child.parents
        assert (child.action, child.start, child.noise_scale) == (Action.EXPLOIT, Start.COPY, 0.0)
        assert child.shape == parent.shape
        changed = {
            name
            for name, value in child.hyperparameters.items()
            if value != parent.hyperparameters[name]
        }
        assert changed == {"learning_rate", "gamma"}
        NARROW.check("ppo", child.hyperparameters)


@pytest.mark.parametrize("generator", EVOLVING)
def test_noise_where_the_job_wants_it(generator):
    arena = Arena(generator, replace(RULES, exploration=0.0, noise_scale=0.05))
    arena.train(lambda agent: float(agent.number), rounds=4)
    assert {(child.start, child.noise_scale) for child in inherited(arena)} == {(Start.NOISE, 0.05)}


@pytest.mark.parametrize("generator", EVOLVING)
def test_crossover_fuses_two_parents_of_one_shape_where_there_are_two(generator):
    arena = Arena(generator, replace(RULES, exploration=0.0, crossover=1.0), WIDE)
    arena.train(lambda agent: agent.number + agent.rung / 10, rounds=30)
    children = inherited(arena)
    starts = Counter(child.start for child in children)
    assert starts[Start.FUSE] > 3
    for child in children:
        if child.start is Start.FUSE:
            first, second = child.parents
            assert first.number != second.number
            assert child.shape == first.shape == second.shape
            assert child.noise_scale == 0.0


def test_a_fusion_prefers_relatives_and_has_each_hyperparameter_near_one_of_its_parents():
    arena = Arena(Tournament, replace(RULES, exploration=0.0, crossover=1.0, tournament_size=3))
    arena.train(lambda agent: agent.number / 10 + agent.rung, rounds=20)
    fusions = [child for child in inherited(arena) if child.start is Start.FUSE]
    assert any(child.parents[0].lineage == child.parents[1].lineage for child in fusions)
    near = 0
    for child in fusions:
        own = float(child.hyperparameters["learning_rate"])
        theirs = [float(parent.hyperparameters["learning_rate"]) for parent in child.parents]  # type: ignore[arg-type]
        near += any(abs(own / rate - 1) < 0.2001 for rate in theirs)
    assert near > 0.5 * len(fusions)  # a quarter is drawn anew


@pytest.mark.parametrize("generator", EVOLVING)
def test_what_a_cohort_shares_changes_and_keeps_the_weights(generator):
    arena = Arena(generator, replace(RULES, population=16, exploration=0.0), WIDE)
    arena.train(lambda agent: agent.number + agent.rung / 10, rounds=60, places=16)
    moved = [child for child in inherited(arena) if child.shape != child.parents[0].shape]
    assert moved
    for child in moved:
        (parent,) = child.parents
        changed = {
            name
            for name, value in child.hyperparameters.items()
            if value != parent.hyperparameters[name]
        }
        assert "horizon" in changed
        assert changed <= {"horizon", "learning_rate"}
        assert child.start is Start.COPY


@pytest.mark.parametrize("generator", EVOLVING)
def test_another_network_starts_a_lineage_without_any_effort(generator):
    arena = Arena(generator, replace(RULES, population=16, exploration=1.0), WIDE)
    arena.train(lambda agent: agent.number + agent.rung / 10, rounds=40, places=16)
    rebuilt = [
        (number, new)
        for number, new in arena.origins.items()
        if new.action is Action.EXPLOIT and new.start is Start.FRESH
    ]
    assert rebuilt
    for number, new in rebuilt:
        agent = arena.agents[number]
        assert new.parents == ()
        assert agent.lineage == agent.name
        assert "another network" in new.reason
    assert Counter(new.start for new in arena.origins.values()).keys() == {Start.FRESH}


@pytest.mark.parametrize("crossover", [0.0, 1.0])
@pytest.mark.parametrize("generator", EVOLVING)
def test_a_champion_whose_shape_has_died_out_gives_its_weights_to_a_shape_that_fits(
    generator, crossover
):
    """Two shapes may live, of which the champions on the leaderboard have neither; their network
    fits one of them."""

    def shaped(number: int, score: float, horizon: int, width: int, **changes: object) -> Agent:
        hyperparameters = {
            **make_agent(1).hyperparameters,
            "horizon": horizon,
            "hidden_sizes": (width, width),
        }
        shape = shape_of("ppo", hyperparameters)
        return make_agent(number, score, hyperparameters=hyperparameters, shape=shape, **changes)

    living = [shaped(n, n / 10, 16, 32) for n in range(1, 5)] + [
        shaped(n, n / 10, 16, 64) for n in range(5, 9)
    ]
    champion, second = (shaped(n, 108.0 - n, 32, 64, state=State.RETIRED) for n in (9, 10))
    rules = replace(RULES, exploration=0.0, tournament_size=10, crossover=crossover)
    for seed in range(10):
        people = make_population([*living, champion, second])
        cohort = generator(WIDE, rules).propose(people, CohortRequest(8), Random(seed))
        heirs = [child for child in cohort.created if champion in child.parents]
        assert heirs if generator is Tournament else cohort.created
        assert all(child.shape in (living[0].shape, living[-1].shape) for child in cohort.created)
        assert all(child.hyperparameters["hidden_sizes"] == (64, 64) for child in heirs)


@pytest.mark.parametrize("generator", GENERATORS)
def test_failed_agents_are_replaced(generator):
    arena = Arena(generator, RULES)
    arena.propose()
    for agent in arena.training:
        if agent.number in (2, 5):
            arena.fail(agent)
        else:
            arena.end_round(agent, float(agent.number))
    cohort = arena.propose()
    newcomers = [
        each for each in cohort.members if isinstance(each, NewAgent) and each.replaced is None
    ]
    assert len(newcomers) == 2
    assert len(arena.alive) == 8


@pytest.mark.parametrize("generator", GENERATORS)
def test_pods_get_only_what_they_can_train(generator):
    arena = Arena(generator, RULES, WIDE)
    cohort = arena.propose(algorithms=frozenset({"a2c"}))
    assert {member.algorithm for member in cohort.members} == {"a2c"}
    assert arena.propose(algorithms=frozenset({"sac"})).members == ()


@pytest.mark.parametrize("generator", GENERATORS)
def test_a_cohort_is_no_larger_than_its_shape_is_best_trained_in(generator):
    (shape,) = {agent.shape for agent in Arena(generator, RULES).propose().members}
    arena = Arena(generator, RULES)
    assert [len(arena.propose(places=8, limits={shape: 3}).members) for _ in range(3)] == [3, 3, 2]


def test_random_search_trains_everyone_equally_and_never_copies_or_replaces():
    arena = Arena(RandomSearch, replace(RULES, replaced_fraction=1.0, exploration=1.0), WIDE)
    arena.train(lambda agent: -agent.number, rounds=40, pods=2, places=2)
    assert len(arena.agents) == 8
    assert not inherited(arena)
    rungs = [agent.rung for agent in arena.agents.values()]
    assert max(rungs) - min(rungs) <= 1
    defaults = Counter(
        new.algorithm
        for new in arena.origins.values()
        if new.hyperparameters["learning_rate"] == 1e-3
    )
    assert max(defaults.values()) == 1

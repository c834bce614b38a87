"""The tournament on populations that are written out: who trains on, who gives way, and to whose
child."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from random import Random

from podracer_core.catalogue import Choice, Interval, Range
from podracer_core.evolution import (
    Action,
    Agent,
    Cohort,
    CohortRequest,
    LineRound,
    NewAgent,
    Population,
    Rules,
    SearchSpace,
    Start,
    State,
    Tournament,
    shape_of,
)
from podracer_core.sections import Round
from support.evolution import make_agent as agent
from support.evolution import make_population as population

DEFAULTS = agent(1).hyperparameters
LEARNING_RATE = Interval(1e-4, 1e-2, logarithmic=True)
NARROW = SearchSpace({"ppo": 1.0}, {"ppo": {"learning_rate": LEARNING_RATE}})
WIDE_RANGES: dict[str, Range] = {
    "learning_rate": LEARNING_RATE,
    "horizon": Choice((16, 32, 64, 128)),
}
WIDE = SearchSpace({"ppo": 1.0}, {"ppo": WIDE_RANGES})
RULES = Rules(population=8, leaderboard_size=4, exploration=0.0)


def propose(
    people: Population,
    places: int = 8,
    *,
    rules: Rules = RULES,
    space: SearchSpace = NARROW,
    seed: int = 0,
) -> Cohort:
    return Tournament(space, rules).propose(people, CohortRequest(places), Random(seed))


def new(cohort: Cohort, action: Action) -> list[NewAgent]:
    return [each for each in cohort.created if each.action is action]


def numbers(cohort: Cohort) -> list[int]:
    return [member.number for member in cohort.members if isinstance(member, Agent)]


EIGHT = [agent(number, float(number)) for number in range(1, 9)]


def test_an_empty_board_is_filled_with_fresh_agents():
    cohort = propose(Population((), 0, {}), places=6)
    assert [each.action for each in cohort.created] == [Action.FRESH] * 6
    assert cohort.members == cohort.created
    assert len({each.hyperparameters["learning_rate"] for each in cohort.created}) == 6


def test_no_more_agents_live_than_the_population():
    busy = [agent(number, state=State.TRAINING) for number in range(1, 7)]
    assert len(propose(population(busy), places=8).members) == 2
    busy = [agent(number, state=State.TRAINING) for number in range(1, 9)]
    assert propose(population(busy), places=8).members == ()


def test_a_population_larger_than_its_pods_is_made_full_before_anybody_trains_on():
    first = [agent(number, float(number)) for number in range(1, 5)]
    cohort = propose(population(first), places=3)
    assert [each.action for each in cohort.members if isinstance(each, NewAgent)] == [
        Action.FRESH
    ] * 3
    last = propose(population([*first, *(agent(number, 1.0) for number in range(5, 8))]), places=3)
    assert (len(new(last, Action.FRESH)), len(numbers(last))) == (1, 2)
    waiting = propose(population([agent(1, None, started=False), agent(2, None)]), places=2)
    assert numbers(waiting) == [1, 2], "who waits to begin goes first"


def test_the_bottom_quarter_gives_way_to_children_of_better_ones():
    cohort = propose(population(EIGHT))
    assert numbers(cohort) == [3, 4, 5, 6, 7, 8]
    children = new(cohort, Action.EXPLOIT)
    assert [child.replaced.number for child in children if child.replaced] == [1, 2]
    for child in children:
        assert child.replaced is not None
        (donor,) = child.parents
        assert donor.score is not None and child.replaced.score is not None
        assert donor.score > child.replaced.score
        assert child.hyperparameters["learning_rate"] != donor.hyperparameters["learning_rate"]
        assert child.start is Start.COPY
    assert len(cohort.members) == 8


def test_the_worst_never_propagates_and_better_ones_do_more_often():
    donors = Counter(
        parent.number
        for seed in range(300)
        for child in new(propose(population(EIGHT), seed=seed), Action.EXPLOIT)
        for parent in child.parents
    )
    assert 1 not in donors
    assert [number for number, _ in donors.most_common(3)] == [8, 7, 6]


def test_a_slow_starter_is_judged_in_its_own_rung_only():
    old = [agent(number, 100.0 + number, rung=5) for number in range(1, 5)]
    slow = [agent(number, 10.0, rung=1) for number in range(5, 9)]
    cohort = propose(population([*old, *slow]))
    replaced = [each.replaced.number for each in cohort.created if each.replaced]
    assert replaced == [1]
    assert {5, 6, 7, 8} <= set(numbers(cohort))


def test_a_leader_that_got_worse_than_those_behind_it_gives_way():
    leader = agent(9, 0.5, rung=6)
    behind = [agent(number, float(number), rung=5) for number in range(1, 9)]
    cohort = propose(population([leader, *behind]), rules=replace(RULES, population=9), places=9)
    assert 9 in [each.replaced.number for each in cohort.created if each.replaced]


def test_who_was_never_judged_or_never_trained_stays():
    people = [agent(1, None), agent(2, -50.0, started=False), *EIGHT[2:]]
    assert {1, 2} <= set(numbers(propose(population(people))))


def test_a_loser_trains_on_where_no_better_agent_has_a_checkpoint():
    people = [replace(each, best_score=None) for each in EIGHT]
    assert numbers(propose(population(people))) == list(range(1, 9))


def test_exploration_puts_fresh_agents_in_the_places_of_losers():
    cohort = propose(population(EIGHT), rules=replace(RULES, exploration=1.0))
    assert [each.replaced.number for each in new(cohort, Action.FRESH) if each.replaced] == [1, 2]
    assert len(cohort.members) == 8


def test_failed_agents_are_no_donors_and_their_places_go_to_children():
    failed = agent(9, 99.0, state=State.FAILED)
    people = population([*EIGHT[2:], failed], created=9)
    cohort = propose(people, rules=replace(RULES, tournament_size=8))
    vacant = [each for each in cohort.created if each.replaced is None]
    assert [each.action for each in vacant] == [Action.EXPLOIT] * 2
    assert [parent.number for each in vacant for parent in each.parents] == [8, 8]


def test_retired_agents_on_the_board_are_donors():
    champion = agent(9, 99.0, state=State.RETIRED)
    people = population([*EIGHT, champion], created=9)
    children = new(propose(people, rules=replace(RULES, tournament_size=9)), Action.EXPLOIT)
    assert {parent.number for child in children for parent in child.parents} == {9}


def test_a_cohort_has_the_shape_of_its_longest_waiting_agent_and_the_others_wait_their_turn():
    wide = {**DEFAULTS, "horizon": 128}
    odd = {
        number: replace(EIGHT[number - 1], hyperparameters=wide, shape=shape_of("ppo", wide))
        for number in (3, 5, 7)
    }
    people = population(odd.get(each.number, each) for each in EIGHT)
    rules = replace(RULES, replaced_fraction=0.0)
    assert numbers(propose(people, space=WIDE, rules=rules)) == [1, 2, 4, 6, 8]
    later = population((each for each in people.agents if each.number not in (1, 2)), created=8)
    assert numbers(propose(later, space=WIDE, rules=rules)) == [3, 5, 7]


def test_children_of_another_shape_leave_the_cohort_to_the_others_and_go_together_next():
    wide = {**DEFAULTS, "horizon": 128}
    best = replace(
        EIGHT[7], hyperparameters=wide, shape=shape_of("ppo", wide), state=State.TRAINING
    )
    cohort = propose(
        population([*EIGHT[:7], best]), rules=replace(RULES, tournament_size=8), space=WIDE
    )
    assert numbers(cohort) == [3, 4, 5, 6, 7]
    assert [child.shape == best.shape for child in cohort.created] == [True, True]
    children = [
        agent(
            number,
            None,
            hyperparameters=wide,
            shape=best.shape,
            started=False,
            waiting_since=number - 8,
        )
        for number in (9, 10)
    ]
    busy = [replace(each, state=State.TRAINING) for each in EIGHT[3:7]]
    later = population([EIGHT[2], *busy, best, *children])
    assert numbers(propose(later, space=WIDE, places=2)) == [9, 10]


def test_where_all_give_way_to_another_shape_the_new_ones_are_the_cohort():
    wide = {**DEFAULTS, "horizon": 128}
    donors = [
        replace(each, hyperparameters=wide, shape=shape_of("ppo", wide), state=State.TRAINING)
        for each in EIGHT[2:]
    ]
    cohort = propose(population([*EIGHT[:2], *donors]), space=WIDE)
    assert cohort.members == cohort.created
    assert [each.replaced.number for each in cohort.created if each.replaced] == [1, 2]


def test_fresh_agents_of_a_shared_choice_come_in_few_shapes():
    shapes: Counter[object] = Counter()
    created = 0
    agents: list[Agent] = []
    while created < 8:
        people = Population(tuple(agents), created, {"ppo": created})
        cohort = propose(people, places=4, space=WIDE, seed=created)
        assert cohort.members
        assert len({member.shape for member in cohort.members}) == 1
        for each in cohort.created:
            created += 1
            state = State.TRAINING if each in cohort.members else State.WAITING
            agents.append(
                agent(
                    created,
                    hyperparameters=each.hyperparameters,
                    shape=each.shape,
                    state=state,
                    started=False,
                )
            )
        taken = set(numbers(cohort))
        agents = [
            replace(each, state=State.TRAINING) if each.number in taken else each for each in agents
        ]
        shapes.update(each.shape for each in cohort.created)
    assert 1 < len(shapes) <= RULES.shape_limit


def test_the_longest_waiting_leads_and_the_young_go_before_the_old():
    people = [
        agent(1, None, rung=9, waiting_since=1),
        agent(2, None, rung=5, waiting_since=2),
        agent(3, None, rung=2, waiting_since=3),
        agent(4, None, rung=2, waiting_since=4),
    ]
    assert numbers(propose(population(people), places=3, rules=replace(RULES, population=4))) == [
        1,
        3,
        4,
    ]


def test_who_has_had_more_than_most_waits_until_the_others_have_had_as_much():
    def waiting(number: int, cost_s: float, horizon: int = 32) -> Agent:
        values = {**DEFAULTS, "horizon": horizon}
        return agent(
            number, 1.0, cost_s=cost_s, hyperparameters=values, shape=shape_of("ppo", values)
        )

    four = replace(RULES, population=4)
    alone, several = waiting(1, 30.0, horizon=64), [waiting(number, 10.0) for number in (2, 3, 4)]
    assert numbers(propose(population([alone, *several]), 4, space=WIDE, rules=four)) == [2, 3, 4]
    as_much = [waiting(number, 30.0) for number in (2, 3, 4)]
    assert numbers(propose(population([alone, *as_much]), 4, space=WIDE, rules=four)) == [1]
    newcomer = waiting(5, 0.0, horizon=64)
    late = propose(population([*several, newcomer]), 4, space=WIDE, rules=four)
    assert numbers(late) == [2, 3, 4], "it waits for its turn"


def test_where_no_line_improves_half_of_the_new_agents_restart_the_donors_algorithm():
    space = SearchSpace(
        {"ppo": 1.0, "sac": 9.0}, {"ppo": {"learning_rate": LEARNING_RATE}, "sac": {}}
    )
    stuck = replace(population(EIGHT), stagnates=True)
    cohorts = [propose(stuck, space=space, seed=seed) for seed in range(50)]
    created = [each for cohort in cohorts for each in cohort.created]
    fresh = [each for each in created if each.action is Action.FRESH]
    assert 0.35 < len(fresh) / len(created) < 0.65
    assert {each.algorithm for each in fresh} == {"ppo"}
    assert all(each.parents == () and "no line improves" in each.reason for each in fresh)
    rates = [
        [each.hyperparameters["learning_rate"] for each in new(cohort, Action.FRESH)]
        for cohort in cohorts
    ]
    assert all(len(set(drawn)) == len(drawn) for drawn in rates)


HALVED = replace(RULES, round=Round(env_steps=1000), adaptive_rounds=True)


def at_a_milestone(agents: Iterable[Agent], **changes: object) -> Population:
    """Agents whose last round has passed one."""
    people = population(agents)
    curves = {
        each.name: (LineRound(each.name, 0.0, 1000.0, each.score or 0.0),) for each in people.agents
    }
    return replace(people, curves=curves, **changes)  # type: ignore[arg-type]


def test_halving_leaves_the_time_of_the_worse_half_to_the_better_one():
    cohort = propose(at_a_milestone(EIGHT), rules=HALVED)
    assert [each.agent.number for each in cohort.retired] == [1, 2, 3, 4]
    assert cohort.retired[0].reason == "stopped at place 8 of 8 in rung 1"
    assert numbers(cohort) == [5, 6, 7, 8]
    assert cohort.created == ()


def test_no_fewer_are_left_than_say_something_about_one_another_or_than_there_are_pods():
    five = [agent(number, float(number)) for number in range(1, 6)]
    cohort = propose(at_a_milestone(five, created=8), rules=HALVED)
    assert [each.agent.number for each in cohort.retired] == [1]
    assert len(new(cohort, Action.EXPLOIT)) == 1, "the next one gives way to a child"
    seven_pods = propose(at_a_milestone(EIGHT), places=1, rules=replace(HALVED, population=7))
    assert [each.agent.number for each in seven_pods.retired] == [1]


def test_every_pod_gets_its_part_of_those_that_are_left():
    best = [agent(number, 10.0) for number in range(1, 5)]
    cohort = propose(population(best, created=8), places=4, rules=HALVED)
    assert len(cohort.members) == 2, "the population is for two such pods"
    other = propose(
        population([replace(each, state=State.TRAINING) for each in best], created=8),
        4,
        rules=HALVED,
    )
    assert len(other.members) == 1, "a pod without a waiting agent gets a new one"


def test_no_agent_leaves_without_a_successor_where_no_line_improves():
    cohort = propose(at_a_milestone(EIGHT, stagnates=True), rules=HALVED)
    assert cohort.retired == ()
    assert len(cohort.created) == 4
    few = [agent(number, 10.0) for number in range(1, 5)]
    again = propose(at_a_milestone(few, created=8, stagnates=True), rules=HALVED)
    assert len(again.created) == 4, "the population is made full again"


def test_without_adaptive_rounds_everyone_has_a_successor():
    cohort = propose(at_a_milestone(EIGHT), rules=replace(HALVED, adaptive_rounds=False))
    assert (cohort.retired, len(cohort.created)) == ((), 2)


def test_donors_are_compared_with_who_gives_way_by_their_last_rounds():
    """The luckiest of many rounds was 100 for agent 3, whose last is as bad as that of agent 1."""
    lucky = replace(agent(3, 1.0), best_score=100.0)
    people = population(
        [agent(1, 1.0), agent(2, 50.0), lucky, agent(4, 60.0), agent(5, 55.0), agent(6, 0.0)]
    )
    for seed in range(20):
        (child,) = propose(
            people, rules=replace(RULES, population=6, selection="truncation"), seed=seed
        ).created
        assert child.replaced is not None
        assert (child.replaced.number, [parent.number for parent in child.parents]) in [
            (6, [4]),
            (6, [5]),
        ]
        assert child.reason.endswith((" with 60", " with 55"))


def test_of_who_trains_no_more_the_candidate_counts():
    assert replace(agent(1, 5.0), best_score=9.0).merit == 5.0
    assert replace(agent(1, 5.0), best_score=9.0, state=State.RETIRED).merit == 9.0
    assert replace(agent(1, None), best_score=9.0).merit == 9.0

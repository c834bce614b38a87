"""Generators over gRPC with a real database: generations, fusions, noise, random search, and those
that fail."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import EntryPoint, EntryPoints
from random import Random

import pytest

from podracer.common.v1 import agent_pb2
from podracer.common.v1 import evolution_pb2 as evolution
from podracer.leaderboard.v1 import leaderboard_service_pb2 as pb
from podracer_core.catalogue import extensions
from podracer_core.errors import InvalidInput
from podracer_core.evolution import Cohort, CohortRequest, Generator, Population, Tournament
from podracer_leaderboard.competition import competition_of
from support.errors import raises

CONTINUE = pb.PROPOSAL_ACTION_CONTINUE
EXPLOIT = pb.PROPOSAL_ACTION_EXPLOIT
FRESH = pb.PROPOSAL_ACTION_FRESH


class Raising(Generator):
    """Works until there are donors."""

    def propose(self, population: Population, request: CohortRequest, random: Random) -> Cohort:
        if population.donors:
            raise RuntimeError("an unexpected mistake")
        return Tournament(self.space, self.rules).propose(population, request, random)


class Greedy(Generator):
    """More than there is room for."""

    def propose(self, population: Population, request: CohortRequest, random: Random) -> Cohort:
        cohort = Tournament(self.space, self.rules).propose(
            population, CohortRequest(request.places + 1), random
        )
        return Cohort(cohort.members, cohort.created)


class Historian(Tournament):
    """Remembers what it was shown."""

    uses_history = True
    seen: list[Population] = []  # noqa: RUF012

    def propose(self, population: Population, request: CohortRequest, random: Random) -> Cohort:
        self.seen.append(population)
        return super().propose(population, request, random)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generators of this file seem to be installed beside the others."""
    group = "podracer.generators"
    mine = [
        EntryPoint(kind.__name__, f"{__name__}:{kind.__name__}", group)
        for kind in (Raising, Greedy, Historian)
    ]
    theirs = extensions.entry_points(group=group)
    mine.append(EntryPoint("Absent", "a_package_that_is_not_there:Generator", group))
    found = {group: EntryPoints([*theirs, *mine])}
    load = EntryPoint.load
    monkeypatch.setattr(
        EntryPoint,
        "load",
        lambda self: globals()[self.name] if self.module == __name__ else load(self),
    )
    both = extensions.entry_points
    monkeypatch.setattr(
        extensions, "entry_points", lambda group: found.get(group) or both(group=group)
    )


def number(agent: agent_pb2.AgentSpec) -> float:
    return float(agent.name[-4:])


async def test_generations_pass_a_barrier_and_end(driver):
    await driver.create(
        scheduler=evolution.SCHEDULER_GENERATIONAL,
        population=6,
        generations=2,
        exploration=0.0,
        replaced_fraction=0.34,
    )
    first, second = await driver.propose(4), await driver.propose(4)
    assert (len(first.proposals), len(second.proposals)) == (4, 2)
    await driver.run_round(first, number)
    waiting = await driver.propose(4, request_id="barrier")
    assert not waiting.proposals
    assert not waiting.finished
    diverged = driver.submission(second.proposals[0].agent.name, None, steps=0)
    diverged.failure = "diverged"
    await driver.stub.SubmitCandidate(diverged)
    await driver.submit(second.proposals[1].agent.name, number(second.proposals[1].agent))
    # Of the five that are left the worst gives way, and the place of the failed one is taken too.
    following = await driver.propose(8, request_id="barrier")
    assert Counter(each.action for each in following.proposals) == {CONTINUE: 4, EXPLOIT: 2}
    assert first.proposals[0].agent.name in [each.replaced for each in following.proposals]
    await driver.run_round(following, number)
    over = await driver.propose(8)
    assert over.finished
    assert not over.proposals
    assert not over.HasField("generator_problem")


async def test_a_fusion_has_two_parents_of_equal_weight_and_the_effort_of_the_older(driver):
    await driver.create(population=8, exploration=0.0, crossover=1.0)
    first = await driver.propose(8)
    await driver.run_round(first, number)
    children = [each for each in (await driver.propose(8)).proposals if each.action == EXPLOIT]
    assert children
    for child in children:
        start = child.agent.initialization
        assert start.kind == agent_pb2.INITIALIZATION_KIND_FUSE
        assert [parent.weight for parent in start.parents] == [0.5, 0.5]
        assert all(parent.checkpoint.prefix.endswith("-best/") for parent in start.parents)
        assert len({parent.agent for parent in start.parents}) == 2
        assert not start.inherit_replay
        assert not start.HasField("keep_optimizer")
        assert child.agent.env_steps == 900
    known = {agent.name: agent for agent in await driver.agents()}
    child = known[children[0].agent.name]
    assert list(child.parents) == [
        parent.agent for parent in children[0].agent.initialization.parents
    ]
    assert child.lineage == known[child.parents[0]].lineage
    assert child.reason == children[0].reason
    assert child.replaced == children[0].replaced != ""


async def test_noise_has_a_scale_and_a_seed_of_its_own(driver):
    await driver.create(population=8, exploration=0.0, noise_scale=0.05)
    await driver.run_round(await driver.propose(8), number)
    starts = [
        each.agent.initialization
        for each in (await driver.propose(8)).proposals
        if each.action == EXPLOIT
    ]
    assert {start.kind for start in starts} == {agent_pb2.INITIALIZATION_KIND_NOISE}
    assert {start.noise_scale for start in starts} == {0.05}
    assert len({start.seed for start in starts}) == len(starts) == 2
    assert all(start.inherit_replay and len(start.parents) == 1 for start in starts)


async def test_a_generator_that_raises_is_stood_in_for(driver, installed):
    await driver.create(population=4, generator="Raising")
    first = await driver.propose(4)
    assert not first.HasField("generator_problem")
    await driver.run_round(first, number)
    second = await driver.propose(4, request_id="again")
    assert len(second.proposals) == 4
    problem = second.generator_problem
    assert problem.reason == "GENERATOR_FAILED"
    assert problem.message.startswith(
        "generator Raising raised RuntimeError: an unexpected mistake (test_generators.py, line "
    )
    assert problem.message.endswith("; Tournament proposes in its place")
    assert "RuntimeError" in problem.detail
    assert await driver.propose(4, request_id="again") == second


async def test_a_generator_that_proposes_too_much_is_stood_in_for(driver, installed):
    await driver.create(population=8, generator="Greedy")
    answer = await driver.propose(3)
    assert len(answer.proposals) == 3
    assert "4 members, expected at most 3" in answer.generator_problem.message
    assert len(await driver.agents()) == 3


async def test_the_schedulers_own_generator_stands_in(driver, installed):
    await driver.create(
        population=8, generator="Greedy", scheduler=evolution.SCHEDULER_GENERATIONAL
    )
    answer = await driver.propose(3)
    assert "; Generational proposes in its place" in answer.generator_problem.message
    assert len(await driver.agents()) == 8


async def test_a_generator_that_cannot_be_imported_is_refused(driver, installed):
    with raises(InvalidInput, "UNKNOWN_EXTENSION"):
        await driver.create(generator="Absent")


async def test_a_generator_that_is_gone_since_is_stood_in_for(driver, installed, monkeypatch):
    """Its package was removed, or cannot be imported any more, and the leaderboard has been started
    again."""
    await driver.create(population=5, generator="Raising")
    former = extensions.entry_points
    monkeypatch.setattr(
        extensions,
        "entry_points",
        lambda group: EntryPoints(each for each in former(group=group) if each.name != "Raising"),
    )
    competition_of.cache_clear()
    answer = await driver.propose(4)
    assert len(answer.proposals) == 4
    assert "no generator 'Raising' is installed" in answer.generator_problem.message
    await driver.run_round(answer, number)
    assert len((await driver.board()).candidates) == 4


async def test_a_generator_sees_the_board_and_where_it_asks_the_history(driver, installed):
    Historian.seen.clear()
    await driver.create(population=6, leaderboard_size=2, generator="Historian", lineage_limit=1)
    await driver.run_round(await driver.propose(6), number)
    await driver.run_round(await driver.propose(6), number)
    await driver.propose(6)
    first, second, third = Historian.seen
    assert (first.agents, first.peers, first.elites, first.history) == ((), {}, (), ())
    assert [agent.number for agent in second.elites] == [6, 5]
    assert [(agent.number, agent.best_score) for agent in second.history] == [
        (n, float(n)) for n in range(1, 7)
    ]
    assert {agent.generation for agent in second.agents} == {1}
    assert len(third.history) == 7  # who was replaced is still in it
    waiting = {agent.name for agent in third.waiting}
    assert set(third.peers) == waiting
    assert all(agent.score in third.peers[agent.name] for agent in third.waiting)
    assert {(agent.env_steps, agent.cost_s) for agent in second.agents} == {(1000, 5.0)}

"""ProposeCohort over gRPC: lifecycle of agents, idempotency, determinism, budgets."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from google.protobuf import duration_pb2

from podracer.common.v1 import agent_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as pb
from podracer_core.catalogue import find_algorithm
from podracer_core.errors import InvalidInput, NotFound
from podracer_platform.messages import hyperparameter_to_message
from support.errors import raises


def canonical(message: Any) -> bytes:
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def learning_rate(agent: agent_pb2.AgentSpec) -> float:
    return agent.hyperparameters["learning_rate"].number


async def test_first_agents_are_fresh_complete_and_their_own(driver):
    await driver.create()
    cohort = await driver.propose(8)
    assert [each.action for each in cohort.proposals] == [pb.PROPOSAL_ACTION_FRESH] * 8
    names = [each.agent.name for each in cohort.proposals]
    assert names == [f"projects/p/jobs/j/agents/a{number:04}" for number in range(1, 9)]
    assert len({each.agent.seed for each in cohort.proposals}) == 8
    defaults = find_algorithm("ppo").defaults()
    for each in cohort.proposals:
        assert set(each.agent.hyperparameters) == set(defaults)
        assert (
            tuple(each.agent.hyperparameters["hidden_sizes"].integers.values)
            == defaults["hidden_sizes"]
        )
        assert 1e-4 <= learning_rate(each.agent) <= 1e-2
        assert each.agent.initialization.kind == agent_pb2.INITIALIZATION_KIND_FRESH
        assert not each.agent.HasField("resume")
    assert cohort.round_time.seconds == 5
    assert not cohort.HasField("admission_score")
    assert not cohort.finished


async def test_an_agent_trains_on_from_where_it_stood(driver):
    await driver.create(population=2)
    first = await driver.propose(2)
    await driver.run_round(first, lambda agent: 1.0)
    second = await driver.propose(2)
    assert [each.action for each in second.proposals] == [pb.PROPOSAL_ACTION_CONTINUE] * 2
    for before, after in zip(first.proposals, second.proposals, strict=True):
        assert after.agent.name == before.agent.name
        assert after.agent.seed == before.agent.seed
        assert after.agent.hyperparameters == before.agent.hyperparameters
        assert after.agent.resume.prefix.endswith("-latest/")
        assert (after.agent.env_steps, after.agent.cost.seconds) == (1000, 5)


@pytest.mark.parametrize(
    ("limits", "replaced_first"), [({}, 3), ({"budget_used": 0.3}, None), ({"budget_used": 0.4}, 3)]
)
async def test_an_agent_is_replaced_only_after_another_whole_round_of_its_own_and_a_third_of_the_budget(
    driver, limits, replaced_first
):
    """Eight share 15 s: a round of each has 5 s here."""
    await driver.create(population=8, round_time=duration_pb2.Duration(seconds=15))
    replaced = []
    for _ in range(4):
        cohort = await driver.propose(8, **limits)
        replaced.append(any(each.replaced for each in cohort.proposals))
        await driver.run_round(cohort, lambda agent: float(agent.name[-2:]))
    assert replaced == [count == replaced_first for count in range(4)]


async def test_children_start_from_the_candidate_of_a_better_agent(driver):
    await driver.create(population=8, exploration=0.0)
    first = await driver.propose(8)
    order = {each.agent.name: float(place) for place, each in enumerate(first.proposals)}
    await driver.run_round(first, lambda agent: order[agent.name])
    second = await driver.propose(8)
    children = [each for each in second.proposals if each.action == pb.PROPOSAL_ACTION_EXPLOIT]
    worst_two = [first.proposals[0].agent.name, first.proposals[1].agent.name]
    assert [child.replaced for child in children] == worst_two
    for child in children:
        (parent,) = child.agent.initialization.parents
        assert child.agent.initialization.kind == agent_pb2.INITIALIZATION_KIND_COPY
        assert order[parent.agent] > order[child.replaced]
        assert parent.checkpoint.prefix.startswith(parent.agent)
        assert parent.checkpoint.prefix.endswith("-best/")
        assert child.agent.env_steps == 900  # of the candidate's checkpoint, not of the round's end
        donor = next(each.agent for each in first.proposals if each.agent.name == parent.agent)
        changed = {
            name
            for name, value in child.agent.hyperparameters.items()
            if value != donor.hyperparameters[name]
        }
        assert changed == {"learning_rate", "gamma"}
    states = {agent.name: agent for agent in await driver.agents()}
    assert [states[name].state for name in worst_two] == [pb.AGENT_STATE_RETIRED] * 2
    child = states[children[0].agent.name]
    assert (child.rung, child.origin, child.state) == (
        1,
        pb.PROPOSAL_ACTION_EXPLOIT,
        pb.AGENT_STATE_TRAINING,
    )
    assert child.lineage == states[child.parents[0]].lineage
    assert (
        sum(
            agent.state in (pb.AGENT_STATE_TRAINING, pb.AGENT_STATE_WAITING)
            for agent in states.values()
        )
        == 8
    )


async def test_the_same_request_gets_the_same_answer(server, driver):
    await driver.create()
    first = await driver.propose(4, request_id="w1")
    await driver.propose(4, request_id="w2")
    again = await driver.propose(4, request_id="w1")
    assert canonical(again) == canonical(first)
    await driver.run_round(first, lambda agent: 1.0)
    await server.restart()
    restarted = type(driver)(await server.stub())
    assert canonical(await restarted.propose(4, request_id="w1")) == canonical(first)
    assert len(await restarted.agents()) == 8


async def test_the_same_request_at_once_makes_one_cohort(driver):
    await driver.create()
    answers = await asyncio.gather(*(driver.propose(4, request_id="w1") for _ in range(20)))
    assert len({canonical(answer) for answer in answers}) == 1
    assert (await driver.board()).agent_count == 4


async def test_nothing_to_propose_is_an_empty_answer_that_may_be_asked_again(driver):
    await driver.create(population=2)
    first = await driver.propose(4)
    assert len(first.proposals) == 2
    assert not (await driver.propose(4, request_id="again")).proposals
    await driver.submit(first.proposals[0].agent.name, 1.0)
    assert len((await driver.propose(4, request_id="again")).proposals) == 1


async def test_a_cohort_has_no_more_members_than_the_job_has_steps_left(driver):
    await driver.create(round_env_steps=1000)
    plenty = await driver.propose(2, remaining_env_steps=10_000, remaining_cost={"seconds": 4})
    assert (len(plenty.proposals), plenty.round_env_steps, plenty.HasField("round_time")) == (
        2,
        1000,
        False,
    )
    assert len((await driver.propose(4, remaining_env_steps=3)).proposals) == 3
    assert not (await driver.propose(4, remaining_cost={})).proposals


async def test_a_pod_gets_only_what_it_can_train(driver):
    await driver.create()
    assert not (await driver.propose(4, algorithms=["sac"])).proposals
    assert len((await driver.propose(4, algorithms=["ppo", "sac"])).proposals) == 4


@pytest.mark.parametrize(
    ("fields", "bad"),
    [
        ({"places": 0}, "places"),
        ({"places": 2000}, "places"),
        ({"remaining_env_steps": -1}, "remaining_env_steps"),
        ({"budget_used": math.nan}, "budget_used"),
    ],
)
async def test_bad_requests_name_their_field(driver, fields, bad):
    await driver.create()
    with raises(InvalidInput, field=bad):
        await driver.propose(**fields)
    assert (await driver.board()).agent_count == 0


async def test_an_unknown_leaderboard_is_not_found(driver):
    with raises(NotFound, "LEADERBOARD_NOT_FOUND"):
        await driver.propose(4)


def founder(number: int, **hyperparameters: Any) -> evolution_pb2.Founder:
    found = evolution_pb2.Founder(
        agent=f"projects/p/jobs/former/agents/a{number:04}", algorithm="ppo"
    )
    found.checkpoint.prefix = f"projects/p/jobs/uid-0/agents/a{number:04}/checkpoints/9-{number}/"
    for name, value in hyperparameters.items():
        found.hyperparameters[name].CopyFrom(hyperparameter_to_message(value))
    return found


@pytest.mark.parametrize(
    "scheduler", [evolution_pb2.SCHEDULER_TOURNAMENT, evolution_pb2.SCHEDULER_GENERATIONAL]
)
async def test_founders_come_first_as_copies_of_another_jobs_agents(driver, scheduler):
    # Neither gamma nor the network is one that the search would give.
    founders = (
        founder(1, gamma=0.5, hidden_sizes=(32, 32)),
        founder(2, gamma=0.5, hidden_sizes=(32, 32)),
    )
    await driver.create(founders, population=4, scheduler=scheduler)
    first = await driver.propose(2)
    for proposal, expected in zip(first.proposals, founders, strict=True):
        start = proposal.agent.initialization
        assert (proposal.action, start.kind) == (
            pb.PROPOSAL_ACTION_FRESH,
            agent_pb2.INITIALIZATION_KIND_COPY,
        )
        (parent,) = start.parents
        assert (parent.agent, parent.checkpoint) == (expected.agent, expected.checkpoint)
        assert proposal.agent.hyperparameters["gamma"].number == 0.5
        assert list(proposal.agent.hyperparameters["hidden_sizes"].integers.values) == [32, 32]
        assert set(proposal.agent.hyperparameters) == set(find_algorithm("ppo").defaults())
    second = await driver.propose(2)
    assert [each.agent.initialization.kind for each in second.proposals] == [
        agent_pb2.INITIALIZATION_KIND_FRESH
    ] * 2
    for cohort in (first, second):
        await driver.run_round(cohort, lambda agent: float(agent.name[-1]))
    for _ in range(6):  # children of founders have gammas that the search allows
        cohort = await driver.propose(4)
        await driver.run_round(cohort, lambda agent: float(agent.name[-1]))
    answer = await driver.stub.GetAgent(pb.GetAgentRequest(name=first.proposals[0].agent.name))
    assert (list(answer.agent.parents), list(answer.ancestors)) == ([founders[0].agent], [])


async def test_more_founders_than_the_population_are_not_proposed(driver):
    await driver.create(
        [founder(number) for number in range(1, 5)], population=2, leaderboard_size=2
    )
    assert len((await driver.propose(4)).proposals) == 2


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"algorithm": "sac"}, "an agent of sac; searched are ppo"),
        ({"agent": "unknown"}, "agent"),
        ({"checkpoint": None}, "has no checkpoint"),
        (
            {"hyperparameters": {"speed": agent_pb2.HyperparameterValue(number=1.0)}},
            "has no hyperparameter speed",
        ),
    ],
)
async def test_founders_that_cannot_be_trained_here_are_refused(driver, change, problem):
    sound = founder(1)
    values = {field.name: value for field, value in sound.ListFields()} | change
    with pytest.raises(InvalidInput, match=problem) as caught:
        await driver.create([evolution_pb2.Founder(**values)])
    assert caught.value.violations[0].field == "founders[0]"

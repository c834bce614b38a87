"""ForkAgent, PinAgent and StopAgent over gRPC, and what the next cohorts make of them."""

from __future__ import annotations

from typing import Any

import pytest

from podracer.common.v1 import agent_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as pb
from podracer_core.errors import InvalidInput, NotFound, PreconditionFailed
from podracer_platform.messages import hyperparameter_to_message
from support.errors import raises

SCHEDULERS = {
    "tournament": evolution_pb2.SCHEDULER_TOURNAMENT,
    "generational": evolution_pb2.SCHEDULER_GENERATIONAL,
}


async def fork(
    driver: Any, name: str, request_id: str = "fork-1", check: bool = False, **changed: Any
) -> pb.Agent:
    request = pb.ForkAgentRequest(name=name, request_id=request_id, validate_only=check)
    for key, value in changed.items():
        request.hyperparameters[key].CopyFrom(hyperparameter_to_message(value))
    answer: pb.ForkAgentResponse = await driver.stub.ForkAgent(request)
    return answer.agent


async def pin(driver: Any, name: str, **fields: Any) -> pb.Agent:
    answer: pb.PinAgentResponse = await driver.stub.PinAgent(
        pb.PinAgentRequest(name=name, **fields)
    )
    return answer.agent


async def stop(driver: Any, name: str) -> pb.Agent:
    answer: pb.StopAgentResponse = await driver.stub.StopAgent(pb.StopAgentRequest(name=name))
    return answer.agent


async def first_round(driver: Any, population: int = 4, **evolution: Any) -> list[str]:
    """The names of a population after a round each, whose scores are 0, 1, 2, …"""
    await driver.create(population=population, exploration=0.0, **evolution)
    cohort = await driver.propose(population)
    names = [each.agent.name for each in cohort.proposals]
    await driver.run_round(cohort, lambda agent: float(names.index(agent.name)))
    return names


@pytest.mark.parametrize("scheduler", ["tournament", "generational"])
async def test_a_fork_leads_the_next_cohort_with_its_parents_weights(driver, scheduler):
    names = await first_round(driver, scheduler=SCHEDULERS[scheduler])
    await driver.run_round(await driver.propose(4), lambda agent: 1.0)
    parent = next(each for each in await driver.agents() if each.name == names[2])
    # outside of what is searched
    made = await fork(driver, names[2], learning_rate=0.05, gae_lambda=1)
    assert (made.state, made.parents, made.lineage) == (
        pb.AGENT_STATE_WAITING,
        [names[2]],
        parent.lineage,
    )
    proposal = (await driver.propose(2)).proposals[0]
    assert proposal.agent.name == made.name == "projects/p/jobs/j/agents/a0006"
    assert (proposal.action, proposal.replaced) == (pb.PROPOSAL_ACTION_EXPLOIT, "")
    assert proposal.reason == "forked by a user from a0003: gae_lambda 1.0, learning_rate 0.05"
    start = proposal.agent.initialization
    assert start.kind == agent_pb2.INITIALIZATION_KIND_COPY and start.inherit_replay
    assert [each.checkpoint for each in start.parents] == [parent.best_evaluation.checkpoint]
    assert proposal.agent.env_steps == parent.best_evaluation.checkpoint.env_steps
    expected = dict(parent.spec.hyperparameters)
    for name, value in (("learning_rate", 0.05), ("gae_lambda", 1.0)):
        expected[name] = agent_pb2.HyperparameterValue(number=value)
    assert dict(proposal.agent.hyperparameters) == expected
    assert not proposal.agent.HasField("resume")


async def test_a_fork_of_another_shape_leads_a_cohort_of_its_own(driver):
    names = await first_round(driver)
    made = await fork(driver, names[0], epochs=2)
    cohort = await driver.propose(4)
    assert [each.agent.name for each in cohort.proposals] == [made.name]
    assert not made.spec.initialization.inherit_replay


@pytest.mark.parametrize("generator", ["random", "elites", "search"])
async def test_other_generators_take_forks_and_breed_on(driver, generator):
    names = await first_round(driver, generator=generator)
    made = await fork(driver, names[3], learning_rate=0.05, gae_lambda=0.5)
    for turn in range(5):
        cohort = await driver.propose(8)
        assert not cohort.HasField("generator_problem"), cohort.generator_problem.message
        if turn == 0:
            assert made.name in [each.agent.name for each in cohort.proposals]
        await driver.run_round(cohort, lambda agent: agent.hyperparameters["learning_rate"].number)


async def test_the_same_fork_again_is_the_same_agent_also_after_a_restart(server, driver):
    names = await first_round(driver)
    assert not (await fork(driver, names[1], check=True, learning_rate=1e-3)).name
    assert len(await driver.agents()) == 4
    made = await fork(driver, names[1], learning_rate=1e-3)
    await server.restart()
    driver.stub = await server.stub()
    assert await fork(driver, names[1], learning_rate=1e-3) == made
    assert await fork(driver, names[1], check=True, learning_rate=1e-3) == made
    assert len(await driver.agents()) == 5
    assert (await fork(driver, names[1], "fork-2")).name != made.name


async def test_a_bad_fork_says_everything_at_once_and_changes_nothing(driver):
    names = await first_round(driver)
    before = await driver.agents()
    with pytest.raises(InvalidInput) as raised:
        await fork(driver, names[0], learning_rate=-1.0, gama=0.9, hidden_sizes=(8, 8), horizon=1.5)
    assert {each.field for each in raised.value.violations} == {
        "learning_rate",
        "gama",
        "hidden_sizes",
        "horizon",
    }
    assert "gama: is no hyperparameter of ppo" in raised.value.message
    assert "hidden_sizes: is of the network" in raised.value.message
    with pytest.raises(NotFound):
        await fork(driver, f"{names[0]}9")
    with pytest.raises(InvalidInput, match="request_id"):
        await fork(driver, names[0], request_id="")
    assert await driver.agents() == before


async def test_an_agent_without_weights_has_no_fork(driver):
    await driver.create(population=2)
    (first, second) = [each.agent.name for each in (await driver.propose(2)).proposals]
    with raises(PreconditionFailed, "NO_CHECKPOINT"):
        await fork(driver, first)
    await driver.submit(second, None)  # never judged: its newest state
    made = await fork(driver, second, learning_rate=1e-3)
    assert made.spec.initialization.parents[0].checkpoint.prefix.endswith("-latest/")
    assert (made.env_steps, made.rung) == (1000, 1)


@pytest.mark.parametrize("scheduler", ["tournament", "generational"])
async def test_a_pinned_agent_survives_until_it_is_unpinned(driver, scheduler):
    names = await first_round(driver, population=8, scheduler=SCHEDULERS[scheduler])
    worst = names[0]
    assert (await pin(driver, worst)).pinned and (await pin(driver, worst)).pinned
    for _ in range(4):
        cohort = await driver.propose(8)
        assert worst in [each.agent.name for each in cohort.proposals]
        assert worst not in [each.replaced for each in cohort.proposals]
        await driver.run_round(cohort, lambda agent: 0.0 if agent.name == worst else 5.0)
    assert not (await pin(driver, worst, unpin=True)).pinned
    cohort = await driver.propose(8)
    assert worst in [each.replaced for each in cohort.proposals]
    with pytest.raises(PreconditionFailed, match=r"is retired"):
        await pin(driver, worst)


async def test_a_stopped_agent_does_not_come_again_and_its_round_counts(driver):
    names = await first_round(driver)
    waiting = await stop(driver, names[0])
    assert waiting.state == (await stop(driver, names[0])).state == pb.AGENT_STATE_STOPPED
    cohort = await driver.propose(4)
    assert names[0] not in [each.agent.name for each in cohort.proposals]
    assert len(cohort.proposals) == 4, "another has its place"
    await pin(driver, names[3])
    training = await stop(driver, names[3])
    assert (training.state, training.stopping, training.pinned) == (
        pb.AGENT_STATE_TRAINING,
        True,
        False,
    )
    await driver.run_round(cohort, lambda agent: 50.0 if agent.name == names[3] else 1.0)
    agents = {agent.name: agent for agent in await driver.agents(states=[pb.AGENT_STATE_STOPPED])}
    assert set(agents) == {names[0], names[3]} and not agents[names[3]].stopping
    assert (await driver.board()).candidates[0].agent.name == names[3], "its last round counts"
    cohort = await driver.propose(4)
    assert not {names[0], names[3]} & {each.agent.name for each in cohort.proposals}
    with pytest.raises(PreconditionFailed, match="is stopped"):
        await pin(driver, names[3])
    assert (await fork(driver, names[3], learning_rate=1e-3)).parents == [names[3]], (
        "one may go on from it"
    )

"""Agents, lineage, statistics, aliases and pages over gRPC."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as pb
from podracer_core.errors import InvalidInput, NotFound, PreconditionFailed
from support.errors import raises

BOARD = "projects/p/leaderboards/j"


async def run_generations(driver: Any, count: int) -> None:
    """Eight agents whose score is their number."""
    await driver.create(population=8, exploration=0.0, lineage_limit=4)
    for _ in range(count):
        await driver.run_round(await driver.propose(8), lambda agent: float(agent.name[-4:]))


async def test_an_agent_knows_its_ancestors_and_its_children(driver):
    await run_generations(driver, 4)
    agents = {agent.name: agent for agent in await driver.agents()}
    assert list(agents) == sorted(agents)
    grandchild = next(
        agent for agent in agents.values() if agent.parents and agents[agent.parents[0]].parents
    )
    answer = await driver.stub.GetAgent(pb.GetAgentRequest(name=grandchild.name))
    parent = agents[grandchild.parents[0]]
    assert answer.agent == grandchild
    assert [each.name for each in answer.ancestors[:2]] == [parent.name, parent.parents[0]]
    assert grandchild.lineage == answer.ancestors[-1].name
    of_parent = await driver.stub.GetAgent(pb.GetAgentRequest(name=parent.name))
    assert grandchild.name in of_parent.children


async def test_lists_come_in_pages_and_by_state(driver):
    await driver.create()
    names = [each.agent.name for each in (await driver.propose(5)).proposals]
    await driver.submit(names[1], 1.0)
    pages, token = [], ""
    while True:
        request = pb.ListAgentsRequest(leaderboard=BOARD, page_size=2, page_token=token)
        answer = await driver.stub.ListAgents(request)
        pages.append([agent.name for agent in answer.agents])
        token = answer.next_page_token
        if not token:
            break
    assert pages == [names[:2], names[2:4], names[4:]]
    assert [agent.name for agent in await driver.agents(states=[pb.AGENT_STATE_WAITING])] == [
        names[1]
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [("page_size", -1), ("page_size", 1001), ("page_token", "?"), ("states", [9])],
)
async def test_bad_pages_name_their_field(driver, field, value):
    await driver.create()
    with raises(InvalidInput, field=field):
        await driver.stub.ListAgents(pb.ListAgentsRequest(leaderboard=BOARD, **{field: value}))


async def test_statistics_of_the_elites_and_their_lineages(driver):
    await run_generations(driver, 2)
    answer = await driver.stub.GetStatistics(pb.GetStatisticsRequest(leaderboard=BOARD))
    elites = [each.agent.spec.hyperparameters for each in (await driver.board()).candidates]
    assert list(answer.hyperparameters) == ["gamma", "learning_rate"]
    assert list(answer.logarithmic) == [False, True]
    assert answer.elite_count == len(elites) == 4
    gammas = [elite["gamma"].number for elite in elites]
    rates = [math.log(elite["learning_rate"].number) for elite in elites]
    assert list(answer.mean) == pytest.approx([sum(gammas) / 4, sum(rates) / 4])
    assert list(answer.variance) == pytest.approx([answer.covariance[0], answer.covariance[3]])
    assert answer.variance[1] == pytest.approx(
        sum((rate - sum(rates) / 4) ** 2 for rate in rates) / 3
    )
    lineages = {each.lineage: each for each in answer.lineages}
    agents = await driver.agents()
    assert set(lineages) == {agent.lineage for agent in agents}
    assert sum(each.agent_count for each in lineages.values()) == len(agents)
    assert sum(each.cost.seconds for each in lineages.values()) == 16 * 5
    with raises(InvalidInput, field="algorithm"):
        await driver.stub.GetStatistics(pb.GetStatisticsRequest(leaderboard=BOARD, algorithm="sac"))


async def test_an_empty_board_has_statistics_too(driver):
    await driver.create()
    answer = await driver.stub.GetStatistics(pb.GetStatisticsRequest(leaderboard=BOARD))
    assert (answer.elite_count, len(answer.lineages)) == (0, 0)


async def set_alias(
    driver: Any, agent: str, reason: str = "", request_id: str = ""
) -> pb.AliasChange:
    request = pb.SetAliasRequest(
        leaderboard=BOARD, alias="champion", agent=agent, reason=reason, request_id=request_id
    )
    answer: pb.SetAliasResponse = await driver.stub.SetAlias(request)
    return answer.change


async def test_an_alias_moves_and_its_history_stays(server, driver):
    await driver.create()
    names = [each.agent.name for each in (await driver.propose(2)).proposals]
    for score, name in enumerate(names):
        await driver.submit(name, float(score))
    first = await set_alias(driver, names[0], "the first", "r1")
    assert first.checkpoint.prefix.startswith(names[0])
    assert await set_alias(driver, names[1], "a repeated request changes nothing", "r1") == first
    await set_alias(driver, names[1], "better", "r2")
    await server.restart()
    driver = type(driver)(await server.stub())
    assert dict((await driver.board()).aliases) == {"champion": names[1]}
    await set_alias(driver, "", "withdrawn")
    assert dict((await driver.board()).aliases) == {}
    request = pb.ListAliasHistoryRequest(leaderboard=BOARD, alias="champion", page_size=2)
    newest = await driver.stub.ListAliasHistory(request)
    assert [(change.agent, change.reason) for change in newest.changes] == [
        ("", "withdrawn"),
        (names[1], "better"),
    ]
    request.page_token = newest.next_page_token
    rest = await driver.stub.ListAliasHistory(request)
    assert (list(rest.changes), rest.next_page_token) == ([first], "")


async def test_an_alias_may_point_at_a_checkpoint_of_another_job(driver):
    await driver.create()
    agent = "projects/p/jobs/j-2/agents/a0001"
    prefix = "projects/p/jobs/u/agents/a0001/checkpoints/9-1/"
    request = pb.SetAliasRequest(leaderboard=BOARD, alias="champion", agent=agent)
    with pytest.raises(NotFound):
        await driver.stub.SetAlias(request)
    request.checkpoint.prefix = prefix
    await driver.stub.SetAlias(request)
    history = await driver.stub.ListAliasHistory(
        pb.ListAliasHistoryRequest(leaderboard=BOARD, alias="champion")
    )
    assert [(change.agent, change.checkpoint.prefix) for change in history.changes] == [
        (agent, prefix)
    ]
    request.agent = ""
    with pytest.raises(InvalidInput, match="agent"):
        await driver.stub.SetAlias(request)


async def test_an_alias_needs_a_candidate(driver):
    await driver.create()
    (proposal,) = (await driver.propose(1)).proposals
    with raises(PreconditionFailed, "NO_CANDIDATE"):
        await set_alias(driver, proposal.agent.name)
    with pytest.raises(NotFound):
        await set_alias(driver, "projects/p/jobs/j/agents/a9999")
    with pytest.raises(InvalidInput, match="a DNS label"):
        await driver.stub.SetAlias(pb.SetAliasRequest(leaderboard=BOARD, alias="The Best"))


READS: list[Callable[[Any], Any]] = [
    lambda stub: stub.ListAgents(pb.ListAgentsRequest(leaderboard=BOARD)),
    lambda stub: stub.ListEvaluations(pb.ListEvaluationsRequest(leaderboard=BOARD)),
    lambda stub: stub.GetStatistics(pb.GetStatisticsRequest(leaderboard=BOARD)),
    lambda stub: stub.ListAliasHistory(pb.ListAliasHistoryRequest(leaderboard=BOARD)),
    lambda stub: stub.GetAgent(pb.GetAgentRequest(name="projects/p/jobs/j/agents/a0001")),
]


@pytest.mark.parametrize("read", READS)
async def test_what_is_not_there_is_not_found(driver, read):
    with pytest.raises(NotFound, match="there"):
        await read(driver.stub)


async def test_hyperparameters_come_back_as_they_went(driver):
    await driver.create()
    cohort = await driver.propose(3)
    agents = await driver.agents()
    assert [agent.spec.hyperparameters for agent in agents] == [
        each.agent.hyperparameters for each in cohort.proposals
    ]
    kinds = {
        name: value.WhichOneof("kind") for name, value in agents[0].spec.hyperparameters.items()
    }
    assert (kinds["learning_rate"], kinds["horizon"], kinds["hidden_sizes"]) == (
        "number",
        "integer",
        "integers",
    )
    assert isinstance(agents[0].spec, agent_pb2.AgentSpec)

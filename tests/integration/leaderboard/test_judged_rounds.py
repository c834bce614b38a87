"""What stored rounds lead to, over gRPC: rungs of equal effort, adaptive rounds on planted curves,
measured packing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, insert, text
from sqlalchemy.orm import Session

from podracer.leaderboard.v1 import leaderboard_service_pb2 as pb
from podracer_core.evolution import Agent, Rules, State
from podracer_core.sections import Round
from podracer_leaderboard.judged_rounds import MAX_ROUNDS, load_rungs
from podracer_leaderboard.server import MIGRATIONS
from podracer_leaderboard.tables import AgentRow, BoardRow, RoundRow
from podracer_platform.database import Database, open_database

CONTINUE = pb.PROPOSAL_ACTION_CONTINUE
Curve = Callable[[int], float]
"""The score of an agent after so many steps of its line."""

STEPS = 1000


async def play(
    driver: Any, curves: Mapping[int, Curve], rounds: int, **evolution: Any
) -> dict[int, list[int]]:
    """Rounds of one agent at a time, each with the curve of its number; children do as badly as can
    be.

    Which agent got how many steps, round by round; agents that were replaced have no more.
    """
    settings = {
        "population": len(curves),
        "exploration": 0.0,
        "round_env_steps": STEPS,
        **evolution,
    }
    await driver.create(**settings)
    lengths: dict[int, list[int]] = {}
    for _ in range(rounds * len(curves)):
        cohort = await driver.propose(1)
        (proposal,) = cohort.proposals
        number = int(proposal.agent.name[-4:])
        steps = cohort.round_env_steps
        score = curves.get(number, lambda _: -1000.0)(proposal.agent.env_steps + steps)
        await driver.submit(proposal.agent.name, score, steps=steps)
        lengths.setdefault(number, []).append(steps)
    return lengths


async def replaced(driver: Any) -> dict[int, int]:
    """Number of an agent that gave way → rounds that it had had."""
    agents = {each.name: each for each in await driver.agents()}
    return {
        int(each.replaced[-4:]): agents[each.replaced].rung
        for each in agents.values()
        if each.replaced
    }


def flat(level: float) -> Curve:
    return lambda steps: level


def rising(level: float, slope: float) -> Curve:
    return lambda steps: level + slope * steps / STEPS


async def test_who_improves_gets_longer_rounds_and_the_hopeless_stops_at_the_first_rung(driver):
    curves = {
        1: rising(10.0, 5.0),
        2: flat(9.0),
        3: flat(8.0),
        4: flat(1.0),
        5: flat(0.9),
        6: flat(0.8),
    }
    lengths = await play(driver, curves, 6, adaptive_rounds=True)
    assert lengths[1][:4] == [STEPS, STEPS, 2 * STEPS, 4 * STEPS]
    assert max(lengths[1]) == 4 * STEPS
    assert set(lengths[2]) == {STEPS}
    stopped = await replaced(driver)
    assert {number: stopped[number] for number in (4, 5, 6)} == {4: 1, 5: 1, 6: 1}
    assert 1 not in stopped


SLOW = {
    1: flat(60.0),
    2: flat(50.0),
    3: flat(40.0),
    4: flat(30.0),
    5: rising(10.0, 15.0),
    6: flat(1.0),
}
"""Agent 5 is fifth of six at the first rung, second at the fourth, and best from the fifth on."""


async def test_a_slow_starter_always_survives_without_adaptive_rounds(driver):
    lengths = await play(driver, SLOW, 8)
    assert 5 not in await replaced(driver)
    assert 6 in await replaced(driver)
    assert len(lengths[5]) >= 6


async def test_a_slow_starter_survives_as_far_as_successive_halving_lets_it(driver):
    await play(driver, SLOW, 8, adaptive_rounds=True)
    assert (await replaced(driver))[5] == 1


async def test_a_slow_starter_in_the_better_half_of_every_rung_becomes_the_best(driver):
    curves = {**SLOW, 5: rising(30.0, 15.0)}  # third of six at the first rung
    await play(driver, curves, 8, adaptive_rounds=True)
    assert 5 not in await replaced(driver)
    assert (await driver.board()).candidates[0].agent.name.endswith("a0005")


async def test_a_newcomer_is_not_held_against_what_older_agents_have_become(driver):
    """Four agents have had five rounds when a fifth comes; all of its scores are what they had at
    its age."""
    await driver.create(population=5, exploration=0.0, round_env_steps=STEPS)
    curve = rising(0.0, 100.0)
    cohort = await driver.propose(5)
    late, *early = [each.agent.name for each in cohort.proposals]
    for name in early:
        await driver.submit(name, curve(STEPS))
    for _ in range(4):
        cohort = await driver.propose(4)
        assert {each.agent.name for each in cohort.proposals} == set(early)
        await driver.run_round(cohort, lambda agent: curve(agent.env_steps + STEPS))
    await driver.submit(late, curve(STEPS))
    for _ in range(3):
        (proposal,) = (await driver.propose(1)).proposals
        if proposal.agent.name == late:
            assert proposal.action == CONTINUE
        await driver.submit(proposal.agent.name, curve(proposal.agent.env_steps + STEPS))
    assert await replaced(driver) == {}


async def explorers(driver: Any) -> int:
    """How many agents have begun from scratch because no line improved."""
    return sum("no line improves" in each.reason for each in await driver.agents())


async def test_where_no_line_improves_new_agents_begin_from_scratch(driver):
    stuck = {number: flat(100.0 - number) for number in range(1, 7)}
    await play(driver, stuck, 8, adaptive_rounds=True)
    assert await explorers(driver) >= 1


async def test_while_the_best_improves_they_do_not(driver):
    better = {1: rising(0.0, 100.0), **{number: flat(10.0 - number) for number in range(2, 7)}}
    await play(driver, better, 8, adaptive_rounds=True)
    assert await explorers(driver) == 0
    assert await replaced(driver)


async def train(
    driver: Any, cohort: pb.ProposeCohortResponse, steps_per_s: float, member_count: int
) -> None:
    """A round of 10 s in which the whole cohort does `steps_per_s`."""
    members = len(cohort.proposals)
    for proposal in cohort.proposals:
        request = driver.submission(proposal.agent.name, 1.0, steps=int(steps_per_s * 10 / members))
        request.cost.FromMilliseconds(10_000 // members)
        request.member_count = member_count
        await driver.stub.SubmitCandidate(request)


async def test_cohorts_become_smaller_where_that_is_faster_in_total(driver):
    await driver.create(population=8)
    sizes = []
    for _ in range(16):
        cohort = await driver.propose(8)
        sizes.append(len(cohort.proposals))
        await train(driver, cohort, {8: 100.0, 4: 200.0}.get(sizes[-1], 150.0), sizes[-1])
    assert sizes[:5] == [8, 8, 8, 8, 4]
    assert sizes[-3:] == [4, 4, 4]


@pytest.mark.parametrize("member_count", [0, 8])
async def test_where_the_job_says_how_many_nothing_is_measured(driver, member_count):
    """The orchestrator then reports no size; and where packing is free, the size stays."""
    await driver.create(population=8)
    sizes = []
    for _ in range(8):
        cohort = await driver.propose(8)
        sizes.append(len(cohort.proposals))
        await train(driver, cohort, 100.0 * sizes[-1], member_count and sizes[-1])
    assert sizes == [8] * 8 if member_count == 0 else [8, 8, 8, 8, 4, 4, 8, 8]


def row_of_round(number: int) -> dict[str, Any]:
    return {
        "board": "b", "request_id": str(number), "agent": f"a{number}", "lineage": "a0", "rung": 1,
        "score": 0.0, "rung_score": float(number), "env_steps": 10, "cost_s": 1.0,
        "line_env_steps": 10 * number, "line_cost_s": float(number), "response": b"",
    }  # fmt: skip


def row_of_agent(number: int) -> dict[str, Any]:
    return {
        "board": "b", "number": number, "name": f"a{number}", "algorithm": "ppo", "spec": b"",
        "origin": "fresh", "state": "retired", "reason": "", "lineage": "a0",
        "create_time": datetime.now(UTC), "waiting_since": number, "env_steps": 10 * number,
        "cost_s": float(number), "rung": 1, "started": True, "replaced": "", "failure": "",
        "best_rung": 0, "best_env_steps": 0, "best_cost_s": 0.0,
    }  # fmt: skip


def agent_of(number: int) -> Agent:
    effort, name = float(number), f"a{number}"
    steps = 10 * number
    return Agent(
        name,
        number,
        "ppo",
        {},
        ("ppo", ()),
        State.WAITING,
        "a0",
        1,
        steps,
        effort,
        effort,
        None,
        0,
        True,
    )


def fill(session: Session) -> None:
    session.add(BoardRow(name="b", job="j", spec=b"", update_time=datetime.now(UTC)))
    session.flush()
    session.execute(insert(AgentRow), [row_of_agent(number) for number in range(2000)])
    session.execute(insert(RoundRow), [row_of_round(number) for number in range(2000)])


@pytest.fixture
async def long_history(tmp_path: Path) -> AsyncIterator[Database]:
    """A board with two thousand agents of one effort each."""
    async with open_database(f"sqlite:///{tmp_path}/a.sqlite", MIGRATIONS) as database:
        await database.write(fill)
        yield database


async def test_a_rung_is_read_from_a_few_rows_of_an_index_however_many_rounds_there_are(
    long_history,
):
    """No more than the nearest rounds are read, and no table is scanned."""
    statements: list[tuple[str, Any]] = []

    def read(session: Session) -> list[str]:
        connection = session.connection()
        event.listen(
            connection.engine, "before_cursor_execute", lambda *a: statements.append((a[2], a[3]))
        )
        for rules in (Rules(), Rules(round=Round(env_steps=10))):
            (scores,) = load_rungs(session, "b", rules, [agent_of(1000)]).values()
            assert len(scores) <= 2 * MAX_ROUNDS + 1
            assert scores[0] == 1000.0
            assert {998.0, 999.0, 1001.0, 1002.0} <= set(scores)
        explained = [
            connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values)
            for text, values in [*statements]
        ]
        return [step[-1] for steps in explained for step in steps]

    plans = await long_history.read(read)
    assert len(plans) == 8
    assert all("USING" in step and "INDEX" in step for step in plans), plans


@pytest.mark.parametrize("window", [8192, 700, 10])
async def test_many_agents_are_judged_by_one_query_as_each_would_be_alone(
    long_history, monkeypatch, window
):
    monkeypatch.setattr("podracer_leaderboard.judged_rounds.MAX_WINDOW", window)
    several = [
        agent_of(number) for number in (0, 1, 60, 128, 129, 500, 1290, 1500, 1871, 1872, 1900, 1999)
    ]
    for rules in (Rules(), Rules(round=Round(env_steps=10))):
        together = await long_history.read(
            lambda session, rules=rules: load_rungs(session, "b", rules, several)
        )
        for each in several:
            alone = await long_history.read(
                lambda session, rules=rules, each=each: load_rungs(session, "b", rules, [each])
            )
            assert together[each.name] == alone[each.name]


async def test_what_lines_had_had_is_stored_with_each_round(server, driver, tmp_path):
    await driver.create(population=1, leaderboard_size=1)
    for _ in range(3):
        await driver.run_round(await driver.propose(1), lambda agent: 1.0)
    await server.stop()
    query = text("SELECT env_steps, cost_s, line_env_steps, line_cost_s FROM rounds ORDER BY rung")
    async with open_database(f"sqlite:///{tmp_path}/leaderboard.sqlite", MIGRATIONS) as database:
        assert await database.read(lambda session: session.execute(query).all()) == [
            (1000, 5.0, 1000, 5.0),
            (1000, 5.0, 2000, 10.0),
            (1000, 5.0, 3000, 15.0),
        ]
    await server.start()

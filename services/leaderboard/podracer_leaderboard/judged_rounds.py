"""What rounds have told, read from their rows: each agent's rung, its curve, and how well cohorts of a size do."""

from __future__ import annotations

import json
from collections.abc import Iterable

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from podracer_leaderboard.agents import Agent
from podracer_leaderboard.packing import Throughput, member_limit
from podracer_leaderboard.rules import Rules
from podracer_leaderboard.rungs import SAME_TO, Front, LineRound, peer_scores
from podracer_leaderboard.search_space import Shape
from podracer_leaderboard.tables import AgentRow, RoundRow, ThroughputRow

MAX_ROUNDS = 128
"""Rounds on either side of an effort that a rung is read from at most, the nearest: a job of any age is quick."""

CURVE_ROUNDS = 8
"""Rounds of an agent's curve, the newest ones."""

NOISE = 0.1
"""A score counts as the best that falls short of it by at most this part of what the best has over the median."""


async def load_peers(
    session: AsyncSession, board: str, rules: Rules, agents: Iterable[Agent]
) -> dict[str, tuple[float, ...]]:
    """Name of an agent whose last round was judged → the scores of its rung, its own first."""
    peers: dict[str, tuple[float, ...]] = {}
    rounds: dict[float, list[LineRound]] = {}  # by effort, which many agents share where rounds are in steps
    for agent in agents:
        if agent.score is None:
            continue
        effort = float(agent.env_steps) if rules.round_env_steps else agent.cost_s
        if effort not in rounds:
            rounds[effort] = await _rounds_near(session, board, rules, effort)
        peers[agent.name] = peer_scores(LineRound(agent.name, 0.0, effort, agent.score), rounds[effort])
    return peers


async def _rounds_near(session: AsyncSession, board: str, rules: Rules, effort: float) -> list[LineRound]:
    """The judged rounds that ended nearest to `effort`, those of the greatest effort first."""
    by_steps = rules.round_env_steps > 0
    column = RoundRow.line_env_steps if by_steps else RoundRow.line_cost_s
    query = (
        select(RoundRow.agent, column, RoundRow.score, AgentRow.env_steps if by_steps else AgentRow.cost_s)
        .join(AgentRow, AgentRow.name == RoundRow.agent)
        .where(RoundRow.board == board, RoundRow.score.is_not(None))
        .limit(MAX_ROUNDS)
    )
    above = query.where(column > effort, column <= effort * SAME_TO).order_by(column, RoundRow.agent)
    below = query.where(column <= effort).order_by(column.desc(), RoundRow.agent.desc())
    rows = [*reversed((await session.execute(above)).all()), *(await session.execute(below)).all()]
    return [LineRound(name, 0.0, after, score, reached) for name, after, score, reached in rows if score is not None]


async def load_curves(
    session: AsyncSession, board: str, rules: Rules, agents: Iterable[Agent]
) -> dict[str, tuple[LineRound, ...]]:
    """Name of an agent → its newest judged rounds, oldest first; empty where none was."""
    curves = {}
    for agent in agents:
        query = (
            select(RoundRow)
            .where(RoundRow.board == board, RoundRow.agent == agent.name, RoundRow.score.is_not(None))
            .order_by(RoundRow.line_cost_s.desc())
            .limit(CURVE_ROUNDS)
        )
        newest_first = [_line_round(row, rules) for row in await session.scalars(query)]
        curves[agent.name] = tuple(reversed(newest_first))
    return curves


async def load_front(session: AsyncSession, board: str, rules: Rules) -> Front | None:
    """How far the board's lines have come; None before the first judged round."""
    effort = RoundRow.line_env_steps if rules.round_env_steps else RoundRow.line_cost_s
    judged = (RoundRow.board == board, RoundRow.score.is_not(None))
    totals = select(func.count(), func.max(effort), func.max(RoundRow.score)).where(*judged)
    count, reached, best = (await session.execute(totals)).one()
    if not count:
        return None
    usual = select(RoundRow.score).where(*judged).order_by(RoundRow.score).offset(count // 2).limit(1)
    median = (await session.scalars(usual)).one()
    assert best is not None and median is not None, "only judged rounds are read"
    as_good = best - NOISE * (best - median)
    first = select(func.min(effort)).where(*judged, RoundRow.score >= as_good)
    return Front(reached, best_since=(await session.scalars(first)).one())


async def load_limits(session: AsyncSession, board: str, shapes: Iterable[Shape], places: int) -> dict[Shape, int]:
    """Shape → how many members a cohort of it may have, for those of which less than `places` is better."""
    by_key = {shape_key(shape): shape for shape in shapes}
    query = select(ThroughputRow).where(ThroughputRow.board == board, ThroughputRow.shape.in_(by_key))
    measured: dict[str, dict[int, Throughput]] = {}
    for row in await session.scalars(query):
        measured.setdefault(row.shape, {})[row.member_count] = Throughput(row.env_steps, row.cost_s, row.rounds)
    return {by_key[key]: limit for key, sizes in measured.items() if (limit := member_limit(sizes, places)) < places}


async def record_throughput(
    session: AsyncSession, board: str, shape: Shape, member_count: int, env_steps: int, cost_s: float
) -> None:
    """One member of a cohort of `member_count` has ended its round; nothing for one without steps or cost."""
    if member_count < 1 or env_steps < 1 or cost_s <= 0.0:
        return
    key = shape_key(shape)
    row = await session.get(ThroughputRow, (board, key, member_count))
    if row is None:
        row = ThroughputRow(board=board, shape=key, member_count=member_count, env_steps=0.0, cost_s=0.0, rounds=0.0)
        session.add(row)
    former = Throughput(row.env_steps, row.cost_s, row.rounds)
    now = former.with_member(env_steps, cost_s, member_count)
    row.env_steps, row.cost_s, row.rounds = now.env_steps, now.cost_s, now.rounds


def shape_key(shape: Shape) -> str:
    """A shape as text, the same for equal shapes."""
    return json.dumps(shape, separators=(",", ":"))


def _line_round(row: RoundRow, rules: Rules) -> LineRound:
    assert row.score is not None, "only judged rounds are read"
    if rules.round_env_steps:
        return LineRound(row.agent, row.line_env_steps - row.env_steps, row.line_env_steps, row.score)
    return LineRound(row.agent, row.line_cost_s - row.cost_s, row.line_cost_s, row.score)

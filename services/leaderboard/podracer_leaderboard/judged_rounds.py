"""Results of rounds, read from their rows: curves, rungs, all progress, and the speed of cohorts of
a size."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from podracer_core.evolution.agents import Agent
from podracer_core.evolution.round_budget import Throughput, member_limit
from podracer_core.evolution.rules import Rules
from podracer_core.evolution.rungs import SAME_TO, Front, LineRound, Rungs
from podracer_core.evolution.search_space import Shape
from podracer_leaderboard.tables import AgentRow, RoundRow, ThroughputRow

CURVE_ROUNDS = 8
"""Rounds of an agent's curve, the newest ones."""

NOISE = 0.1
"""A score counts as the best that falls short of it by at most this part of what the best has over
the median."""

MAX_ROUNDS = 128
"""Rounds on either side of an effort that a rung is read from at most, the nearest: a job of any
age is quick."""

FEW_EFFORTS = 8
"""Most efforts that are looked up one by one."""

MAX_WINDOW = 8192
"""Rounds that are read at once for more, those of the greatest effort; what lies below is looked up
one by one."""


def load_curves(
    session: Session, board: str, rules: Rules, agents: Iterable[Agent]
) -> dict[str, tuple[LineRound, ...]]:
    """Name of an agent → its newest judged rounds, oldest first; empty where none was."""
    curves: dict[str, tuple[LineRound, ...]] = {agent.name: () for agent in agents}
    newest = func.row_number().over(
        partition_by=RoundRow.agent, order_by=RoundRow.line_cost_s.desc()
    )
    of_these = (RoundRow.board == board, RoundRow.agent.in_(curves), RoundRow.score.is_not(None))
    numbered = select(RoundRow, newest.label("age")).where(*of_these).subquery()
    found = aliased(RoundRow, numbered)
    query = select(found).where(numbered.c.age <= CURVE_ROUNDS).order_by(numbered.c.age.desc())
    for row in session.scalars(query):
        curves[row.agent] += (_line_round(row, rules),)
    return curves


def load_rungs(session: Session, board: str, rules: Rules, agents: Iterable[Agent]) -> Rungs:
    """The rungs of these agents."""
    own = [
        LineRound(agent.name, 0.0, rules.effort(agent.env_steps, agent.cost_s), agent.score)
        for agent in agents
        if agent.score is not None
    ]
    return Rungs(own, _rounds_near_each(session, board, rules, {each.after for each in own}))


def load_front(session: Session, board: str, rules: Rules) -> Front | None:
    """How far the board's best lines have come; None before the first judged round."""
    by_steps = rules.round_env_steps > 0
    judged = (RoundRow.board == board, RoundRow.score.is_not(None))
    count, best = session.execute(
        select(func.count(), func.max(RoundRow.score)).where(*judged)
    ).one()
    if not count:
        return None
    usual = (
        select(RoundRow.score).where(*judged).order_by(RoundRow.score).offset(count // 2).limit(1)
    )
    median = session.scalars(usual).one()
    assert best is not None and median is not None, "only judged rounds are read"
    efforts = (
        select(
            func.min(RoundRow.line_env_steps if by_steps else RoundRow.line_cost_s),
            func.max(AgentRow.env_steps if by_steps else AgentRow.cost_s),
        )
        .join(AgentRow, AgentRow.name == RoundRow.agent)
        .where(*judged, RoundRow.score >= best - NOISE * (best - median))
    )
    best_since, reached = session.execute(efforts).one()
    return Front(reached, best_since)


def load_limits(
    session: Session, board: str, shapes: Iterable[Shape], places: int
) -> dict[Shape, int]:
    """Shape → how many members a cohort of it may have, for those of which less than `places` is
    better."""
    by_key = {shape_key(shape): shape for shape in shapes}
    query = select(ThroughputRow).where(
        ThroughputRow.board == board, ThroughputRow.shape.in_(by_key)
    )
    measured: dict[str, dict[int, Throughput]] = {}
    for row in session.scalars(query):
        measured.setdefault(row.shape, {})[row.member_count] = Throughput(
            row.env_steps, row.cost_s, row.rounds
        )
    return {
        by_key[key]: limit
        for key, sizes in measured.items()
        if (limit := member_limit(sizes, places)) < places
    }


def record_throughput(
    session: Session, board: str, shape: Shape, member_count: int, env_steps: int, cost_s: float
) -> None:
    """Count one member's round in a cohort of `member_count`; a round without steps or cost does
    not count."""
    if member_count < 1 or env_steps < 1 or cost_s <= 0.0:
        return
    key = shape_key(shape)
    row = session.get(ThroughputRow, (board, key, member_count))
    if row is None:
        row = ThroughputRow(
            board=board, shape=key, member_count=member_count, env_steps=0.0, cost_s=0.0, rounds=0.0
        )
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
        return LineRound(
            row.agent, row.line_env_steps - row.env_steps, row.line_env_steps, row.score
        )
    return LineRound(row.agent, row.line_cost_s - row.cost_s, row.line_cost_s, row.score)


def _rounds_near_each(
    session: Session, board: str, rules: Rules, efforts: set[float]
) -> dict[float, list[LineRound]]:
    """Effort → `_rounds_near` it; of many efforts most come out of one query."""
    near: dict[float, list[LineRound]] = {}
    if len(efforts) > FEW_EFFORTS:
        query, effort_of = _judged_rounds(board, rules)
        query = query.where(effort_of <= max(efforts) * SAME_TO).limit(MAX_WINDOW)
        rounds = _line_rounds(
            session.execute(query.order_by(effort_of.desc(), RoundRow.agent.desc())).all()
        )
        descending = [-each.after for each in rounds]
        for effort in efforts:
            middle = bisect_left(descending, -effort)
            first = max(bisect_left(descending, -effort * SAME_TO), middle - MAX_ROUNDS)
            last = middle + MAX_ROUNDS
            if last <= len(rounds) or len(rounds) < MAX_WINDOW:
                near[effort] = rounds[first:last]
    return near | {
        effort: _rounds_near(session, board, rules, effort) for effort in efforts - near.keys()
    }


def _rounds_near(session: Session, board: str, rules: Rules, effort: float) -> list[LineRound]:
    """The judged rounds that ended nearest to `effort`, those of the greatest effort first."""
    query, effort_of = _judged_rounds(board, rules)
    query = query.limit(MAX_ROUNDS)
    above = query.where(effort_of > effort, effort_of <= effort * SAME_TO).order_by(
        effort_of, RoundRow.agent
    )
    below = query.where(effort_of <= effort).order_by(effort_of.desc(), RoundRow.agent.desc())
    return _line_rounds([*reversed(session.execute(above).all()), *session.execute(below).all()])


def _judged_rounds(board: str, rules: Rules) -> tuple[Select[Any], InstrumentedAttribute[Any]]:
    """The query for a board's judged rounds, each with what its line has come to since; and its
    column of efforts."""
    by_steps = rules.round_env_steps > 0
    effort_of: InstrumentedAttribute[Any] = (
        RoundRow.line_env_steps if by_steps else RoundRow.line_cost_s
    )
    reached: InstrumentedAttribute[Any] = AgentRow.env_steps if by_steps else AgentRow.cost_s
    query = (
        select(
            RoundRow.agent,
            effort_of,
            RoundRow.rung_score,
            reached,
            RoundRow.episodes,
            RoundRow.variance,
        )
        .join(AgentRow, AgentRow.name == RoundRow.agent)
        .where(RoundRow.board == board, RoundRow.rung_score.is_not(None))
    )
    return query, effort_of


def _line_rounds(rows: Sequence[Any]) -> list[LineRound]:
    return [LineRound(row[0], 0.0, *row[1:]) for row in rows]

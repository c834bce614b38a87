"""Whom agents are judged against, read from the rows of rounds: the scores of each one's rung."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from podracer_leaderboard.agents import Agent
from podracer_leaderboard.rules import Rules
from podracer_leaderboard.rungs import SAME_TO, LineRound, peer_scores
from podracer_leaderboard.tables import AgentRow, RoundRow

MAX_ROUNDS = 128
"""Rounds on either side of an effort that a rung is read from at most, the nearest: a job of any age is quick."""

FEW_EFFORTS = 8
"""So many are looked up one by one."""

MAX_WINDOW = 8192
"""Rounds that are read at once for more, those of the greatest effort; what lies below is looked up one by one."""


def load_peers(session: Session, board: str, rules: Rules, agents: Iterable[Agent]) -> dict[str, tuple[float, ...]]:
    """Name of an agent whose last round was judged → the scores of its rung, its own first."""
    own = [
        LineRound(agent.name, 0.0, rules.effort(agent.env_steps, agent.cost_s), agent.score)
        for agent in agents
        if agent.score is not None
    ]
    near = _rounds_near_each(session, board, rules, {each.after for each in own})
    return {each.agent: peer_scores(each, near[each.after]) for each in own}


def _rounds_near_each(session: Session, board: str, rules: Rules, efforts: set[float]) -> dict[float, list[LineRound]]:
    """Effort → `_rounds_near` it; of many efforts most come out of one query."""
    near: dict[float, list[LineRound]] = {}
    if len(efforts) > FEW_EFFORTS:
        query, effort_of = _judged_rounds(board, rules)
        query = query.where(effort_of <= max(efforts) * SAME_TO).limit(MAX_WINDOW)
        rounds = _line_rounds(session.execute(query.order_by(effort_of.desc(), RoundRow.agent.desc())).all())
        descending = [-each.after for each in rounds]
        for effort in efforts:
            middle = bisect_left(descending, -effort)
            first = max(bisect_left(descending, -effort * SAME_TO), middle - MAX_ROUNDS)
            last = middle + MAX_ROUNDS
            if last <= len(rounds) or len(rounds) < MAX_WINDOW:
                near[effort] = rounds[first:last]
    return near | {effort: _rounds_near(session, board, rules, effort) for effort in efforts - near.keys()}


def _rounds_near(session: Session, board: str, rules: Rules, effort: float) -> list[LineRound]:
    """The judged rounds that ended nearest to `effort`, those of the greatest effort first."""
    query, effort_of = _judged_rounds(board, rules)
    query = query.limit(MAX_ROUNDS)
    above = query.where(effort_of > effort, effort_of <= effort * SAME_TO).order_by(effort_of, RoundRow.agent)
    below = query.where(effort_of <= effort).order_by(effort_of.desc(), RoundRow.agent.desc())
    return _line_rounds([*reversed(session.execute(above).all()), *session.execute(below).all()])


def _judged_rounds(board: str, rules: Rules) -> tuple[Select[Any], InstrumentedAttribute[Any]]:
    """The query for a board's judged rounds, each with what its line has come to since; and its column of efforts."""
    by_steps = rules.round_env_steps > 0
    effort_of: InstrumentedAttribute[Any] = RoundRow.line_env_steps if by_steps else RoundRow.line_cost_s
    reached: InstrumentedAttribute[Any] = AgentRow.env_steps if by_steps else AgentRow.cost_s
    query = (
        select(RoundRow.agent, effort_of, RoundRow.rung_score, reached, RoundRow.episodes, RoundRow.variance)
        .join(AgentRow, AgentRow.name == RoundRow.agent)
        .where(RoundRow.board == board, RoundRow.rung_score.is_not(None))
    )
    return query, effort_of


def _line_rounds(rows: Sequence[Any]) -> list[LineRound]:
    return [LineRound(row[0], 0.0, *row[1:]) for row in rows]

"""What rounds have told, read from their rows: each agent's curve, all progress, how well cohorts of a size do."""

from __future__ import annotations

import json
from collections.abc import Iterable

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from podracer_leaderboard.agents import Agent
from podracer_leaderboard.packing import Throughput, member_limit
from podracer_leaderboard.rules import Rules
from podracer_leaderboard.rungs import Front, LineRound
from podracer_leaderboard.search_space import Shape
from podracer_leaderboard.tables import AgentRow, RoundRow, ThroughputRow

CURVE_ROUNDS = 8
"""Rounds of an agent's curve, the newest ones."""

NOISE = 0.1
"""A score counts as the best that falls short of it by at most this part of what the best has over the median."""


def load_curves(
    session: Session, board: str, rules: Rules, agents: Iterable[Agent]
) -> dict[str, tuple[LineRound, ...]]:
    """Name of an agent → its newest judged rounds, oldest first; empty where none was."""
    curves: dict[str, tuple[LineRound, ...]] = {agent.name: () for agent in agents}
    newest = func.row_number().over(partition_by=RoundRow.agent, order_by=RoundRow.line_cost_s.desc())
    of_these = (RoundRow.board == board, RoundRow.agent.in_(curves), RoundRow.score.is_not(None))
    numbered = select(RoundRow, newest.label("age")).where(*of_these).subquery()
    found = aliased(RoundRow, numbered)
    query = select(found).where(numbered.c.age <= CURVE_ROUNDS).order_by(numbered.c.age.desc())
    for row in session.scalars(query):
        curves[row.agent] += (_line_round(row, rules),)
    return curves


def load_front(session: Session, board: str, rules: Rules) -> Front | None:
    """How far the board's best lines have come; None before the first judged round."""
    by_steps = rules.round_env_steps > 0
    judged = (RoundRow.board == board, RoundRow.score.is_not(None))
    count, best = session.execute(select(func.count(), func.max(RoundRow.score)).where(*judged)).one()
    if not count:
        return None
    usual = select(RoundRow.score).where(*judged).order_by(RoundRow.score).offset(count // 2).limit(1)
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


def load_limits(session: Session, board: str, shapes: Iterable[Shape], places: int) -> dict[Shape, int]:
    """Shape → how many members a cohort of it may have, for those of which less than `places` is better."""
    by_key = {shape_key(shape): shape for shape in shapes}
    query = select(ThroughputRow).where(ThroughputRow.board == board, ThroughputRow.shape.in_(by_key))
    measured: dict[str, dict[int, Throughput]] = {}
    for row in session.scalars(query):
        measured.setdefault(row.shape, {})[row.member_count] = Throughput(row.env_steps, row.cost_s, row.rounds)
    return {by_key[key]: limit for key, sizes in measured.items() if (limit := member_limit(sizes, places)) < places}


def record_throughput(
    session: Session, board: str, shape: Shape, member_count: int, env_steps: int, cost_s: float
) -> None:
    """One member of a cohort of `member_count` has ended its round; nothing for one without steps or cost."""
    if member_count < 1 or env_steps < 1 or cost_s <= 0.0:
        return
    key = shape_key(shape)
    row = session.get(ThroughputRow, (board, key, member_count))
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

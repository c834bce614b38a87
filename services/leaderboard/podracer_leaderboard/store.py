"""Rows to domain and back, for all use cases."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from podracer.common.v1 import agent_pb2
from podracer_core.catalogue.algorithms import find_algorithm
from podracer_core.catalogue.ranges import HyperparameterValue
from podracer_core.errors import InvalidInput, NotFound
from podracer_core.evolution.agents import ALIVE, Action, Agent, Population, State
from podracer_core.evolution.rules import Rules
from podracer_core.evolution.search_space import Shape, shape_of
from podracer_core.evolution.updater import Entry, ranked
from podracer_core.statistics import EXCESS_LEVEL, excess_probability
from podracer_leaderboard.judged_rounds import load_curves, load_front, load_rungs
from podracer_leaderboard.tables import AgentRow, BoardRow, CandidateRow
from podracer_platform.messages.catalogue import hyperparameters_from_message
from podracer_platform.rpc.bounds import page

NEWEST_IN_HISTORY, BEST_IN_HISTORY = 192, 64
"""Agents of `Population.history` at most: what a sampler makes of more takes longer and says little
more."""
DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000


def now() -> datetime:
    return datetime.now(UTC)


def tick(board: BoardRow) -> int:
    """The next count of the board's clock."""
    board.clock += 1
    return board.clock


def get_board(session: Session, name: str) -> BoardRow:
    """Raises NotFound."""
    board = session.get(BoardRow, name)
    if board is None:
        raise NotFound(
            f"there is no leaderboard {name}", reason="LEADERBOARD_NOT_FOUND", leaderboard=name
        )
    return board


def get_agent(session: Session, name: str, board: str | None = None) -> AgentRow:
    """An agent by its name, of `board` where that is given. Raises NotFound."""
    query = select(AgentRow).where(AgentRow.name == name)
    agent = session.scalars(
        query if board is None else query.where(AgentRow.board == board)
    ).first()
    if agent is None:
        where = f" on {board}" if board else ""
        raise NotFound(f"there is no agent {name}{where}", reason="AGENT_NOT_FOUND", agent=name)
    return agent


def get_candidates(session: Session, board: str) -> list[CandidateRow]:
    """The rows on the board, best first."""
    rows = {
        row.agent: row
        for row in session.scalars(select(CandidateRow).where(CandidateRow.board == board))
    }
    return [rows[entry.agent] for entry in ranked(entries(session, list(rows.values())))]


def entries(session: Session, candidates: Sequence[CandidateRow]) -> list[Entry]:
    """Candidates as the ranking sees them, all of one board."""
    excluded = exclusions(session, get_board(session, candidates[0].board)) if candidates else {}
    return [
        Entry(
            row.agent,
            row.lineage,
            row.score,
            row.mean,
            row.entry_order,
            row.confirmed,
            row.final,
            row.agent in excluded,
        )
        for row in candidates
    ]


def exclusions(session: Session, board: BoardRow) -> dict[str, str]:
    """The agents that cannot be first, of those that are alive or on the board, and why: so great a
    share of broken episodes as theirs would be chance in less than `EXCESS_LEVEL` of boards whose
    agents all break as often."""
    if not board.broken_episodes:
        return {}
    broken_here = AgentRow.broken_numbers + AgentRow.broken_code
    on_board = select(CandidateRow.agent).where(CandidateRow.board == board.name)
    query = select(AgentRow.name, AgentRow.episodes, broken_here).where(
        AgentRow.board == board.name,
        broken_here * board.episodes > board.broken_episodes * AgentRow.episodes,
        or_(AgentRow.state.in_([*ALIVE]), AgentRow.name.in_(on_board)),
    )
    found = {}
    for name, episodes, broken in session.execute(query.order_by(AgentRow.number)):
        others, others_broken = board.episodes - episodes, board.broken_episodes - broken
        if excess_probability(broken, episodes, others_broken, others) < EXCESS_LEVEL:
            text = (
                f"its environment broke in {broken:,} of {episodes:,} episodes, those of the "
                "other agents in"
            )
            found[name] = f"{text} {others_broken:,} of {others:,}"
    return found


class Numbered(Protocol):
    """A row with a place in its list."""

    @property
    def number(self) -> Any: ...


Row = TypeVar("Row", bound=Numbered)
Query = TypeVar("Query", bound=Select[Any])


def page_query(
    query: Query,
    number: InstrumentedAttribute[int],
    size: int,
    token: str,
    *,
    newest_first: bool = False,
) -> Query:
    """`query` in order and cut to one page, and one row more that tells whether another follows.

    Raises InvalidInput for a wrong size or token.
    """
    if token:
        last = _last_number(token)
        query = query.where(number < last if newest_first else number > last)
    return query.order_by(number.desc() if newest_first else number).limit(_checked_size(size) + 1)


def page_of_board(
    session: Session, board: str, query: Select[Row], size: int, message: Callable[[Row], Any]
) -> tuple[list[Any], str]:
    """The messages of a page of a board, and the token of the next one; empty on the last. Raises
    NotFound."""
    get_board(session, board)
    with closing(session.scalars(query.execution_options(yield_per=100))) as rows:
        return page(rows, _checked_size(size), message, lambda row: str(row.number))


def _checked_size(size: int) -> int:
    if not 0 <= size <= MAX_PAGE_SIZE:
        raise InvalidInput.of(
            "page_size", f"expected 1 to {MAX_PAGE_SIZE}, or 0 for {DEFAULT_PAGE_SIZE}; got {size}"
        )
    return size or DEFAULT_PAGE_SIZE


def _last_number(token: str) -> int:
    if not (token.isascii() and token.isdecimal() and len(token) < 19):
        raise InvalidInput.of("page_token", "was not given by a former response")
    return int(token)


def load_living(session: Session, board: str) -> dict[str, AgentRow]:
    """Name → row of the agents that are alive or on the board."""
    on_board = select(CandidateRow.agent).where(CandidateRow.board == board)
    query = select(AgentRow).where(
        AgentRow.board == board, or_(AgentRow.state.in_([*ALIVE]), AgentRow.name.in_(on_board))
    )
    return {row.name: row for row in session.scalars(query.order_by(AgentRow.number))}


def load_population(
    session: Session,
    board: BoardRow,
    living: dict[str, AgentRow],
    rules: Rules,
    *,
    with_history: bool = False,
) -> Population:
    """The population of a board, for the generator."""
    agents = {row.name: _agent(row) for row in living.values()}
    waiting = [agent for agent in agents.values() if agent.state is State.WAITING]
    fresh = select(AgentRow.algorithm, func.count()).where(
        AgentRow.board == board.name, AgentRow.origin == Action.FRESH
    )
    counts = session.execute(fresh.group_by(AgentRow.algorithm))
    peers = load_rungs(session, board.name, rules, waiting)
    agents |= {
        name: replace(agents[name], score=score) for name, score in peers.shrunken_scores().items()
    }
    front = load_front(session, board.name, rules) if rules.adaptive_rounds else None
    return Population(
        agents=tuple(agents.values()),
        created=board.agent_count,
        fresh_counts=dict(counts.all()),
        peers=peers,
        curves=load_curves(session, board.name, rules, waiting),
        elites=tuple(agents[row.agent] for row in get_candidates(session, board.name)),
        history=_history(session, board) if with_history else (),
        stagnates=front is not None and front.stagnates(rules),
    )


def _history(session: Session, board: BoardRow) -> tuple[Agent, ...]:
    judged = select(AgentRow).where(AgentRow.board == board.name, AgentRow.best_score.is_not(None))
    newest = session.scalars(judged.order_by(AgentRow.number.desc()).limit(NEWEST_IN_HISTORY))
    best = session.scalars(
        judged.order_by(AgentRow.best_score.desc(), AgentRow.number).limit(BEST_IN_HISTORY)
    )
    rows = {row.number: row for row in (*newest, *best)}
    return tuple(_agent(rows[number]) for number in sorted(rows))


@functools.lru_cache(maxsize=8192)
def _decoded(spec: bytes) -> tuple[Mapping[str, HyperparameterValue], Shape]:
    """The hyperparameters and the shape of a stored AgentSpec, which never changes."""
    message = agent_pb2.AgentSpec.FromString(spec)
    own = hyperparameters_from_message(message.hyperparameters)
    hyperparameters = MappingProxyType(find_algorithm(message.algorithm).former_defaults() | own)
    return hyperparameters, shape_of(message.algorithm, hyperparameters)


def shape_of_row(row: AgentRow) -> Shape:
    """The shape of an agent."""
    return _decoded(row.spec)[1]


def _agent(row: AgentRow) -> Agent:
    hyperparameters, shape = _decoded(row.spec)
    return Agent(
        name=row.name,
        number=row.number,
        algorithm=row.algorithm,
        hyperparameters=hyperparameters,
        shape=shape,
        state=State(row.state),
        lineage=row.lineage,
        rung=row.rung,
        env_steps=row.env_steps,
        cost_s=row.cost_s,
        score=row.latest_score,
        best_score=row.best_score,
        waiting_since=row.waiting_since,
        started=row.started,
        generation=row.generation,
        forked=bool(row.fork_request),
        pinned=row.pinned,
    )

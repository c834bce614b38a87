"""The rows that last. Protos are kept as bytes where nothing but the service's answers needs what
is in them. And which boards have changed."""

from __future__ import annotations

import asyncio
from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, LargeBinary, MetaData, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

from podracer_platform.database import PlainText, UtcTime

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Tables(MappedAsDataclass, DeclarativeBase, kw_only=True):
    """Base of all rows."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {bytes: LargeBinary, str: PlainText, int: BigInteger, datetime: UtcTime}  # noqa: RUF012


def _board() -> Mapped[str]:
    return mapped_column(ForeignKey("boards.name", ondelete="CASCADE"), primary_key=True)


def _counter() -> Mapped[int]:
    # SQLite counts up only what is declared INTEGER; that has 64 bits there.
    return mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, init=False)


class BoardRow(Tables, kw_only=True):
    """A leaderboard.

    revision        counts changes of the ranking
    clock           counts everything that happens to agents: the order in which they wait and enter
    proposal_count  stored answers of ProposeCohort; numbers the random streams
    lowest_return   the lowest return of an intact evaluated episode, which ranking counts broken
                    ones with
    episodes, broken_episodes  of all evaluations, and those of them that broke
    """

    __tablename__ = "boards"

    name: Mapped[str] = mapped_column(primary_key=True)
    job: Mapped[str] = mapped_column(unique=True)
    spec: Mapped[bytes]
    update_time: Mapped[datetime]
    revision: Mapped[int] = mapped_column(default=1)
    clock: Mapped[int] = mapped_column(default=0)
    agent_count: Mapped[int] = mapped_column(default=0)
    proposal_count: Mapped[int] = mapped_column(default=0)
    lowest_return: Mapped[float | None] = mapped_column(default=None)
    episodes: Mapped[int] = mapped_column(default=0)
    broken_episodes: Mapped[int] = mapped_column(default=0)


class AgentRow(Tables, kw_only=True):
    """An agent: `spec` is what never changes of its AgentSpec; the `best_` columns belong to its
    best candidate.

    latest_score  what its last round is compared by within its rung; None where it was not judged
    fork_request  id of the request by which a user forked it; empty for one that a generator wanted
    pinned        a user wants that no other takes its place
    stopping      a user has stopped it while a pod has it
    episodes, broken_numbers, broken_code  of its evaluations, and those of them that broke, by kind
    """

    __tablename__ = "agents"
    __table_args__ = (
        Index(None, "board", "state"),
        Index(None, "board", "lineage"),
        Index(None, "board", "fork_request"),
    )

    board: Mapped[str] = _board()
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(unique=True)
    algorithm: Mapped[str]
    spec: Mapped[bytes]
    origin: Mapped[str]
    state: Mapped[str]
    reason: Mapped[str] = mapped_column(Text)
    lineage: Mapped[str]
    create_time: Mapped[datetime]
    waiting_since: Mapped[int]
    env_steps: Mapped[int]
    cost_s: Mapped[float]
    rung: Mapped[int]
    started: Mapped[bool] = mapped_column(default=False)
    replaced: Mapped[str] = mapped_column(default="")
    failure: Mapped[str] = mapped_column(Text, default="")
    latest_checkpoint: Mapped[bytes | None] = mapped_column(default=None)
    latest_evaluation: Mapped[bytes | None] = mapped_column(default=None)
    latest_score: Mapped[float | None] = mapped_column(default=None)
    best_evaluation: Mapped[bytes | None] = mapped_column(default=None)
    best_score: Mapped[float | None] = mapped_column(default=None)
    best_rung: Mapped[int] = mapped_column(default=0)
    best_env_steps: Mapped[int] = mapped_column(default=0)
    best_cost_s: Mapped[float] = mapped_column(default=0.0)
    generation: Mapped[int] = mapped_column(default=0)
    fork_request: Mapped[str] = mapped_column(default="")
    pinned: Mapped[bool] = mapped_column(default=False)
    stopping: Mapped[bool] = mapped_column(default=False)
    episodes: Mapped[int] = mapped_column(default=0)
    broken_numbers: Mapped[int] = mapped_column(default=0)
    broken_code: Mapped[int] = mapped_column(default=0)


class ParentRow(Tables, kw_only=True):
    """A parent of an agent: `parent` gave weights to `child`."""

    __tablename__ = "parents"
    __table_args__ = (Index(None, "parent"),)

    board: Mapped[str] = _board()
    child: Mapped[str] = mapped_column(primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True)
    parent: Mapped[str]


class RoundRow(Tables, kw_only=True):
    """A round that an agent finished, with the stored answer to its report.

    The `line_` columns are what its line had had when the round ended, its ancestors' training
    included; the indexes over them find a rung. `score` ranks candidates; what rungs compare is
    `rung_score` and what it is made of."""

    __tablename__ = "rounds"
    __table_args__ = (
        Index(None, "board", "line_cost_s", "agent", "score"),
        Index(None, "board", "line_env_steps", "agent", "score"),
        Index(None, "board", "agent", "line_cost_s"),
        Index(None, "board", "lineage"),
    )

    board: Mapped[str] = _board()
    request_id: Mapped[str] = mapped_column(primary_key=True)
    agent: Mapped[str]
    lineage: Mapped[str]
    rung: Mapped[int]
    score: Mapped[float | None]
    rung_score: Mapped[float | None]
    episodes: Mapped[int] = mapped_column(default=1)
    variance: Mapped[float] = mapped_column(default=0.0)
    env_steps: Mapped[int]
    cost_s: Mapped[float]
    line_env_steps: Mapped[int]
    line_cost_s: Mapped[float]
    response: Mapped[bytes]


class ThroughputRow(Tables, kw_only=True):
    """Throughput of rounds of one shape and cohort size, all members together; see
    `round_budget.Throughput`."""

    __tablename__ = "throughputs"

    board: Mapped[str] = _board()
    shape: Mapped[str] = mapped_column(primary_key=True)
    member_count: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    env_steps: Mapped[float]
    cost_s: Mapped[float]
    rounds: Mapped[float]


class CandidateRow(Tables, kw_only=True):
    """An agent's place on the board.

    confirmed  whether its evaluation is a challenge or a final, with fresh seeds
    final      whether it is the final of its job
    former     agent whose confirmed candidate gave way to this one, which is not confirmed yet;
               empty for none
    """

    __tablename__ = "candidates"

    board: Mapped[str] = _board()
    agent: Mapped[str] = mapped_column(primary_key=True)
    lineage: Mapped[str]
    score: Mapped[float]
    mean: Mapped[float]
    entry_order: Mapped[int]
    admit_time: Mapped[datetime]
    evaluation: Mapped[bytes]
    confirmed: Mapped[bool] = mapped_column(default=False)
    final: Mapped[bool] = mapped_column(default=False)
    former: Mapped[str] = mapped_column(default="")


class EvaluationRow(Tables, kw_only=True):
    """An evaluation in the history; `number` is its place there, `challenged` what a challenge is
    of, by prefix."""

    __tablename__ = "evaluations"
    __table_args__ = (
        Index(None, "board", "evaluation_id", unique=True),
        Index(None, "board", "agent", "number"),
        {"sqlite_autoincrement": True},
    )

    number: Mapped[int] = _counter()
    board: Mapped[str] = mapped_column(ForeignKey("boards.name", ondelete="CASCADE"))
    evaluation_id: Mapped[str]
    agent: Mapped[str]
    has_checkpoint: Mapped[bool]
    evaluation: Mapped[bytes]
    challenged: Mapped[str] = mapped_column(default="")


class ProposalRow(Tables, kw_only=True):
    """A stored answer of ProposeCohort."""

    __tablename__ = "proposals"

    board: Mapped[str] = _board()
    request_id: Mapped[str] = mapped_column(primary_key=True)
    response: Mapped[bytes]


class AliasRow(Tables, kw_only=True):
    """One change of an alias; the newest of a name is where it points now."""

    __tablename__ = "alias_changes"
    __table_args__ = (
        Index(None, "board", "alias", "number"),
        Index(None, "board", "request_id"),
        {"sqlite_autoincrement": True},
    )

    number: Mapped[int] = _counter()
    board: Mapped[str] = mapped_column(ForeignKey("boards.name", ondelete="CASCADE"))
    alias: Mapped[str]
    agent: Mapped[str]
    checkpoint: Mapped[bytes]
    reason: Mapped[str] = mapped_column(Text)
    request_id: Mapped[str]
    create_time: Mapped[datetime]


class Changes:
    """A notification for all watchers."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.is_draining = False

    def next_change(self) -> asyncio.Event:
        """An event that the first `ring` after this call sets. Take it before reading the state, to
        miss no change."""
        return self._event

    def ring(self) -> None:
        """Report a change to all watchers."""
        self._event.set()
        self._event = asyncio.Event()

    def drain(self) -> None:
        """The server is about to end."""
        self.is_draining = True
        self.ring()

"""Leaderboards: create, read, watch, delete; and their aliases, names such as `champion`."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.errors import AlreadyExists, PreconditionFailed
from podracer_leaderboard import messages, store
from podracer_leaderboard.competition import read_competition
from podracer_leaderboard.places import check_founders
from podracer_leaderboard.store import page_of_board, page_query
from podracer_leaderboard.tables import AgentRow, AliasRow, BoardRow, CandidateRow, Changes
from podracer_platform.database import Database
from podracer_platform.rpc import MESSAGE_BYTES

LISTED_BYTES = MESSAGE_BYTES // 4
"""Candidates after so many bytes have no episodes: their number is limited, and so is what remains
of each."""


class Boards:
    """Answers CreateLeaderboard, GetLeaderboard, WatchLeaderboard and DeleteLeaderboard."""

    def __init__(self, database: Database, changes: Changes) -> None:
        self._database = database
        self._changes = changes

    async def create(
        self, name: str, spec: leaderboard_pb2.LeaderboardSpec
    ) -> leaderboard_pb2.Leaderboard:
        """The leaderboard, new or as it was.

        Raises InvalidInput for an invalid spec or founder, AlreadyExists if the name belongs to
        another job."""
        messages.check_leaderboard(name, "name")
        messages.check_job(spec.job, "spec.job")
        check_founders(spec.founders, read_competition(spec))

        def operation(session: Session) -> leaderboard_pb2.Leaderboard:
            board = session.get(BoardRow, name)
            if board is None:
                taken = session.scalars(
                    select(BoardRow.name).where(BoardRow.job == spec.job)
                ).first()
                if taken is not None:
                    raise _taken(f"job {spec.job} has the leaderboard {taken}", name)
                board = BoardRow(
                    name=name, job=spec.job, spec=messages.to_bytes(spec), update_time=store.now()
                )
                session.add(board)
                session.flush()
            elif not _is_same(leaderboard_pb2.LeaderboardSpec.FromString(board.spec), spec):
                raise _taken(f"leaderboard {name} exists and belongs to another job or spec", name)
            return _leaderboard(session, board)

        return await self._database.write(operation)

    async def get(self, name: str) -> leaderboard_pb2.Leaderboard:
        """Raises NotFound."""
        messages.check_leaderboard(name, "name")
        return await self._database.read(
            lambda session: _leaderboard(session, store.get_board(session, name))
        )

    async def watch(
        self, name: str, after_revision: int
    ) -> AsyncIterator[leaderboard_pb2.WatchLeaderboardResponse]:
        """The leaderboard at each revision after `after_revision`; ends when it is deleted, or says
        that it drains.

        Skips revisions that follow faster than they can be sent. Raises NotFound at the beginning.
        """
        messages.check_leaderboard(name, "name")
        await self._database.read(lambda session: store.get_board(session, name))
        while not self._changes.is_draining:
            change = self._changes.next_change()
            read = functools.partial(_newer, name=name, after_revision=after_revision)
            is_there, leaderboard = await self._database.read(read)
            if not is_there:
                return
            if leaderboard is not None:
                after_revision = leaderboard.revision
                yield leaderboard_pb2.WatchLeaderboardResponse(leaderboard=leaderboard)
            await change.wait()
        yield leaderboard_pb2.WatchLeaderboardResponse(draining=True)

    async def delete(self, name: str) -> None:
        """Delete a leaderboard with all its data; nothing happens if it does not exist."""
        messages.check_leaderboard(name, "name")
        await self._database.write(
            lambda session: session.execute(delete(BoardRow).where(BoardRow.name == name))
        )
        self._changes.ring()


class Aliases:
    """Answers SetAlias and ListAliasHistory."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def set(
        self, request: leaderboard_pb2.SetAliasRequest
    ) -> leaderboard_pb2.SetAliasResponse:
        """Point an alias at an agent's candidate, at a named checkpoint, or at nothing.

        Raises PreconditionFailed (NO_CANDIDATE) for an agent without a judged snapshot. With a
        checkpoint the agent may be one of another job: what the caller says of it is taken as it
        is."""
        messages.check_leaderboard(request.leaderboard)
        messages.check_alias(request.alias)
        if request.HasField("checkpoint"):
            messages.check_agent(request.agent)

        def operation(session: Session) -> AliasRow:
            board = store.get_board(session, request.leaderboard)
            row = _alias_by_request(session, board.name, request.request_id)
            if row is None:
                checkpoint = _alias_checkpoint(session, board.name, request)
                row = AliasRow(
                    board=board.name,
                    alias=request.alias,
                    agent=request.agent,
                    checkpoint=checkpoint,
                    reason=request.reason,
                    request_id=request.request_id,
                    create_time=store.now(),
                )
                session.add(row)
            return row

        return leaderboard_pb2.SetAliasResponse(
            change=messages.alias_change(await self._database.write(operation))
        )

    async def history(
        self, request: leaderboard_pb2.ListAliasHistoryRequest
    ) -> leaderboard_pb2.ListAliasHistoryResponse:
        """Newest first."""
        messages.check_leaderboard(request.leaderboard)
        query = select(AliasRow).where(AliasRow.board == request.leaderboard)
        if request.alias:
            query = query.where(AliasRow.alias == messages.check_alias(request.alias))
        query = page_query(
            query, AliasRow.number, request.page_size, request.page_token, newest_first=True
        )
        changes, token = await self._database.read(
            lambda session: page_of_board(
                session, request.leaderboard, query, request.page_size, messages.alias_change
            )
        )
        return leaderboard_pb2.ListAliasHistoryResponse(changes=changes, next_page_token=token)


def _newer(
    session: Session, name: str, after_revision: int
) -> tuple[bool, leaderboard_pb2.Leaderboard | None]:
    """Whether the board is there, and itself where its revision is a newer one."""
    board = session.get(BoardRow, name)
    if board is None:
        return False, None
    return True, _leaderboard(session, board) if board.revision > after_revision else None


def _leaderboard(session: Session, board: BoardRow) -> leaderboard_pb2.Leaderboard:
    rows = store.get_candidates(session, board.name)
    query = select(AgentRow).where(
        AgentRow.board == board.name, AgentRow.name.in_([row.agent for row in rows])
    )
    agents = {agent.name: agent for agent in session.scalars(query)}
    excluded = store.exclusions(session, board)
    candidates = [
        messages.candidate(rank, row, agents[row.agent], excluded.get(row.agent, ""))
        for rank, row in enumerate(rows, start=1)
    ]
    left = LISTED_BYTES
    for candidate in candidates:
        left -= candidate.ByteSize()
        if left < 0:
            messages.leave_out_episodes(candidate)
    return messages.leaderboard(board, candidates, _current_aliases(session, board.name))


def _is_same(
    stored: leaderboard_pb2.LeaderboardSpec, spec: leaderboard_pb2.LeaderboardSpec
) -> bool:
    """A job keeps its uid for life; one without is told by everything else."""
    return (
        (stored.job, stored.job_uid) == (spec.job, spec.job_uid) if spec.job_uid else stored == spec
    )


def _taken(problem: str, name: str) -> AlreadyExists:
    return AlreadyExists(problem, reason="LEADERBOARD_EXISTS", leaderboard=name)


def _current_aliases(session: Session, board: str) -> dict[str, str]:
    """Alias → its current agent."""
    newest = (
        select(func.max(AliasRow.number)).where(AliasRow.board == board).group_by(AliasRow.alias)
    )
    rows = session.scalars(
        select(AliasRow).where(AliasRow.number.in_(newest)).order_by(AliasRow.alias)
    )
    return {row.alias: row.agent for row in rows if row.agent}


def _alias_by_request(session: Session, board: str, request_id: str) -> AliasRow | None:
    if not request_id:
        return None
    query = select(AliasRow).where(AliasRow.board == board, AliasRow.request_id == request_id)
    return session.scalars(query).first()


def _alias_checkpoint(
    session: Session, board: str, request: leaderboard_pb2.SetAliasRequest
) -> bytes:
    """The named checkpoint, else that of the agent's place on the board, else of its best
    candidate."""
    if request.HasField("checkpoint"):
        return messages.to_bytes(request.checkpoint)
    if not request.agent:
        return b""
    row = store.get_agent(session, messages.check_agent(request.agent), board)
    candidate = session.get(CandidateRow, (board, request.agent))
    evaluation = row.best_evaluation if candidate is None else candidate.evaluation
    if evaluation is None:
        message = f"agent {request.agent} has no candidate: no snapshot of it was judged yet"
        raise PreconditionFailed(message, reason="NO_CANDIDATE", agent=request.agent)
    return messages.to_bytes(agent_pb2.Evaluation.FromString(evaluation).checkpoint)

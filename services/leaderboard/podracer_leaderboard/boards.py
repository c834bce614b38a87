"""Leaderboards themselves: made, read, watched, deleted."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.database import Database
from podracer_core.errors import AlreadyExists
from podracer_leaderboard import messages, names, store
from podracer_leaderboard.aliases import current_aliases
from podracer_leaderboard.changes import Changes
from podracer_leaderboard.competition import read_competition
from podracer_leaderboard.founders import check_founders
from podracer_leaderboard.tables import AgentRow, BoardRow


class Boards:
    """Answers CreateLeaderboard, GetLeaderboard, WatchLeaderboard and DeleteLeaderboard."""

    def __init__(self, database: Database, changes: Changes) -> None:
        self._database = database
        self._changes = changes

    async def create(self, name: str, spec: leaderboard_pb2.LeaderboardSpec) -> leaderboard_pb2.Leaderboard:
        """The leaderboard, new or as it was.

        Raises InvalidInput for a spec or a founder that cannot be right, AlreadyExists where the name is another job's.
        """
        names.check_leaderboard(name, "name")
        names.check_job(spec.job, "spec.job")
        check_founders(spec.founders, read_competition(spec))

        def operation(session: Session) -> leaderboard_pb2.Leaderboard:
            board = session.get(BoardRow, name)
            if board is None:
                taken = session.scalars(select(BoardRow.name).where(BoardRow.job == spec.job)).first()
                if taken is not None:
                    raise _taken(f"job {spec.job} has the leaderboard {taken}", name)
                board = BoardRow(name=name, job=spec.job, spec=messages.to_bytes(spec), update_time=store.now())
                session.add(board)
                session.flush()
            elif not _is_same(leaderboard_pb2.LeaderboardSpec.FromString(board.spec), spec):
                raise _taken(f"leaderboard {name} exists and belongs to another job or spec", name)
            return _leaderboard(session, board)

        return await self._database.write(operation)

    async def get(self, name: str) -> leaderboard_pb2.Leaderboard:
        """Raises NotFound."""
        names.check_leaderboard(name, "name")
        return await self._database.read(lambda session: _leaderboard(session, store.get_board(session, name)))

    async def watch(self, name: str, after_revision: int) -> AsyncIterator[leaderboard_pb2.WatchLeaderboardResponse]:
        """The leaderboard at each revision after `after_revision`; ends when it is deleted, or says that it drains.

        Revisions that follow one another faster than they can be sent are skipped. Raises NotFound at the beginning.
        """
        names.check_leaderboard(name, "name")
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
        """With all that belongs to it; nothing where it is not there."""
        names.check_leaderboard(name, "name")
        await self._database.write(lambda session: session.execute(delete(BoardRow).where(BoardRow.name == name)))
        self._changes.ring()


def _newer(session: Session, name: str, after_revision: int) -> tuple[bool, leaderboard_pb2.Leaderboard | None]:
    """Whether the board is there, and itself where its revision is a newer one."""
    board = session.get(BoardRow, name)
    if board is None:
        return False, None
    return True, _leaderboard(session, board) if board.revision > after_revision else None


def _leaderboard(session: Session, board: BoardRow) -> leaderboard_pb2.Leaderboard:
    rows = store.get_candidates(session, board.name)
    query = select(AgentRow).where(AgentRow.board == board.name, AgentRow.name.in_([row.agent for row in rows]))
    agents = {agent.name: agent for agent in session.scalars(query)}
    candidates = [messages.candidate(rank, row, agents[row.agent]) for rank, row in enumerate(rows, start=1)]
    return messages.leaderboard(board, candidates, current_aliases(session, board.name))


def _is_same(stored: leaderboard_pb2.LeaderboardSpec, spec: leaderboard_pb2.LeaderboardSpec) -> bool:
    """A job keeps its uid for life; one without is told by everything else."""
    return (stored.job, stored.job_uid) == (spec.job, spec.job_uid) if spec.job_uid else stored == spec


def _taken(problem: str, name: str) -> AlreadyExists:
    return AlreadyExists(problem, reason="LEADERBOARD_EXISTS", leaderboard=name)

"""SetAlias and ListAliasHistory: names such as `champion` that point at candidates."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.database import Database
from podracer_core.errors import PreconditionFailed
from podracer_leaderboard import messages, names, store
from podracer_leaderboard.pages import page_of_board, page_query
from podracer_leaderboard.tables import AliasRow, CandidateRow


class Aliases:
    """Answers SetAlias and ListAliasHistory."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def set(self, request: leaderboard_pb2.SetAliasRequest) -> leaderboard_pb2.SetAliasResponse:
        """Point an alias at an agent's candidate, at a checkpoint that is named, or at nothing.

        Raises PreconditionFailed (NO_CANDIDATE) for an agent of which no snapshot was ever judged. With a checkpoint
        the agent may be one of another job: what the caller says of it is taken as it is.
        """
        names.check_leaderboard(request.leaderboard)
        names.check_alias(request.alias)
        if request.HasField("checkpoint"):
            names.check_agent(request.agent)

        def operation(session: Session) -> AliasRow:
            board = store.get_board(session, request.leaderboard)
            row = _by_request(session, board.name, request.request_id)
            if row is None:
                checkpoint = _checkpoint(session, board.name, request)
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

        return leaderboard_pb2.SetAliasResponse(change=messages.alias_change(await self._database.write(operation)))

    async def history(
        self, request: leaderboard_pb2.ListAliasHistoryRequest
    ) -> leaderboard_pb2.ListAliasHistoryResponse:
        """Newest first."""
        names.check_leaderboard(request.leaderboard)
        query = select(AliasRow).where(AliasRow.board == request.leaderboard)
        if request.alias:
            query = query.where(AliasRow.alias == names.check_alias(request.alias))
        query = page_query(query, AliasRow.number, request.page_size, request.page_token, newest_first=True)
        rows, token = await self._database.read(
            lambda session: page_of_board(session, request.leaderboard, query, request.page_size)
        )
        return leaderboard_pb2.ListAliasHistoryResponse(
            changes=[messages.alias_change(row) for row in rows], next_page_token=token
        )


def current_aliases(session: Session, board: str) -> dict[str, str]:
    """Alias → the agent that it points at now."""
    newest = select(func.max(AliasRow.number)).where(AliasRow.board == board).group_by(AliasRow.alias)
    rows = session.scalars(select(AliasRow).where(AliasRow.number.in_(newest)).order_by(AliasRow.alias))
    return {row.alias: row.agent for row in rows if row.agent}


def _by_request(session: Session, board: str, request_id: str) -> AliasRow | None:
    if not request_id:
        return None
    query = select(AliasRow).where(AliasRow.board == board, AliasRow.request_id == request_id)
    return session.scalars(query).first()


def _checkpoint(session: Session, board: str, request: leaderboard_pb2.SetAliasRequest) -> bytes:
    """The checkpoint that is named, else that of the agent's place on the board, else of its best candidate ever."""
    if request.HasField("checkpoint"):
        return messages.to_bytes(request.checkpoint)
    if not request.agent:
        return b""
    row = store.get_agent(session, names.check_agent(request.agent), board)
    candidate = session.get(CandidateRow, (board, request.agent))
    evaluation = row.best_evaluation if candidate is None else candidate.evaluation
    if evaluation is None:
        message = f"agent {request.agent} has no candidate: no snapshot of it was judged yet"
        raise PreconditionFailed(message, reason="NO_CANDIDATE", agent=request.agent)
    return messages.to_bytes(agent_pb2.Evaluation.FromString(evaluation).checkpoint)

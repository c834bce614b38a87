"""RecordEvaluations and ListEvaluations: the history of evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.errors import FieldViolation, InvalidInput, NotFound
from podracer_leaderboard import messages, places, store
from podracer_leaderboard.store import page_of_board, page_query
from podracer_leaderboard.tables import AgentRow, BoardRow, EvaluationRow
from podracer_platform.database import Database
from podracer_platform.jobs.evaluations import CONFIRMING, broken_episodes

MAX_EVALUATIONS = 1000


class Evaluations:
    """Answers ListEvaluations."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def history(
        self, request: leaderboard_pb2.ListEvaluationsRequest
    ) -> leaderboard_pb2.ListEvaluationsResponse:
        """Oldest first."""
        messages.check_leaderboard(request.leaderboard)
        query = select(EvaluationRow).where(EvaluationRow.board == request.leaderboard)
        if request.agent:
            query = query.where(EvaluationRow.agent == messages.check_agent(request.agent))
        query = page_query(query, EvaluationRow.number, request.page_size, request.page_token)

        def message(row: EvaluationRow) -> agent_pb2.Evaluation:
            return agent_pb2.Evaluation.FromString(row.evaluation)

        evaluations, token = await self._database.read(
            lambda session: page_of_board(
                session, request.leaderboard, query, request.page_size, message
            )
        )
        return leaderboard_pb2.ListEvaluationsResponse(
            evaluations=evaluations, next_page_token=token
        )


def record(
    session: Session, request: leaderboard_pb2.RecordEvaluationsRequest
) -> leaderboard_pb2.RecordEvaluationsResponse:
    """Add evaluations to the history, each once; a challenge decides over its candidate. The
    request is checked.

    Raises NotFound for an agent of another board.
    """
    board = store.get_board(session, request.leaderboard)
    agents = {evaluation.agent for evaluation in request.evaluations}
    query = select(AgentRow).where(AgentRow.board == board.name, AgentRow.name.in_(agents))
    known = {agent.name: agent for agent in session.scalars(query)}
    if unknown := agents - known.keys():
        raise NotFound(
            f"there is no agent {min(unknown)} on {board.name}", reason="AGENT_NOT_FOUND"
        )
    count = store_evaluations(session, board, known, request.evaluations)
    for challenge in filter(challenged_by, request.evaluations):
        places.confirm(session, board, challenge)
    excluded = messages.exclusions(store.exclusions(session, board))
    return leaderboard_pb2.RecordEvaluationsResponse(recorded_count=count, exclusions=excluded)


def store_evaluations(
    session: Session,
    board: BoardRow,
    agents: Mapping[str, AgentRow],
    evaluations: Sequence[agent_pb2.Evaluation],
) -> int:
    """Store evaluations of `agents` and count their episodes; returns the number of new ones. One
    stored before its checkpoint was written is completed."""
    identifiers = {evaluation.evaluation_id for evaluation in evaluations}
    query = select(EvaluationRow).where(
        EvaluationRow.board == board.name, EvaluationRow.evaluation_id.in_(identifiers)
    )
    stored = {row.evaluation_id: row for row in session.scalars(query)}
    new = []
    for evaluation in evaluations:
        row = stored.get(evaluation.evaluation_id)
        has_checkpoint = bool(evaluation.checkpoint.prefix)
        if row is None:
            row = EvaluationRow(
                board=board.name,
                evaluation_id=evaluation.evaluation_id,
                agent=evaluation.agent,
                has_checkpoint=has_checkpoint,
                evaluation=messages.to_bytes(evaluation),
                challenged=challenged_by(evaluation),
            )
            stored[evaluation.evaluation_id] = row
            session.add(row)
            new.append(evaluation)
        elif has_checkpoint and not row.has_checkpoint:
            row.evaluation, row.has_checkpoint = messages.to_bytes(evaluation), True
            row.challenged = challenged_by(evaluation)
    played = [each for each in new if each.seeds or broken_episodes(each)]
    for each in played:
        _count(board, agents[each.agent], each)
    lowest = min(
        (value for each in played for value in each.returns if math.isfinite(value)),
        default=math.inf,
    )
    if lowest < (math.inf if board.lowest_return is None else board.lowest_return):
        board.lowest_return = lowest
        if board.broken_episodes:
            places.score_again(session, board)
    return len(new)


def _count(board: BoardRow, agent: AgentRow, evaluation: agent_pb2.Evaluation) -> None:
    """Add the episodes of a new evaluation to the counts of the board and of its agent."""
    broken = broken_episodes(evaluation)
    board.episodes += len(evaluation.returns) + broken
    agent.episodes += len(evaluation.returns) + broken
    agent.broken_numbers += evaluation.broken_number_episodes
    agent.broken_code += evaluation.broken_code_episodes
    if broken:
        board.broken_episodes += broken
        board.revision += 1  # an agent may have become the one that cannot be first


def challenged_by(evaluation: agent_pb2.Evaluation) -> str:
    """The prefix of the checkpoint that a challenge or a final evaluates; empty for others, or
    without a checkpoint."""
    return evaluation.checkpoint.prefix if evaluation.purpose in CONFIRMING else ""


def has_challenge(request: leaderboard_pb2.RecordEvaluationsRequest) -> bool:
    """Whether it decides over a candidate."""
    return any(map(challenged_by, request.evaluations))


def check(request: leaderboard_pb2.RecordEvaluationsRequest) -> None:
    """Raise InvalidInput, naming each field that is wrong."""
    messages.check_leaderboard(request.leaderboard)
    evaluations, problems = request.evaluations, []
    if len(evaluations) > MAX_EVALUATIONS:
        problems.append(
            FieldViolation(
                "evaluations", f"expected at most {MAX_EVALUATIONS}, got {len(evaluations)}"
            )
        )
    problems += [
        FieldViolation(f"evaluations[{index}].{field}", "is not set")
        for index, evaluation in enumerate(evaluations)
        for field in ("evaluation_id", "agent")
        if not getattr(evaluation, field)
    ]
    if problems:
        raise InvalidInput("; ".join(map(str, problems)), violations=problems)

"""SubmitCandidate: an agent's round is over; its candidate may enter the board."""

from __future__ import annotations

import logging

from sqlalchemy.ext.asyncio import AsyncSession

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.database import Database
from podracer_core.errors import FieldViolation, InvalidInput, PreconditionFailed
from podracer_leaderboard import messages, names, store
from podracer_leaderboard.agents import State
from podracer_leaderboard.changes import Changes
from podracer_leaderboard.competition import competition_of
from podracer_leaderboard.evaluations import store_evaluations
from podracer_leaderboard.ranking import Admission, Entry
from podracer_leaderboard.tables import AgentRow, BoardRow, CandidateRow, RoundRow
from podracer_leaderboard.updater import Judgement, Updater

logger = logging.getLogger(__name__)


class Submissions:
    """Answers SubmitCandidate."""

    def __init__(self, database: Database, changes: Changes) -> None:
        self._database = database
        self._changes = changes

    async def submit(self, request: leaderboard_pb2.SubmitCandidateRequest) -> leaderboard_pb2.SubmitCandidateResponse:
        """End an agent's round. The stored answer for a known request id.

        Raises PreconditionFailed (AGENT_NOT_TRAINING) where no pod should have the agent.
        """
        _check_submission(request)
        try:
            async with self._database.write() as session:
                board = await store.get_board(session, request.leaderboard)
                stored = await session.get(RoundRow, (board.name, request.request_id))
                if stored is not None:
                    return leaderboard_pb2.SubmitCandidateResponse.FromString(stored.response)
                return await _submit(session, board, request)
        finally:
            self._changes.ring()


async def _submit(
    session: AsyncSession, board: BoardRow, request: leaderboard_pb2.SubmitCandidateRequest
) -> leaderboard_pb2.SubmitCandidateResponse:
    agent = await store.get_agent(session, request.agent, board.name)
    if agent.state != State.TRAINING:
        raise PreconditionFailed(
            f"agent {agent.name} is {agent.state}: no pod has it, so no round of it can end",
            reason="AGENT_NOT_TRAINING",
            agent=agent.name,
        )
    updater = competition_of(board.spec).updater
    evaluation = _evaluation(request)
    score = None if evaluation is None else _score(updater, evaluation)
    cost_s = messages.seconds(request.cost)
    _end_round(board, agent, request, trained=request.env_steps > 0 or evaluation is not None, cost_s=cost_s)
    agent.latest_score = score
    admission = Admission(0, "no snapshot was evaluated")
    if evaluation is not None:
        await store_evaluations(session, board.name, [evaluation])
        admission = Admission(0, "its evaluation is not a finite number")
    if evaluation is not None and score is not None:
        agent.latest_evaluation = messages.to_bytes(evaluation)
        admission = await _judge(session, board, agent, updater, evaluation, score)
    response = leaderboard_pb2.SubmitCandidateResponse(
        admitted=admission.is_admitted, rank=admission.rank, reason=admission.reason
    )
    session.add(
        RoundRow(
            board=board.name,
            request_id=request.request_id,
            agent=agent.name,
            lineage=agent.lineage,
            rung=agent.rung,
            score=score,
            cost_s=cost_s,
            response=messages.to_bytes(response),
        )
    )
    return response


def _end_round(
    board: BoardRow,
    agent: AgentRow,
    request: leaderboard_pb2.SubmitCandidateRequest,
    *,
    trained: bool,
    cost_s: float,
) -> None:
    agent.env_steps += request.env_steps
    agent.cost_s += cost_s
    agent.rung += trained  # a pod that gave up before its first step has not used up the agent's round
    agent.waiting_since = store.tick(board)
    if request.latest.prefix:
        agent.latest_checkpoint = messages.to_bytes(request.latest)
    agent.state, agent.failure = (State.FAILED, request.failure) if request.failure else (State.WAITING, "")
    if request.failure:
        logger.warning("agent %s failed: %s", agent.name, request.failure)


async def _judge(
    session: AsyncSession,
    board: BoardRow,
    agent: AgentRow,
    updater: Updater,
    evaluation: agent_pb2.Evaluation,
    score: float,
) -> Admission:
    """Keep it where it is the agent's best, and put it on the board where the updater says so."""
    if not evaluation.checkpoint.prefix:
        return Admission(0, "its evaluation names no checkpoint")
    if agent.best_score is None or score > agent.best_score:
        agent.best_evaluation, agent.best_score, agent.best_rung = messages.to_bytes(evaluation), score, agent.rung
        agent.best_env_steps = evaluation.checkpoint.env_steps or agent.env_steps
        agent.best_cost_s = agent.cost_s
    candidates = await store.get_candidates(session, board.name)
    entry = Entry(agent.name, agent.lineage, score, evaluation.mean, board.clock)
    admission = updater.admit(store.entries(candidates), entry)
    if not admission.is_admitted:
        return admission
    removed = {former.agent for former in admission.removed}
    for row in candidates:
        if row.agent in removed:
            await session.delete(row)
    await session.flush()  # the agent's own former row leaves before its new one comes
    session.add(
        CandidateRow(
            board=board.name,
            agent=agent.name,
            lineage=agent.lineage,
            score=score,
            mean=evaluation.mean,
            entry_order=board.clock,
            admit_time=store.now(),
            evaluation=messages.to_bytes(evaluation),
        )
    )
    board.revision += 1
    board.update_time = store.now()
    return admission


def _evaluation(request: leaderboard_pb2.SubmitCandidateRequest) -> agent_pb2.Evaluation | None:
    if not request.HasField("candidate"):
        return None
    evaluation = agent_pb2.Evaluation()
    evaluation.CopyFrom(request.candidate)
    evaluation.agent = request.agent
    evaluation.evaluation_id = evaluation.evaluation_id or request.request_id
    return evaluation


def _score(updater: Updater, evaluation: agent_pb2.Evaluation) -> float | None:
    judgement = Judgement(evaluation.mean, evaluation.lower_bound, evaluation.upper_bound, len(evaluation.returns))
    return updater.score(judgement) if judgement.is_finite else None


def _check_submission(request: leaderboard_pb2.SubmitCandidateRequest) -> None:
    names.check_leaderboard(request.leaderboard)
    names.check_text(request.request_id, "request_id")
    names.check_agent(request.agent)
    problems = []
    if request.env_steps < 0:
        problems.append(FieldViolation("env_steps", f"expected 0 or more, got {request.env_steps}"))
    if messages.seconds(request.cost) < 0:
        problems.append(FieldViolation("cost", "expected 0 s or more"))
    if request.candidate.agent not in ("", request.agent):
        problems.append(FieldViolation("candidate.agent", f"is {request.candidate.agent}, expected {request.agent}"))
    if problems:
        raise InvalidInput("; ".join(map(str, problems)), violations=problems)

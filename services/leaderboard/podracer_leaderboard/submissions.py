"""SubmitCandidate: an agent's round is over; its candidate may enter the board."""

from __future__ import annotations

import logging
import math

from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.errors import FieldViolation, InvalidInput, PreconditionFailed
from podracer_core.evolution.agents import State
from podracer_core.evolution.updater import Admission
from podracer_leaderboard import messages, places, store
from podracer_leaderboard.evaluations import store_evaluations
from podracer_leaderboard.judged_rounds import record_throughput
from podracer_leaderboard.tables import AgentRow, BoardRow, RoundRow
from podracer_platform.jobs.evaluations import broken_episodes, counted
from podracer_platform.messages.sections import seconds_from_duration
from podracer_platform.telemetry.metrics import CANDIDATES

logger = logging.getLogger(__name__)


def submit(
    session: Session, request: leaderboard_pb2.SubmitCandidateRequest
) -> leaderboard_pb2.SubmitCandidateResponse:
    """End an agent's round, as a checked request says. The stored answer for a known request id.

    Raises PreconditionFailed (AGENT_NOT_TRAINING) where no pod should have the agent.
    """
    board = store.get_board(session, request.leaderboard)
    stored = session.get(RoundRow, (board.name, request.request_id))
    if stored is not None:
        response = leaderboard_pb2.SubmitCandidateResponse.FromString(stored.response)
    else:
        response = _submit(session, board, request)
    CANDIDATES.add(admitted="yes" if response.admitted else "no")
    return response


def _submit(
    session: Session, board: BoardRow, request: leaderboard_pb2.SubmitCandidateRequest
) -> leaderboard_pb2.SubmitCandidateResponse:
    agent = store.get_agent(session, request.agent, board.name)
    if agent.state != State.TRAINING:
        raise PreconditionFailed(
            f"agent {agent.name} is {agent.state}: no pod has it, so no round of it can end",
            reason="AGENT_NOT_TRAINING",
            agent=agent.name,
        )
    evaluation = _evaluation(request)
    score = rung_score = None
    admission, challenge = Admission(0, "no snapshot was evaluated"), False
    if evaluation is not None:
        store_evaluations(session, board, {agent.name: agent}, [evaluation])
        score = places.score_of(board, evaluation)
        rung_score = places.score_of(board, evaluation, within_rung=True)
        is_intact = counted(evaluation, None) is not None
        why = (
            "its evaluation is not a finite number"
            if is_intact
            else "no episode of its evaluation was intact"
        )
        admission = Admission(0, why)
    cost_s = seconds_from_duration(request.cost)
    trained = request.env_steps > 0 or evaluation is not None
    _end_round(board, agent, request, trained=trained, cost_s=cost_s)
    if trained:
        agent.latest_score = rung_score
    if evaluation is not None and score is not None:
        agent.latest_evaluation = messages.to_bytes(evaluation)
        admission, challenge = _judge(session, board, agent, evaluation, score)
    record_throughput(
        session,
        board.name,
        store.shape_of_row(agent),
        request.member_count,
        request.env_steps,
        cost_s,
    )
    response = leaderboard_pb2.SubmitCandidateResponse(
        admitted=admission.is_admitted,
        rank=admission.rank,
        reason=admission.reason,
        challenge=challenge,
    )
    response.exclusions.extend(messages.exclusions(store.exclusions(session, board)))
    session.add(_round_row(agent, request, cost_s, score, rung_score, response))
    return response


def _round_row(
    agent: AgentRow,
    request: leaderboard_pb2.SubmitCandidateRequest,
    cost_s: float,
    score: float | None,
    rung_score: float | None,
    response: leaderboard_pb2.SubmitCandidateResponse,
) -> RoundRow:
    return RoundRow(
        board=agent.board,
        request_id=request.request_id,
        agent=agent.name,
        lineage=agent.lineage,
        rung=agent.rung,
        score=score,
        rung_score=rung_score,
        episodes=max(1, len(request.candidate.returns) + broken_episodes(request.candidate)),
        variance=_variance(request.candidate),
        env_steps=request.env_steps,
        cost_s=cost_s,
        line_env_steps=agent.env_steps,
        line_cost_s=agent.cost_s,
        response=messages.to_bytes(response),
    )


def _variance(evaluation: agent_pb2.Evaluation) -> float:
    """The variance of its episodes; 0 if it is not a finite number, or if all are alike."""
    deviation = evaluation.standard_deviation
    return deviation**2 if math.isfinite(deviation) and not evaluation.deterministic else 0.0


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
    # a pod that gave up before its first step has not used up the agent's round
    agent.rung += trained
    agent.generation += trained
    agent.waiting_since = store.tick(board)
    if request.latest.prefix:
        agent.latest_checkpoint = messages.to_bytes(request.latest)
    goes_on = State.STOPPED if agent.stopping else State.WAITING
    agent.state, agent.failure = (
        (State.FAILED, request.failure) if request.failure else (goes_on, "")
    )
    agent.stopping = False
    if request.failure:
        logger.warning("agent %s failed: %s", agent.name, request.failure)


def _judge(
    session: Session,
    board: BoardRow,
    agent: AgentRow,
    evaluation: agent_pb2.Evaluation,
    score: float,
) -> tuple[Admission, bool]:
    """Keep it where it is the agent's best, and put it on the board where the updater says so."""
    if not evaluation.checkpoint.prefix:
        return Admission(0, "its evaluation names no checkpoint"), False
    candidate = places.judged(session, board, places.Judged(evaluation, score))
    if agent.best_score is None or candidate.score > agent.best_score:
        agent.best_evaluation, agent.best_score = (
            messages.to_bytes(candidate.evaluation),
            candidate.score,
        )
        agent.best_rung, agent.best_cost_s = agent.rung, agent.cost_s
        agent.best_env_steps = evaluation.checkpoint.env_steps or agent.env_steps
    return places.take(session, board, agent, candidate)


def _evaluation(request: leaderboard_pb2.SubmitCandidateRequest) -> agent_pb2.Evaluation | None:
    if not request.HasField("candidate"):
        return None
    evaluation = agent_pb2.Evaluation()
    evaluation.CopyFrom(request.candidate)
    evaluation.agent = request.agent
    evaluation.evaluation_id = evaluation.evaluation_id or request.request_id
    return evaluation


def check(request: leaderboard_pb2.SubmitCandidateRequest) -> None:
    """Raise InvalidInput, naming each field that is wrong."""
    messages.check_leaderboard(request.leaderboard)
    messages.check_text(request.request_id, "request_id")
    messages.check_agent(request.agent)
    problems = []
    if request.env_steps < 0:
        problems.append(FieldViolation("env_steps", f"expected 0 or more, got {request.env_steps}"))
    if seconds_from_duration(request.cost) < 0:
        problems.append(FieldViolation("cost", "expected 0 s or more"))
    if request.candidate.agent not in ("", request.agent):
        problems.append(
            FieldViolation(
                "candidate.agent", f"is {request.candidate.agent}, expected {request.agent}"
            )
        )
    if problems:
        raise InvalidInput("; ".join(map(str, problems)), violations=problems)

"""ProposeCohort: carries out a generator's proposal for a pod."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy.orm import Session

from podracer.common.v1 import cohort_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.evolution import (
    Action,
    Agent,
    Cohort,
    CohortRequest,
    Remaining,
    State,
    admission_score,
    cohort_stretch,
    round_budget,
)
from podracer_leaderboard import guard, messages, store
from podracer_leaderboard.competition import Competition, competition_of
from podracer_leaderboard.judged_rounds import load_limits
from podracer_leaderboard.places import create_agent, create_founders, stream
from podracer_leaderboard.tables import AgentRow, BoardRow, ProposalRow
from podracer_platform.messages import seconds_from_duration, seconds_to_duration
from podracer_platform.telemetry import PROPOSALS

MAX_PLACES = 1024

AgentRows = dict[str, AgentRow]


def propose(
    session: Session, request: leaderboard_pb2.ProposeCohortRequest
) -> leaderboard_pb2.ProposeCohortResponse:
    """The stored answer for a known request id; else a new one, stored unless it is empty. The
    request is checked.

    An empty answer changes nothing, so the same request may be asked again and get agents later.
    """
    board = store.get_board(session, request.leaderboard)
    stored = session.get(ProposalRow, (board.name, request.request_id))
    if stored is not None:
        return leaderboard_pb2.ProposeCohortResponse.FromString(stored.response)
    response = _propose(session, board, request)
    if response.proposals:
        board.proposal_count += 1
        answer = messages.to_bytes(response)
        session.add(ProposalRow(board=board.name, request_id=request.request_id, response=answer))
    for proposal in response.proposals:
        PROPOSALS.add(action=_action_name(proposal.action))
    return response


def _action_name(action: leaderboard_pb2.ProposalAction.ValueType) -> str:
    return leaderboard_pb2.ProposalAction.Name(action).removeprefix("PROPOSAL_ACTION_").lower()


def _propose(
    session: Session, board: BoardRow, request: leaderboard_pb2.ProposeCohortRequest
) -> leaderboard_pb2.ProposeCohortResponse:
    competition, remaining = competition_of(board.spec), _remaining(request)
    response = leaderboard_pb2.ProposeCohortResponse()
    if remaining.is_nothing:
        return response
    if board.agent_count == 0:
        create_founders(session, board, competition)
    living = store.load_living(session, board.name)
    uses_history = competition.generator.uses_history
    population = store.load_population(
        session, board, living, competition.rules, with_history=uses_history
    )
    if request.HasField("budget_used"):
        population = replace(population, budget_used=request.budget_used)
    places = remaining.places(request.places)
    limits = load_limits(session, board.name, {agent.shape for agent in population.alive}, places)
    wish = CohortRequest(places, frozenset(request.algorithms), limits)
    seed, number = competition.rules.seed, board.proposal_count
    cohort, problem = guard.propose(
        competition, population, wish, lambda: stream(seed, "proposal", number)
    )
    if problem is not None:
        response.generator_problem.CopyFrom(
            cohort_pb2.Problem(
                reason="GENERATOR_FAILED", message=problem.message, detail=problem.detail
            )
        )
    response.finished = cohort.finished
    if not cohort.members:
        return response
    response.proposals.extend(_carry_out(session, board, competition, cohort, living))
    scores = (population.scores_of(member) for member in cohort.members)
    stretch = cohort_stretch(scores) if competition.rules.adaptive_rounds else 1.0
    budget = round_budget(competition.rules, stretch)
    response.round_env_steps = budget.env_steps
    if budget.time_s:
        response.round_time.CopyFrom(seconds_to_duration(budget.time_s))
    candidates = store.entries(session, store.get_candidates(session, board.name))
    admission = admission_score(candidates, competition.rules.leaderboard_size)
    if admission is not None:
        response.admission_score = admission
    return response


def _carry_out(
    session: Session, board: BoardRow, competition: Competition, cohort: Cohort, living: AgentRows
) -> list[leaderboard_pb2.Proposal]:
    """New agents get their rows, those they replace and others retire; then the members are the
    pod's."""
    created = {
        id(new): create_agent(session, board, competition, new, living) for new in cohort.created
    }
    for each in cohort.retired:
        ended = living[each.agent.name]
        ended.state, ended.reason = State.RETIRED, f"{ended.reason}; {each.reason}"
    proposals = []
    for member in cohort.members:
        row = living[member.name] if isinstance(member, Agent) else created[id(member)]
        proposals.append(_proposal(row))
        row.started, row.state = True, State.TRAINING
    return proposals


def _proposal(row: AgentRow) -> leaderboard_pb2.Proposal:
    if row.started:
        return leaderboard_pb2.Proposal(
            action=messages.ACTIONS[Action.CONTINUE],
            agent=messages.agent_spec(row),
            reason=f"on from rung {row.rung}",
        )
    return leaderboard_pb2.Proposal(
        action=messages.ACTIONS[Action(row.origin)],
        agent=messages.agent_spec(row),
        replaced=row.replaced,
        reason=row.reason,
    )


def _remaining(request: leaderboard_pb2.ProposeCohortRequest) -> Remaining:
    limits = {}
    if request.remaining_env_steps:
        limits["env_steps"] = float(request.remaining_env_steps)
    if request.HasField("remaining_cost"):
        limits["cost_s"] = seconds_from_duration(request.remaining_cost)
    return Remaining(**limits)


def check(request: leaderboard_pb2.ProposeCohortRequest) -> None:
    """Raise InvalidInput, naming each field that is wrong."""
    messages.check_leaderboard(request.leaderboard)
    messages.check_text(request.request_id, "request_id")
    problems = []
    if not 1 <= request.places <= MAX_PLACES:
        problems.append(
            FieldViolation("places", f"expected 1 to {MAX_PLACES}, got {request.places}")
        )
    if request.remaining_env_steps < 0:
        problems.append(
            FieldViolation(
                "remaining_env_steps", f"expected 0 or more, got {request.remaining_env_steps}"
            )
        )
    if not 0.0 <= request.budget_used <= 1.0:
        problems.append(
            FieldViolation("budget_used", f"expected 0 to 1, got {request.budget_used:g}")
        )
    if problems:
        raise InvalidInput("; ".join(map(str, problems)), violations=problems)

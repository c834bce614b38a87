"""ProposeCohort: the generator's wish becomes agents that a pod has."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.catalogue.messages import hyperparameter_to_message
from podracer_core.database import Database
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_leaderboard import messages, names, store
from podracer_leaderboard.agents import Action, Agent, Cohort, CohortRequest, NewAgent, State
from podracer_leaderboard.competition import Competition, competition_of
from podracer_leaderboard.ranking import admission_score
from podracer_leaderboard.round_budget import Remaining, round_budget
from podracer_leaderboard.seeds import derive_seed, stream
from podracer_leaderboard.tables import AgentRow, BoardRow, ParentRow, ProposalRow

MAX_PLACES = 1024

AgentRows = dict[str, AgentRow]


class Proposals:
    """Answers ProposeCohort."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def propose(self, request: leaderboard_pb2.ProposeCohortRequest) -> leaderboard_pb2.ProposeCohortResponse:
        """The stored answer for a known request id; else a new one, stored unless it is empty.

        An empty answer changes nothing, so the same request may be asked again and get agents later.
        """
        _check(request)
        async with self._database.write() as session:
            board = await store.get_board(session, request.leaderboard)
            stored = await session.get(ProposalRow, (board.name, request.request_id))
            if stored is not None:
                return leaderboard_pb2.ProposeCohortResponse.FromString(stored.response)
            response = await _propose(session, board, request)
            if response.proposals:
                board.proposal_count += 1
                row = ProposalRow(board=board.name, request_id=request.request_id, response=messages.to_bytes(response))
                session.add(row)
            return response


async def _propose(
    session: AsyncSession, board: BoardRow, request: leaderboard_pb2.ProposeCohortRequest
) -> leaderboard_pb2.ProposeCohortResponse:
    competition, remaining = competition_of(board.spec), _remaining(request)
    response = leaderboard_pb2.ProposeCohortResponse()
    if remaining.is_nothing:
        return response
    living = await store.load_living(session, board.name)
    population = await store.load_population(session, board, living)
    wish = CohortRequest(
        remaining.places(request.places), frozenset(request.warm_agents), frozenset(request.algorithms)
    )
    random = stream(competition.rules.seed, "proposal", board.proposal_count)
    cohort = competition.generator(competition.space, competition.rules).propose(population, wish, random)
    if not cohort.members:
        return response
    response.proposals.extend(_carry_out(session, board, competition, cohort, living))
    budget = round_budget(competition.rules, len(cohort.members), remaining)
    response.round_env_steps = budget.env_steps
    if budget.time_s:
        response.round_time.CopyFrom(messages.duration(budget.time_s))
    candidates = store.entries(await store.get_candidates(session, board.name))
    admission = admission_score(candidates, competition.rules.leaderboard_size)
    if admission is not None:
        response.admission_score = admission
    return response


def _carry_out(
    session: AsyncSession, board: BoardRow, competition: Competition, cohort: Cohort, living: AgentRows
) -> list[leaderboard_pb2.Proposal]:
    """New agents get their rows and those they replace retire; then the members are the pod's."""
    created = {id(new): _create(session, board, competition, new, living) for new in cohort.created}
    proposals = []
    for member in cohort.members:
        row = living[member.name] if isinstance(member, Agent) else created[id(member)]
        proposals.append(_proposal(row))
        row.started, row.state = True, State.TRAINING
    return proposals


def _create(
    session: AsyncSession, board: BoardRow, competition: Competition, new: NewAgent, living: AgentRows
) -> AgentRow:
    board.agent_count += 1
    number = board.agent_count
    name = names.agent_name(board.job, number)
    donor = living[new.donor.name] if new.donor else None
    replaced = living[new.replaced.name] if new.replaced else None
    if replaced is not None:
        replaced.state = State.RETIRED
    spec = agent_pb2.AgentSpec(
        name=name,
        algorithm=new.algorithm,
        seed=derive_seed(competition.rules.seed, "agent", number),
        hyperparameters={key: hyperparameter_to_message(value) for key, value in new.hyperparameters.items()},
        initialization=_initialization(donor, competition.rules.keep_replay),
    )
    row = AgentRow(
        board=board.name,
        number=number,
        name=name,
        algorithm=new.algorithm,
        spec=messages.to_bytes(spec),
        origin=new.action,
        state=State.WAITING,
        reason=new.reason,
        replaced=replaced.name if replaced else "",
        lineage=donor.lineage if donor else name,
        create_time=store.now(),
        waiting_since=replaced.waiting_since if replaced else store.tick(board),
        env_steps=donor.best_env_steps if donor else 0,
        cost_s=donor.best_cost_s if donor else 0.0,
        rung=donor.best_rung if donor else 0,
    )
    session.add(row)
    session.add_all(
        ParentRow(board=board.name, child=name, place=place, parent=parent.agent)
        for place, parent in enumerate(spec.initialization.parents)
    )
    return row


def _initialization(donor: AgentRow | None, keep_replay: bool) -> agent_pb2.Initialization:
    if donor is None:
        return agent_pb2.Initialization(kind=agent_pb2.INITIALIZATION_KIND_FRESH)
    candidate = agent_pb2.Evaluation.FromString(donor.best_evaluation or b"")
    return agent_pb2.Initialization(
        kind=agent_pb2.INITIALIZATION_KIND_COPY,
        parents=[agent_pb2.Parent(agent=donor.name, checkpoint=candidate.checkpoint)],
        inherit_replay=keep_replay,
    )


def _proposal(row: AgentRow) -> leaderboard_pb2.Proposal:
    if row.started:
        return leaderboard_pb2.Proposal(
            action=messages.ACTIONS[Action.CONTINUE], agent=messages.agent_spec(row), reason=f"on from rung {row.rung}"
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
        limits["cost_s"] = messages.seconds(request.remaining_cost)
    return Remaining(**limits)


def _check(request: leaderboard_pb2.ProposeCohortRequest) -> None:
    names.check_leaderboard(request.leaderboard)
    names.check_text(request.request_id, "request_id")
    problems = []
    if not 1 <= request.places <= MAX_PLACES:
        problems.append(FieldViolation("places", f"expected 1 to {MAX_PLACES}, got {request.places}"))
    if request.remaining_env_steps < 0:
        problems.append(FieldViolation("remaining_env_steps", f"expected 0 or more, got {request.remaining_env_steps}"))
    if problems:
        raise InvalidInput("; ".join(map(str, problems)), violations=problems)

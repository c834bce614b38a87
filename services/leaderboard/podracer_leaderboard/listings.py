"""Reading agents, their lineage and their statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.errors import InvalidInput
from podracer_core.evolution.elites import (
    EliteStatistics,
    LineageStatistics,
    RoundResult,
    elite_statistics,
    lineage_statistics,
)
from podracer_core.evolution.search_space import SearchSpace
from podracer_leaderboard import messages, store
from podracer_leaderboard.competition import competition_of
from podracer_leaderboard.store import page_of_board, page_query
from podracer_leaderboard.tables import AgentRow, ParentRow, RoundRow
from podracer_platform.database import Database
from podracer_platform.messages.catalogue import hyperparameters_from_message
from podracer_platform.messages.sections import seconds_to_duration
from podracer_platform.rpc.bounds import page

_STATE_NAMES = {number: state for state, number in messages.STATES.items()}


class Listings:
    """Answers ListAgents, GetAgent and GetStatistics."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def agents(
        self, request: leaderboard_pb2.ListAgentsRequest
    ) -> leaderboard_pb2.ListAgentsResponse:
        """Oldest first."""
        messages.check_leaderboard(request.leaderboard)
        query = select(AgentRow).where(AgentRow.board == request.leaderboard)
        if request.states:
            query = query.where(AgentRow.state.in_([_state(state) for state in request.states]))
        query = page_query(query, AgentRow.number, request.page_size, request.page_token)

        def operation(session: Session) -> tuple[list[leaderboard_pb2.Agent], str]:
            excluded = store.exclusions(session, store.get_board(session, request.leaderboard))
            return page_of_board(
                session,
                request.leaderboard,
                query,
                request.page_size,
                lambda row: messages.agent(row, excluded.get(row.name, "")),
            )

        agents, token = await self._database.read(operation)
        return leaderboard_pb2.ListAgentsResponse(agents=agents, next_page_token=token)

    async def agent(self, name: str) -> leaderboard_pb2.GetAgentResponse:
        """An agent with its ancestors, parents first, and its children. Raises NotFound."""
        messages.check_agent(name, "name")

        def operation(session: Session) -> leaderboard_pb2.GetAgentResponse:
            row = store.get_agent(session, name)
            ancestors = _ancestors(session, row)
            children = session.scalars(
                select(AgentRow.name)
                .join(ParentRow, ParentRow.child == AgentRow.name)
                .where(ParentRow.parent == name)
                .order_by(AgentRow.number)
            )
            excluded = store.exclusions(session, store.get_board(session, row.board))
            shown, _ = page(
                ancestors, store.MAX_PAGE_SIZE, messages.agent, lambda ancestor: ancestor.name
            )
            return leaderboard_pb2.GetAgentResponse(
                agent=messages.agent(row, excluded.get(name, "")),
                ancestors=shown,
                children=islice(children.unique(), store.MAX_PAGE_SIZE),
            )

        return await self._database.read(operation)

    async def statistics(
        self, request: leaderboard_pb2.GetStatisticsRequest
    ) -> leaderboard_pb2.GetStatisticsResponse:
        """Statistics of the elites, the candidates on the board. Raises InvalidInput for an
        algorithm that is not searched."""
        messages.check_leaderboard(request.leaderboard)

        def operation(
            session: Session,
        ) -> tuple[SearchSpace, list[agent_pb2.AgentSpec], Sequence[LineageStatistics]]:
            board = store.get_board(session, request.leaderboard)
            space = competition_of(board.spec).space
            if request.algorithm and request.algorithm not in space.ranges:
                problem = (
                    f"{request.algorithm!r} is not searched; expected {' or '.join(space.ranges)}"
                )
                raise InvalidInput(problem, field="algorithm")
            columns = (
                RoundRow.lineage,
                RoundRow.agent,
                RoundRow.rung,
                RoundRow.score,
                RoundRow.cost_s,
            )
            rounds = session.execute(select(*columns).where(RoundRow.board == board.name))
            return (
                space,
                _elites(session, board.name),
                lineage_statistics(RoundResult(*row) for row in rounds),
            )

        space, elites, lineages = await self._database.read(operation)
        counts = Counter(elite.algorithm for elite in elites)
        algorithm = request.algorithm or max(space.ranges, key=lambda name: counts[name])
        values = [
            hyperparameters_from_message(elite.hyperparameters)
            for elite in elites
            if elite.algorithm == algorithm
        ]
        response = _statistics(elite_statistics(values, space.ranges[algorithm]))
        for each in lineages:
            response.lineages.add(
                lineage=each.lineage,
                agent_count=each.agent_count,
                best_score=each.best_score,
                improvement=each.improvement,
                cost=seconds_to_duration(each.cost_s),
            )
        return response


def _ancestors(session: Session, row: AgentRow) -> list[AgentRow]:
    """Parents, then their parents, …; each once."""
    found: dict[str, AgentRow] = {}
    generation = [row.name]
    while generation:
        query = (
            select(AgentRow)
            .join(ParentRow, ParentRow.parent == AgentRow.name)
            .where(ParentRow.board == row.board, ParentRow.child.in_(generation))
        )
        parents = session.scalars(query.order_by(ParentRow.child, ParentRow.place)).unique().all()
        generation = [parent.name for parent in parents if parent.name not in found]
        found.update({parent.name: parent for parent in parents})
    return list(found.values())


def _elites(session: Session, board: str) -> list[agent_pb2.AgentSpec]:
    candidates = store.get_candidates(session, board)
    query = select(AgentRow.spec).where(
        AgentRow.board == board, AgentRow.name.in_([candidate.agent for candidate in candidates])
    )
    return [agent_pb2.AgentSpec.FromString(spec) for spec in session.scalars(query)]


def _statistics(elites: EliteStatistics) -> leaderboard_pb2.GetStatisticsResponse:
    return leaderboard_pb2.GetStatisticsResponse(
        hyperparameters=elites.names,
        mean=elites.mean,
        covariance=[value for row in elites.covariance for value in row],
        elite_count=elites.count,
        variance=elites.variance,
        logarithmic=elites.logarithmic,
    )


def _state(number: int) -> str:
    if number not in _STATE_NAMES:
        raise InvalidInput(f"{number} is no state of an agent", field="states")
    return _STATE_NAMES[number]  # type: ignore[index]

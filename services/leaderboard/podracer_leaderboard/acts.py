"""Users' acts on agents, through the orchestrator: fork, pin and stop."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.errors import PreconditionFailed
from podracer_core.evolution.agents import ALIVE, State
from podracer_leaderboard import messages, store
from podracer_leaderboard.competition import competition_of
from podracer_leaderboard.new_agents import fork_agent
from podracer_leaderboard.tables import AgentRow
from podracer_platform.database import Database
from podracer_platform.messages.catalogue import hyperparameters_from_message


class Acts:
    """Answers ForkAgent, PinAgent and StopAgent."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def fork(self, request: leaderboard_pb2.ForkAgentRequest) -> leaderboard_pb2.Agent:
        """The new agent, or that of the same earlier request; with `validate_only` as it would be,
        without a name."""
        messages.check_agent(request.name, "name")
        messages.check_text(request.request_id, "request_id")
        changed = hyperparameters_from_message(request.hyperparameters)

        def operation(session: Session) -> leaderboard_pb2.Agent:
            parent = store.get_agent(session, request.name)
            board = store.get_board(session, parent.board)
            same = select(AgentRow).where(
                AgentRow.board == board.name, AgentRow.fork_request == request.request_id
            )
            former = session.scalars(same).first()
            if former is not None:
                return messages.agent(former)
            row = fork_agent(
                session, board, competition_of(board.spec), parent, changed, request.request_id
            )
            answer = messages.agent(row)
            if request.validate_only:
                answer.name = answer.spec.name = ""
            return answer

        # nothing read is kept
        run = self._database.read if request.validate_only else self._database.write
        return await run(operation)

    async def pin(self, name: str, *, pinned: bool) -> leaderboard_pb2.Agent:
        """Pin or unpin an agent. Raises PreconditionFailed (AGENT_ENDED) if one to pin has
        ended."""

        def change(agent: AgentRow) -> None:
            if pinned:
                _require_alive(agent)
            agent.pinned = pinned

        return await self._change(name, change)

    async def stop(self, name: str) -> leaderboard_pb2.Agent:
        """Stop an agent; a round in progress ends as usual. Raises PreconditionFailed
        (AGENT_ENDED)."""

        def change(agent: AgentRow) -> None:
            if agent.state == State.STOPPED:
                return
            _require_alive(agent)
            agent.pinned = False
            if agent.state == State.TRAINING:
                agent.stopping = True
            else:
                agent.state = State.STOPPED

        return await self._change(name, change)

    async def _change(self, name: str, change: Callable[[AgentRow], None]) -> leaderboard_pb2.Agent:
        messages.check_agent(name, "name")

        def operation(session: Session) -> leaderboard_pb2.Agent:
            agent = store.get_agent(session, name)
            change(agent)
            return messages.agent(agent)

        return await self._database.write(operation)


def _require_alive(agent: AgentRow) -> None:
    if agent.state not in ALIVE:
        message = f"agent {agent.name} is {agent.state}: it is trained no more"
        raise PreconditionFailed(message, reason="AGENT_ENDED", agent=agent.name, state=agent.state)

"""Users' acts on agents, through the orchestrator: fork, pin and stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.errors import InvalidInput, PreconditionFailed
from podracer_core.evolution import ALIVE, State
from podracer_leaderboard import evaluations, messages, proposals, store, submissions
from podracer_leaderboard.competition import competition_of
from podracer_leaderboard.places import fork_agent
from podracer_leaderboard.tables import AgentRow, Changes
from podracer_platform.database import Database
from podracer_platform.messages import hyperparameters_from_message


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


MAX_STEPS = 1000


class Call(NamedTuple):
    """How a request is checked, and carried out over a session; whether its answer concerns
    watchers."""

    check: Callable[[Any], None]
    run: Callable[..., Any]
    is_news: Callable[[Any], bool]


_CALLS: Mapping[str, Call] = {
    "evaluations": Call(evaluations.check, evaluations.record, evaluations.has_challenge),
    "candidate": Call(submissions.check, submissions.submit, lambda request: True),
    "cohort": Call(proposals.check, proposals.propose, lambda request: False),
}


class Exchanges:
    """Answers them."""

    def __init__(self, database: Database, changes: Changes) -> None:
        self._database = database
        self._changes = changes

    async def call(self, kind: str, request: Any) -> Any:
        """Carry out one request: `evaluations`, `candidate` or `cohort`."""
        (answer,) = await self._carry_out([(kind, request)])
        return answer

    async def exchange(
        self, request: leaderboard_pb2.ExchangeRequest
    ) -> leaderboard_pb2.ExchangeResponse:
        """Carry out all steps or none. Raises what the first one that is refused does by itself."""
        messages.check_leaderboard(request.leaderboard)
        if len(request.steps) > MAX_STEPS:
            raise InvalidInput.of(
                "steps", f"expected at most {MAX_STEPS}, got {len(request.steps)}"
            )
        steps = [_step(request, index) for index in range(len(request.steps))]
        answers = zip(steps, await self._carry_out(steps), strict=True)
        return leaderboard_pb2.ExchangeResponse(
            answers=[
                leaderboard_pb2.ExchangeResponse.Answer(**{kind: answer})
                for (kind, _), answer in answers
            ]
        )

    async def _carry_out(self, steps: Sequence[tuple[str, Any]]) -> Sequence[Any]:
        for kind, step in steps:
            _CALLS[kind].check(step)
        try:
            return await self._database.write(
                lambda session: [_CALLS[kind].run(session, step) for kind, step in steps]
            )
        finally:
            if any(_CALLS[kind].is_news(step) for kind, step in steps):
                self._changes.ring()


def _step(request: leaderboard_pb2.ExchangeRequest, index: int) -> tuple[str, Any]:
    """The kind of a step, and its request."""
    kind = request.steps[index].WhichOneof("request")
    if kind is None:
        raise InvalidInput.of(f"steps[{index}]", "expected evaluations, candidate or cohort")
    step = getattr(request.steps[index], kind)
    if step.leaderboard != request.leaderboard:
        raise InvalidInput.of(
            f"steps[{index}]", f"is of {step.leaderboard}, expected {request.leaderboard}"
        )
    return kind, step

"""Users' acts on the agents of a running job: fork, pin and stop.

Each act is first checked with the leaderboard, then stored together with its event. The leaderboard
carries it out when the outbox delivers it. No cohort is proposed in between."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from sqlalchemy.orm import Session

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.errors import PodracerError, PreconditionFailed
from podracer_orchestrator import outbox
from podracer_orchestrator.board.delivery import Delivery, LeaderboardClient
from podracer_orchestrator.board.requests import CohortProposer
from podracer_orchestrator.continuous import promotions
from podracer_orchestrator.jobs import FINAL_STATES, FORKED, JobState, jobs
from podracer_orchestrator.tables import JobRow
from podracer_orchestrator.transactions import WORK, Clock, Transactions, touch
from podracer_platform.messages import hyperparameters_from_message
from podracer_platform.rpc import last_part
from podracer_platform.rpc import resource_names as names

_ALIVE = (leaderboard_pb2.AGENT_STATE_TRAINING, leaderboard_pb2.AGENT_STATE_WAITING)


class AgentActs:
    """Carries out acts; `by` is the caller, for the event."""

    def __init__(
        self,
        transactions: Transactions,
        board: LeaderboardClient,
        delivery: Delivery,
        proposer: CohortProposer,
        clock: Clock,
    ) -> None:
        self._transactions = transactions
        self._board = board
        self._delivery = delivery
        self._proposer = proposer
        self._clock = clock

    async def fork(self, request: leaderboard_pb2.ForkAgentRequest, by: str) -> str:
        """The new agent's name; empty if the leaderboard became unreachable before it could answer.

        Raises InvalidInput with every bad hyperparameter, NotFound, PreconditionFailed.
        """
        async with self._turn(request.name) as board:
            check = leaderboard_pb2.ForkAgentRequest(validate_only=True)
            check.MergeFrom(request)
            agent = await self._board.fork(check)
            if agent.name:
                return agent.name  # the same request before
            changed = hyperparameters_from_message(request.hyperparameters)
            told = (
                ", ".join(f"{name} {changed[name]}" for name in sorted(changed))
                or "nothing changed"
            )
            prefix = agent.spec.initialization.parents[0].checkpoint.prefix
            message = f"is forked by {by}: {told}"
            await self._write(
                board, request, FORKED, message, by=by, checkpoint=prefix, changed=told
            )
            with contextlib.suppress(PodracerError):
                return (await self._board.fork(request)).name
            return ""

    async def pin(self, name: str, by: str, *, pinned: bool) -> None:
        """Pin or unpin an agent; repeating it changes nothing. Raises NotFound,
        PreconditionFailed."""
        async with self._turn(name) as board:
            agent = await self._board.agent(name)
            if agent.pinned == pinned:
                return
            if pinned:
                _require_alive(agent)
            what = "pinned" if pinned else "unpinned"
            request = leaderboard_pb2.PinAgentRequest(name=name, unpin=not pinned)
            await self._write(board, request, f"AGENT_{what.upper()}", f"is {what} by {by}", by=by)

    async def stop(self, name: str, by: str) -> None:
        """Stop an agent; repeating it changes nothing. Raises NotFound, PreconditionFailed."""
        async with self._turn(name) as board:
            agent = await self._board.agent(name)
            if agent.stopping or agent.state == leaderboard_pb2.AGENT_STATE_STOPPED:
                return
            _require_alive(agent)
            request = leaderboard_pb2.StopAgentRequest(name=name)
            ends = (
                " once its round has ended"
                if agent.state == leaderboard_pb2.AGENT_STATE_TRAINING
                else ""
            )
            await self._write(board, request, "AGENT_STOPPED", f"is stopped by {by}{ends}", by=by)

    @contextlib.asynccontextmanager
    async def _turn(self, agent: str) -> AsyncIterator[str]:
        """Hold the job's turn, so that nothing is proposed; yields its leaderboard's name once that
        is up to date."""
        job = await self._transactions.read(lambda session: _living_job(session, agent))
        board = outbox.board_of(job)
        async with self._proposer.turn(job.uid):
            await self._delivery.flush(board)
            yield board

    async def _write(
        self, board: str, request: outbox.AgentAct, kind: str, message: str, **details: str
    ) -> None:
        """Store the act, and deliver it to the leaderboard now if possible, else later."""
        name, prefix = request.name, details.get("checkpoint")

        def operation(session: Session) -> None:
            job = _living_job(session, name)
            if prefix is not None and not promotions.is_there(session, job.project, prefix):
                problem = f"the checkpoint {prefix} of {name} is not there any more, or damaged"
                raise PreconditionFailed(problem, reason="NO_CHECKPOINT", agent=name)
            outbox.act_on_agent(session, job, request)
            told = f"{last_part(name)} {message}"
            outbox.record(session, job, kind, told, now=self._clock.now(), subject=name, **details)
            touch(session, WORK)

        await self._transactions.write(operation)
        with contextlib.suppress(PodracerError):
            await self._delivery.flush(board)


def _living_job(session: Session, agent: str) -> JobRow:
    """The job of an agent. Raises InvalidInput, NotFound, and PreconditionFailed if it has
    ended."""
    name = names.parse("agent", agent, "name")
    job = jobs.get(session, name.project, name.job)
    if JobState(job.state) in FINAL_STATES:
        raise PreconditionFailed(
            f"the job has ended ({job.state}): its agents stay as they are", reason="JOB_ENDED"
        )
    return job


def _require_alive(agent: leaderboard_pb2.Agent) -> None:
    if agent.state not in _ALIVE:
        state = leaderboard_pb2.AgentState.Name(agent.state).removeprefix("AGENT_STATE_").lower()
        message = f"agent {agent.name} is {state}: it is trained no more"
        raise PreconditionFailed(message, reason="AGENT_ENDED", agent=agent.name, state=state)

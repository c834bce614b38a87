"""Which policy a client means that wants one promoted."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.errors import FieldViolation, InvalidInput, NotFound, PreconditionFailed
from podracer_core.rpc import resource_names as names
from podracer_core.rpc.resource_names import Name
from podracer_orchestrator import jobs, outbox, supervision
from podracer_orchestrator.board.client import LeaderboardClient
from podracer_orchestrator.promotions import Policy
from podracer_orchestrator.tables import CheckpointRow, JobRow
from podracer_orchestrator.transactions import Transactions

KINDS = ("agent", "checkpoint", "best checkpoint")


async def find_policy(transactions: Transactions, board: LeaderboardClient, job: Name, text: str) -> Policy:
    """The policy that `text` names, else the best of `job`, of a continuous one that of its newest generation.

    Raises InvalidInput for a name of another project, NotFound, and PreconditionFailed (NO_CANDIDATE) for an agent of
    which nothing was judged.
    """
    if not text:
        return await transactions.read(lambda session: _best(session, jobs.get(session, job.project, job.id)))
    name = names.parse_any(KINDS, text, "policy")
    if name.project != job.project:
        message = f"{text} is of another project than {names.job_name(job.project, job.id)}"
        raise InvalidInput(message, violations=[FieldViolation("policy", message)])
    if name.kind != "agent":
        return await transactions.read(lambda session: _checkpoint(session, name))
    owner = await transactions.read(lambda session: jobs.get(session, name.project, name.job))
    if owner.retrained is not None and agent_pb2.Parent.FromString(owner.retrained).agent == text:
        return _retrained(owner.retrained)
    leaderboard = outbox.board_of(owner)
    for candidate in (await board.get(leaderboard)).candidates:
        if candidate.agent.name == text:
            return _policy(candidate.evaluation)
    return _of_agent(text, await board.agents(leaderboard))


def _best(session: Session, job: JobRow) -> Policy:
    best = supervision.newest_best(session, job) if job.is_continuous else job
    if best is None or best.best is None:
        what = "none of its generations has a candidate yet" if job.is_continuous else "it has no candidate yet"
        raise PreconditionFailed(f"nothing of {job.job_id} can be promoted: {what}", reason="NO_CANDIDATE")
    if best.retrained is not None:
        return _retrained(best.retrained)
    return _policy(agent_pb2.Evaluation.FromString(best.best))


def _retrained(stored: bytes) -> Policy:
    policy = agent_pb2.Parent.FromString(stored)
    return Policy(policy.agent, policy.checkpoint.prefix)


def _checkpoint(session: Session, name: Name) -> Policy:
    job = jobs.get(session, name.project, name.job)
    if name.kind == "best checkpoint":
        return _best(session, job)
    agent = f"{names.job_name(name.project, name.job)}/agents/{name.agent}"
    query = select(CheckpointRow).where(
        CheckpointRow.job_uid == job.uid, CheckpointRow.agent == agent, CheckpointRow.checkpoint_id == name.id
    )
    row = session.scalar(query)
    if row is None:
        raise NotFound(f"there is no committed checkpoint {name.id} of {agent}", name=name.id)
    return Policy(agent, row.prefix)


def _of_agent(name: str, agents: list[leaderboard_pb2.Agent]) -> Policy:
    for agent in agents:
        if agent.name == name:
            if agent.HasField("best_evaluation"):
                return _policy(agent.best_evaluation)
            message = f"agent {name} has no candidate: no snapshot of it was judged yet"
            raise PreconditionFailed(message, reason="NO_CANDIDATE", agent=name)
    raise NotFound(f"there is no agent {name}", agent=name)


def _policy(evaluation: agent_pb2.Evaluation) -> Policy:
    return Policy(evaluation.agent, evaluation.checkpoint.prefix, evaluation)

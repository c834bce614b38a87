"""Which policy a client means that wants one promoted."""

from __future__ import annotations

from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.errors import FieldViolation, InvalidInput, NotFound, PreconditionFailed
from podracer_orchestrator import names, outbox
from podracer_orchestrator.board.client import LeaderboardClient
from podracer_orchestrator.continuous.promotions import Policy
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.names import Name
from podracer_orchestrator.stored_messages import best_of, retrained_of
from podracer_orchestrator.tables import JobRow
from podracer_orchestrator.transactions import Transactions
from podracer_orchestrator.works import checkpoints

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
    retrained = retrained_of(owner)
    if retrained is not None and retrained.agent == text:
        return Policy(text, retrained.checkpoint.prefix)
    leaderboard = outbox.board_of(owner)
    for candidate in (await board.get(leaderboard)).candidates:
        if candidate.agent.name == text:
            return _policy(candidate.evaluation)
    return _of_agent(text, await board.agents(leaderboard))


def _best(session: Session, job: JobRow) -> Policy:
    of = jobs.newest_best(session, job) if job.is_continuous else job
    best = None if of is None else best_of(of)
    if of is None or best is None:
        what = "none of its generations has a candidate yet" if job.is_continuous else "it has no candidate yet"
        raise PreconditionFailed(f"nothing of {job.job_id} can be promoted: {what}", reason="NO_CANDIDATE")
    retrained = retrained_of(of)
    return _policy(best) if retrained is None else Policy(retrained.agent, retrained.checkpoint.prefix)


def _checkpoint(session: Session, name: Name) -> Policy:
    job = jobs.get(session, name.project, name.job)
    if name.kind == "best checkpoint":
        return _best(session, job)
    row = checkpoints.find_checkpoint(session, job, name)
    return Policy(row.agent, row.prefix)


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

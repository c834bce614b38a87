"""What both databases and the object store say of each other, once everything has come to rest."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import text

from podracer.common.v1 import agent_pb2
from podracer_core.checkpoint import load_checkpoint
from podracer_core.database.location import make_engine, parse_url
from podracer_core.errors import PodracerError
from podracer_core.storage.object_store import open_store
from support.deployment import Deployment
from support.s3_server import S3Server

DELIVERED_S = 30.0
"""A job may end before the leaderboard has heard of its last rounds; it hears of them within this time."""


def await_deliveries(deployment: Deployment) -> None:
    """Until the leaderboard has heard of everything, or should have; the audit says what it has not heard of."""
    own = _rows(deployment.databases["orchestrator"])
    deadline = time.monotonic() + DELIVERED_S
    while own("SELECT count(*) FROM outbox")[0][0] and time.monotonic() < deadline:
        time.sleep(0.2)


def audit(deployment: Deployment, s3: S3Server) -> list[str]:
    """Everything that is not as it should be, a line each. No service runs any more: what nothing needs is deleted
    while one does."""
    own, board = (_rows(deployment.databases[role]) for role in ("orchestrator", "leaderboard"))
    return [
        *_counters(own),
        *_deliveries(own, board),
        *_events(own),
        *_checkpoints(own, deployment, s3),
        *_needed(own, board),
    ]


def _counters(own: Any) -> list[str]:
    """A job's steps are the sum of its members', and are its budget where that is used up."""
    found = []
    for uid, name, steps in own("SELECT uid, job_id, env_steps FROM jobs"):
        of_members = own(
            "SELECT coalesce(sum(m.env_steps), 0) FROM work_members m JOIN works w ON w.id = m.work_id "
            "WHERE w.job_uid = :uid",
            uid=uid,
        )[0][0]
        if of_members != steps:
            found.append(f"{name}: {steps} steps, its members have {of_members}")
    return found


def _deliveries(own: Any, board: Any) -> list[str]:
    """Each finished round of each member is on the leaderboard, once; nothing waits in the outbox."""
    waiting = own("SELECT count(*) FROM outbox")[0][0]
    found = [f"{waiting} deliveries still wait"] if waiting else []
    done = own(
        "SELECT w.id || '/' || m.position, m.agent, m.env_steps FROM work_members m JOIN works w ON w.id = m.work_id "
        "WHERE w.kind = 'TRAIN' AND w.state IN ('DONE', 'FAILED')"
    )
    rounds = {row[0]: row[1:] for row in board("SELECT request_id, agent, env_steps FROM rounds")}
    for request, agent, steps in done:
        if request not in rounds:
            found.append(f"the leaderboard has not heard of {request} of {agent}")
        elif rounds[request] != (agent, steps):
            found.append(f"{request}: {agent} has {steps} steps, the leaderboard has {rounds[request]}")
    extra = set(rounds) - {request for request, _, _ in done}
    found += [f"the leaderboard has heard of {request}, which is not done" for request in extra]
    twice = board("SELECT evaluation_id, count(*) FROM evaluations GROUP BY board, evaluation_id HAVING count(*) > 1")
    return found + [f"evaluation {name} is there {count} times" for name, count in twice]


def _events(own: Any) -> list[str]:
    """Positions count from 1 without gaps."""
    rows = own("SELECT job_uid, count(*), min(position), max(position) FROM events GROUP BY job_uid")
    return [f"events of {uid} have gaps" for uid, count, first, last in rows if (first, last) != (1, count)]


def _checkpoints(own: Any, deployment: Deployment, s3: S3Server) -> list[str]:
    """Every checkpoint that counts can be read and is what was committed."""
    store, found = open_store(deployment.common["store"], s3.settings), []
    for prefix, sha256 in own("SELECT prefix, manifest_sha256 FROM checkpoints"):
        try:
            load_checkpoint(store, prefix, sha256)
        except PodracerError as error:
            found.append(f"{prefix}: {error.message}")
    store.close()
    return found


def _needed(own: Any, board: Any) -> list[str]:
    """Nothing was deleted that has a place on a leaderboard, or that an agent goes on from."""
    there = {prefix for (prefix,) in own("SELECT prefix FROM checkpoints")}
    needed = {
        agent: agent_pb2.Evaluation.FromString(bytes(evaluation)).checkpoint.prefix
        for agent, evaluation in board("SELECT agent, evaluation FROM candidates")
    }
    needed |= {
        f"{agent}, newest": agent_pb2.CheckpointReference.FromString(bytes(checkpoint)).prefix
        for agent, checkpoint in board("SELECT name, latest_checkpoint FROM agents WHERE state <> 'retired'")
        if checkpoint is not None
    }
    return [f"{prefix} of {agent} was deleted" for agent, prefix in needed.items() if prefix not in there]


def _rows(url: str) -> Any:
    engine = make_engine(parse_url(url))

    def rows(query: str, **values: Any) -> list[tuple[Any, ...]]:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query), values)]

    return rows

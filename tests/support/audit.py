"""What both databases and the object store say of each other, once everything has come to rest."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import text

from podracer.common.v1 import agent_pb2
from podracer_core.checkpoint import load_checkpoint
from podracer_core.errors import PodracerError
from podracer_core.storage.object_store import ObjectStore
from podracer_platform.database.location import make_engine, parse_url

DELIVERED_S = 30.0
"""A job may end before the leaderboard has heard of its last rounds; it hears of them within this
time."""


class Audit:
    """Of the databases with these URLs. Everything that is not as it should be is a line."""

    def __init__(self, orchestrator: str, leaderboard: str) -> None:
        self._own, self._board = _rows(orchestrator), _rows(leaderboard)

    def await_deliveries(self) -> None:
        """Until the leaderboard has heard of everything, or should have; the audit says what it has
        not heard of."""
        deadline = time.monotonic() + DELIVERED_S
        while self._own("SELECT count(*) FROM outbox")[0][0] and time.monotonic() < deadline:
            time.sleep(0.2)

    def running(self) -> list[str]:
        """What holds at any moment, of copies that were made while jobs run."""
        return [*_counters(self._own), *_events(self._own)]

    def at_rest(self, store: ObjectStore) -> list[str]:
        """What holds once every job has ended. While a service runs, what nothing needs is deleted,
        so none may."""
        return [
            *self.running(),
            *_deliveries(self._own, self._board),
            *_checkpoints(self._own, store),
            *_needed(self._own, self._board),
        ]


def _counters(own: Any) -> list[str]:
    """A job's steps are the sum of its members', and are its budget where that is used up."""
    found = []
    for uid, name, steps in own("SELECT uid, job_id, env_steps FROM jobs"):
        of_members = own(
            "SELECT coalesce(sum(m.env_steps), 0) FROM work_members m JOIN works w ON w.id = "
            "m.work_id WHERE w.job_uid = :uid",
            uid=uid,
        )[0][0]
        if of_members != steps:
            found.append(f"{name}: {steps} steps, its members have {of_members}")
    return found


def _deliveries(own: Any, board: Any) -> list[str]:
    """Each finished round of each member is on the leaderboard, once; nothing waits in the
    outbox."""
    waiting = own("SELECT count(*) FROM outbox")[0][0]
    found = [f"{waiting} deliveries still wait"] if waiting else []
    done = own(
        "SELECT w.id || '/' || m.position, m.agent, m.env_steps FROM work_members m JOIN works w "
        "ON w.id = m.work_id WHERE w.kind = 'TRAIN' AND w.state IN ('DONE', 'FAILED')"
    )
    rounds = {row[0]: row[1:] for row in board("SELECT request_id, agent, env_steps FROM rounds")}
    for request, agent, steps in done:
        if request not in rounds:
            found.append(f"the leaderboard has not heard of {request} of {agent}")
        elif rounds[request] != (agent, steps):
            found.append(
                f"{request}: {agent} has {steps} steps, the leaderboard has {rounds[request]}"
            )
    extra = set(rounds) - {request for request, _, _ in done}
    found += [f"the leaderboard has heard of {request}, which is not done" for request in extra]
    twice = board(
        "SELECT evaluation_id, count(*) FROM evaluations GROUP BY board, evaluation_id HAVING "
        "count(*) > 1"
    )
    return found + [f"evaluation {name} is there {count} times" for name, count in twice]


def _events(own: Any) -> list[str]:
    """Positions count from 1 without gaps."""
    rows = own(
        "SELECT job_uid, count(*), min(position), max(position) FROM events GROUP BY job_uid"
    )
    return [
        f"events of {uid} have gaps"
        for uid, count, first, last in rows
        if (first, last) != (1, count)
    ]


def _checkpoints(own: Any, store: ObjectStore) -> list[str]:
    """Every checkpoint that counts can be read and is what was committed."""
    found = []
    for prefix, sha256 in own("SELECT prefix, manifest_sha256 FROM checkpoints"):
        try:
            load_checkpoint(store, prefix, sha256)
        except PodracerError as error:
            found.append(f"{prefix}: {error.message}")
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
        for agent, checkpoint in board(
            "SELECT name, latest_checkpoint FROM agents WHERE state <> 'retired'"
        )
        if checkpoint is not None
    }
    return [
        f"{prefix} of {agent} was deleted"
        for agent, prefix in needed.items()
        if prefix not in there
    ]


def _rows(url: str) -> Any:
    engine = make_engine(parse_url(url))

    def rows(query: str, **values: Any) -> list[tuple[Any, ...]]:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query), values)]

    return rows

"""Access of lease holders to the object store: no pod has keys that outlive its work."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from fnmatch import fnmatchcase

from sqlalchemy.orm import Session

from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import PermissionRefused
from podracer_core.storage import (
    CheckpointPlace,
    ObjectStore,
    agent_prefix,
    job_prefix,
    of_project,
    written_pattern,
)
from podracer_orchestrator.leases import Holder, LeaseDeadlines, leases
from podracer_orchestrator.outcomes import lease_ends
from podracer_orchestrator.tables import WorkKind
from podracer_orchestrator.transactions import Clock, Transactions
from podracer_platform.messages import seconds_to_duration
from podracer_platform.rpc import texts

VALIDITY_S = 900.0
"""The shortest that STS gives. Holders ask again after two thirds of it."""
_WRITE = (WorkKind.TRAIN, WorkKind.RETRAIN)


class StoreAccess:
    """Gives keys and URLs to those who hold a lease."""

    def __init__(
        self,
        transactions: Transactions,
        deadlines: LeaseDeadlines,
        store: ObjectStore,
        clock: Clock,
    ) -> None:
        self._transactions = transactions
        self._deadlines = deadlines
        self._store = store
        self._clock = clock

    async def grant(
        self, holder: Holder, request: pod_pb2.GetStoreAccessRequest
    ) -> pod_pb2.GetStoreAccessResponse:
        """Keys for the job's objects, or the URL of one object. Raises Fenced unless the lease is
        held, and PermissionRefused (NOT_OF_LEASE) for an object that the lease may not reach."""
        own, written, named = await self._transactions.read(
            lambda session: self._scope(session, holder)
        )
        kind, validity = request.WhichOneof("object"), seconds_to_duration(VALIDITY_S)
        if kind is None:
            keys = await asyncio.to_thread(self._store.session_keys, f"{own}*", written, VALIDITY_S)
            message = pod_pb2.StoreKeys(**asdict(keys)) if keys is not None else None
            return pod_pb2.GetStoreAccessResponse(keys=message, validity=validity)
        key, is_read = getattr(request, kind), kind == "read"
        if not (
            key.startswith(own) or _subject(key) in named if is_read else fnmatchcase(key, written)
        ):
            raise PermissionRefused(
                f"this lease may not {kind} the object {key[:200]!r}", reason="NOT_OF_LEASE"
            )
        url = await asyncio.to_thread(
            self._store.signed_url, "GET" if is_read else "PUT", key, VALIDITY_S
        )
        return pod_pb2.GetStoreAccessResponse(url=url, validity=validity)

    def _scope(self, session: Session, holder: Holder) -> tuple[str, str, set[str]]:
        """The prefix of the job's objects, the pattern of those to write, and what else the work
        names."""
        lease = leases.require_held(leases.find(session, holder))
        self._deadlines.check(lease.fence)
        change, message = lease_ends.change_of(session, lease, self._clock.now()), pod_pb2.Lease()
        lease_ends.work_of(lease.kind).encode(change, lease, message)
        project, uid = change.job.project, change.job.uid
        named = {_subject(text) for text in texts(message) if of_project(text, project)}
        written = written_pattern(project, uid, lease.fence) if lease.kind in _WRITE else ""
        return job_prefix(project, uid), written, named


def _subject(key: str) -> str:
    """What access is given to: an object, or all checkpoints of an agent, which may use one
    another's files."""
    place = CheckpointPlace.of_object(key)
    return key if place is None else agent_prefix(place.project, place.job_uid, place.agent)

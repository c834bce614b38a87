"""The calls of lease holders, and the end of leases whose holder is gone."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Sequence
from contextlib import nullcontext

from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import DataCorrupted, Fenced, PodracerError
from podracer_core.storage import CheckpointPlace, ObjectStore, read_manifest, verify
from podracer_orchestrator.dispatch.renewals import EvaluationBatcher, LeaseActions, Orders
from podracer_orchestrator.dispatch.store_access import StoreAccess
from podracer_orchestrator.jobs import ACTIVE_STATES, JobState, jobs
from podracer_orchestrator.leases import Holder, LeaseDeadlines, LiveReport, followers, leases
from podracer_orchestrator.outcomes import broken_worlds, lease_ends
from podracer_orchestrator.pool import pods
from podracer_orchestrator.tables import LeaseRow, LeaseState, PodState, WorkRow
from podracer_orchestrator.transactions import ChangeFeed, Clock, Transactions, due_topic, touch
from podracer_orchestrator.works import MemberCommit, checkpoints
from podracer_platform.telemetry import LEASES

logger = logging.getLogger(__name__)

HANDED_BACK = ("", "DRAINED", "DRAINING", "SHUTDOWN", "SUSPENDED", "STOPPED", "CANCELLED")
"""Reasons of a release that are no failure of the work."""
ACCRUAL_S = 2.0
"""How often active time and the cost of followers are stored; a crash loses at most this much."""
_SHORTEST_S = 0.05


class LeaseOperations:
    """Carries out the calls of lease holders. Each raises Fenced, and changes nothing, unless the
    lease is held."""

    def __init__(
        self,
        transactions: Transactions,
        deadlines: LeaseDeadlines,
        store: ObjectStore,
        changes: ChangeFeed,
        clock: Clock,
    ) -> None:
        self._transactions = transactions
        self._deadlines = deadlines
        self._store = store
        self._clock = clock
        self._actions = LeaseActions(transactions, changes, clock)
        self.access = StoreAccess(transactions, deadlines, store, clock)
        self.orders = Orders(self._actions, deadlines, changes)
        self._batcher = EvaluationBatcher(transactions, deadlines, clock)
        # the breaks of jobs, by kind, that need no further transaction
        self._told: set[tuple[str, bool]] = set()

    async def renew(
        self,
        holder: Holder,
        live: LiveReport,
        evaluations: Sequence[agent_pb2.Evaluation],
        breaks: Sequence[agent_pb2.WorldBreak] = (),
    ) -> pod_pb2.LeaseAction.ValueType:
        """Give the lease another term; returns whether to continue."""

        job_uid = self._deadlines.job_of(holder.fence)
        if evaluations:
            await self._batcher.store(holder, evaluations)
        if not (kinds := {(job_uid, each.numbers) for each in breaks}) <= self._told:
            await self._transactions.write(lambda session: self._tell(session, holder, breaks))
            self._told |= kinds
        action = (await self._actions.of_job(job_uid)).get(holder.fence)
        if action is None:
            action = await self._transactions.read(lambda session: self._last_word(session, holder))
        self._deadlines.renew(holder.fence, live)
        LEASES.add(event="renewed")
        return action

    def _tell(
        self, session: Session, holder: Holder, breaks: Sequence[agent_pb2.WorldBreak]
    ) -> None:
        lease = self._held(session, holder)
        job, work = jobs.get_by_uid(session, lease.job_uid), session.get_one(WorkRow, lease.work_id)
        broken_worlds.hear_training(session, job, work.members, breaks, self._clock.now())

    async def commit(self, holder: Holder, commits: Sequence[MemberCommit]) -> None:
        """Commit checkpoints, which must be complete in the store. Raises DataCorrupted if one is
        not."""
        await self._verify([each.checkpoint for each in commits])

        def operation(session: Session) -> None:
            checkpoints.commit(session, self._held(session, holder), commits, self._clock.now())

        await self._transactions.write(operation)

    async def pod_of(self, holder: Holder) -> str:
        """The pod that was granted a lease. Raises NotFound if there is no such lease."""
        return await self._transactions.read(lambda session: leases.find(session, holder).pod)

    async def complete(self, holder: Holder, result: lease_ends.Result) -> None:
        """End the work with its result; repeating it changes nothing."""
        is_round = isinstance(result, pod_pb2.TrainResult)
        if isinstance(result, pod_pb2.TrainResult):
            await self._verify(_checkpoints(result))
        sound_here = isinstance(result, cohort_pb2.Problem) and await self._is_sound(holder, result)

        def operation(session: Session) -> bool:
            lease = leases.find(session, holder)
            if lease.state == LeaseState.COMPLETED:
                return False
            self._require_held(lease)
            # A round is stored at once at its end, not bit by bit before each query.
            with session.no_autoflush if is_round else nullcontext():
                lease_ends.complete(
                    session, lease, result, self._clock.now(), sound_here=sound_here
                )
            return True

        if await self._transactions.write(operation):
            LEASES.add(event="completed")
        self._deadlines.end(holder.fence)

    async def release(self, holder: Holder, reason: cohort_pb2.Problem) -> None:
        """Hand the work back; repeating it changes nothing."""

        def operation(session: Session) -> bool:
            lease = leases.find(session, holder)
            if lease.state == LeaseState.RELEASED:
                return False
            self._require_held(lease)
            problem = None if reason.reason in HANDED_BACK else reason
            why = f"handed back: {reason.message or reason.reason or 'the pod stops'}"
            lease_ends.lose(
                session, lease, LeaseState.RELEASED, why, self._clock.now(), problem=problem
            )
            return True

        if await self._transactions.write(operation):
            LEASES.add(event="released")
        self._deadlines.end(holder.fence)

    async def expire_overdue(self) -> None:
        """End the leases whose deadline has passed."""
        for fence in self._deadlines.expired():
            if await self._transactions.write(functools.partial(self._expire, fence=fence)):
                LEASES.add(event="expired")
                self._deadlines.end(fence)

    async def lose_pod(self, pod: str, problem: cohort_pb2.Problem | None, why: str) -> None:
        """End the leases of a pod whose learner is known to be gone. `problem`: counts as a failure
        of the work."""

        def operation(session: Session) -> list[int]:
            return pods.lose(session, pod, problem, why, self._clock.now())

        for fence in await self._transactions.write(operation):
            LEASES.add(event="expired")
            self._deadlines.end(fence)

    async def recover(self) -> None:
        """Give every held lease one full term after a restart."""

        def operation(session: Session) -> list[tuple[int, str]]:
            followers.forget_time_since(session, self._clock.now())
            for job in jobs.in_states(session, frozenset(JobState)):
                if job.active_since is not None:
                    job.active_since = self._clock.now()  # the time in between is unknown
            return [(lease.fence, lease.job_uid) for lease in leases.held(session)]

        for fence, job_uid in await self._transactions.write(operation):
            self._deadlines.begin(fence, job_uid)

    def _held(self, session: Session, holder: Holder) -> LeaseRow:
        return self._require_held(leases.find(session, holder))

    def _require_held(self, lease: LeaseRow) -> LeaseRow:
        leases.require_held(lease)
        self._deadlines.check(lease.fence)
        return lease

    def _expire(self, session: Session, fence: int) -> bool:
        """Expire a lease. Returns whether it was held until now. Its deadline then stays until this
        is durable, else no sweep would see the lease again."""
        lease = session.get(LeaseRow, fence)
        if fence not in self._deadlines.expired():
            return False  # renewed while this transaction waited for its turn
        if lease is None or lease.state != LeaseState.HELD:
            # at once: the number of a grant that failed is another's soon
            self._deadlines.end(fence)
            return False
        why = f"{lease.pod} did not renew its lease for {self._deadlines.term_s:g} s"
        problem = cohort_pb2.Problem(reason="LEASE_EXPIRED", message=why)
        lease_ends.lose(session, lease, LeaseState.EXPIRED, why, self._clock.now(), problem=problem)
        return True

    def _last_word(self, session: Session, holder: Holder) -> pod_pb2.LeaseAction.ValueType:
        """The action for a lease that was not among its job's when these were read."""
        lease = self._held(session, holder)
        if lease_ends.work_of(lease.kind).is_overdue(lease.grant_time, self._clock.now()):
            raise Fenced(f"{lease.pod} still holds its lease, but its evaluation took too long")
        return pod_pb2.LEASE_ACTION_CONTINUE

    async def _is_sound(self, holder: Holder, problem: cohort_pb2.Problem) -> bool:
        """Whether the checkpoint of its job that a pod could not read is in the store as it was
        committed."""
        place = CheckpointPlace.of_object(problem.subject)
        if place is None:
            return False

        def committed(session: Session) -> str | None:
            row = checkpoints.of_job(session, leases.find(session, holder).job_uid, place.prefix)
            return None if row is None else row.manifest_sha256

        sha256 = await self._transactions.read(committed)
        if sha256 is None:
            return False
        try:
            await asyncio.to_thread(verify, self._store, place.prefix, sha256)
        except DataCorrupted:
            return False
        return True

    async def _verify(self, checkpoints: Sequence[agent_pb2.CheckpointReference]) -> None:
        """Raise DataCorrupted unless each manifest, which is written last, is in the store as
        committed."""
        await asyncio.gather(
            *(
                asyncio.to_thread(read_manifest, self._store, each.prefix, each.manifest_sha256)
                for each in checkpoints
            )
        )


def _checkpoints(result: pod_pb2.TrainResult) -> list[agent_pb2.CheckpointReference]:
    found = []
    for member in result.members:
        if member.HasField("final"):
            found.append(member.final.checkpoint)
        if member.HasField("candidate") and member.candidate.HasField("checkpoint"):
            found.append(member.candidate.checkpoint)
    return found


class Sweep:
    """The task for time: it expires leases, counts active time, and notes silent pods."""

    def __init__(
        self,
        transactions: Transactions,
        deadlines: LeaseDeadlines,
        operations: LeaseOperations,
        clock: Clock,
    ) -> None:
        self._transactions = transactions
        self._deadlines = deadlines
        self._operations = operations
        self._clock = clock

    async def run(self) -> None:
        """Sleep until the next deadline, or until active time has to be stored."""
        while True:
            next_deadline = self._deadlines.next_deadline()
            wait_s = ACCRUAL_S if next_deadline is None else next_deadline - self._clock.monotonic()
            await asyncio.sleep(min(ACCRUAL_S, max(_SHORTEST_S, wait_s)))
            try:
                await self._operations.expire_overdue()
                await self._transactions.write(self.tidy)
            except PodracerError as error:
                logger.error("cannot expire overdue leases, retrying: %s", error)

    def tidy(self, session: Session) -> None:
        """Count active time and the followers' cost, end jobs with a used budget, and note pods
        that are gone."""
        now = self._clock.now()
        followers.count_costs(session, now)
        for job in jobs.in_states(session, ACTIVE_STATES):
            leases.accrue(job, now)
            touch(session, due_topic(job.uid))
        for pod in pods.silent(session, now):
            pods.set_state(session, pod.name, PodState.LOST, "it stopped asking for work")

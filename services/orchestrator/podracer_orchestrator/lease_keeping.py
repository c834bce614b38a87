"""What a lease's holder may do with it, and what happens to leases whose holder is gone."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import DataCorrupted, Fenced
from podracer_core.storage.layout import CheckpointPlace
from podracer_core.storage.manifest import read_manifest, verify
from podracer_core.storage.object_store import ObjectStore
from podracer_orchestrator import evaluation_works, followers, jobs, leases, objective, pods, progress, results, works
from podracer_orchestrator.changes import ChangeFeed, job_topic
from podracer_orchestrator.clock import Clock
from podracer_orchestrator.job_plan import plan_of
from podracer_orchestrator.job_state import ACTIVE_STATES, JobState
from podracer_orchestrator.progress import MemberCommit
from podracer_orchestrator.tables import CheckpointRow, JobRow, LeaseRow, LeaseState, PodRow, PodState, WorkKind
from podracer_orchestrator.terms import LeaseTerms, LiveReport
from podracer_orchestrator.transactions import Transactions

HANDED_BACK = ("", "DRAINED", "DRAINING", "SHUTDOWN", "SUSPENDED", "STOPPED", "CANCELLED")
"""Reasons of a release that say nothing against the work."""

Result = pod_pb2.TrainResult | pod_pb2.EvaluateResult | pod_pb2.InspectResult | cohort_pb2.Problem


@dataclass(frozen=True, slots=True)
class Holder:
    """A lease and its fence, as its holder's call names them."""

    lease_id: str
    fence: int


class LeaseKeeper:
    """Carries out the calls of lease holders. Each raises Fenced, and changes nothing, unless the lease is held."""

    def __init__(
        self, transactions: Transactions, terms: LeaseTerms, store: ObjectStore, changes: ChangeFeed, clock: Clock
    ) -> None:
        self._transactions = transactions
        self._terms = terms
        self._store = store
        self._changes = changes
        self._clock = clock

    async def renew(
        self, holder: Holder, live: LiveReport, evaluations: Sequence[agent_pb2.Evaluation]
    ) -> pod_pb2.LeaseAction.ValueType:
        """Give the lease another term, and say whether to go on."""

        def operation(session: Session) -> tuple[LeaseRow, pod_pb2.LeaseAction.ValueType]:
            lease = self._held(session, holder)
            if evaluation_works.is_overdue(lease, self._clock.now()):
                raise Fenced(f"{lease.pod} keeps its lease, but has not ended its evaluation in time")
            results.record_evaluations(session, lease, evaluations, self._clock.now())
            return lease, self._action(session, lease)

        run = self._transactions.write if evaluations else self._transactions.read
        lease, action = await run(operation)
        self._terms.renew(holder.fence, live)
        self._changes.notify([job_topic(lease.job_uid)])
        return action

    async def commit(self, holder: Holder, commits: Sequence[MemberCommit]) -> None:
        """Make checkpoints count; they must be in the store, complete. Raises DataCorrupted where one is not."""
        await self._verify([each.checkpoint for each in commits])

        def operation(session: Session) -> None:
            progress.commit(session, self._held(session, holder), commits, self._clock.now())

        await self._transactions.write(operation)

    async def pod_of(self, holder: Holder) -> str:
        """The pod that was granted a lease. Raises NotFound where there is none."""
        return await self._transactions.read(lambda session: leases.find(session, holder.lease_id, holder.fence).pod)

    async def complete(self, holder: Holder, result: Result) -> None:
        """End the work with its result; the same again changes nothing."""
        if isinstance(result, pod_pb2.TrainResult):
            await self._verify(_checkpoints(result))
        sound_here = isinstance(result, cohort_pb2.Problem) and await self._is_sound(result)

        def operation(session: Session) -> None:
            if leases.find(session, holder.lease_id, holder.fence).state == LeaseState.COMPLETED:
                return
            lease, now = self._held(session, holder), self._clock.now()
            if isinstance(result, pod_pb2.TrainResult):
                results.complete_train(session, lease, result, now)
            elif isinstance(result, pod_pb2.EvaluateResult):
                results.complete_evaluation(session, lease, result, now)
            elif isinstance(result, pod_pb2.InspectResult):
                results.complete_inspection(session, lease, result, now)
            else:
                results.complete_with_problem(session, lease, result, now, sound_here=sound_here)

        await self._transactions.write(operation)
        self._terms.end(holder.fence)

    async def release(self, holder: Holder, reason: cohort_pb2.Problem) -> None:
        """Hand the work back undone; the same again changes nothing."""

        def operation(session: Session) -> None:
            if leases.find(session, holder.lease_id, holder.fence).state == LeaseState.RELEASED:
                return
            lease = self._held(session, holder)
            problem = None if reason.reason in HANDED_BACK else reason
            why = f"handed back: {reason.message or reason.reason or 'the pod stops'}"
            works.lose(session, lease, LeaseState.RELEASED, why, self._clock.now(), problem=problem)
            objective.finish_if_due(session, session.get_one(JobRow, lease.job_uid), self._clock.now())

        await self._transactions.write(operation)
        self._terms.end(holder.fence)

    async def expire_overdue(self) -> None:
        """End the leases whose deadline has passed."""
        for fence in self._terms.expired():
            await self._transactions.write(functools.partial(self._expire, fence=fence))

    async def lose_pod(self, pod: str, problem: cohort_pb2.Problem | None, why: str) -> None:
        """End the leases of a pod whose learner is known to be gone; `problem` where that is held against the work."""

        def operation(session: Session) -> list[int]:
            held = leases.held(session, pod=pod)
            fences = pods.lose(session, pod, problem, why, self._clock.now())
            for lease in held:
                objective.finish_if_due(session, session.get_one(JobRow, lease.job_uid), self._clock.now())
            return fences

        for fence in await self._transactions.write(operation):
            self._terms.end(fence)

    async def recover(self) -> None:
        """After a restart: every lease that is held has one full term."""

        def operation(session: Session) -> list[tuple[int, str]]:
            followers.forget_time_since(session, self._clock.now())
            for job in jobs.in_states(session, frozenset(JobState)):
                if job.active_since is not None:
                    job.active_since = self._clock.now()  # nobody knows what went on meanwhile
            return [(lease.fence, lease.job_uid) for lease in leases.held(session)]

        for fence, job_uid in await self._transactions.write(operation):
            self._terms.begin(fence, job_uid)

    def _held(self, session: Session, holder: Holder) -> LeaseRow:
        lease = leases.find_held(session, holder.lease_id, holder.fence)
        self._terms.check(holder.fence)
        return lease

    def _expire(self, session: Session, fence: int) -> None:
        lease = session.get(LeaseRow, fence)
        if fence not in self._terms.expired():
            return  # renewed while this transaction waited for its turn
        self._terms.end(fence)
        if lease is None or lease.state != LeaseState.HELD:
            return
        why = f"{lease.pod} did not renew its lease for {self._terms.term_s:g} s"
        problem = cohort_pb2.Problem(reason="LEASE_EXPIRED", message=why)
        works.lose(session, lease, LeaseState.EXPIRED, why, self._clock.now(), problem=problem)
        objective.finish_if_due(session, session.get_one(JobRow, lease.job_uid), self._clock.now())

    def _action(self, session: Session, lease: LeaseRow) -> pod_pb2.LeaseAction.ValueType:
        job = session.get_one(JobRow, lease.job_uid)
        pod = session.get(PodRow, lease.pod)
        if pod is not None and pod.state in (PodState.DRAINING, PodState.STOPPED):
            return pod_pb2.LEASE_ACTION_DRAIN
        if JobState(job.state) not in ACTIVE_STATES or _is_too_many(session, lease, job):
            return pod_pb2.LEASE_ACTION_RELEASE
        if lease.kind != WorkKind.TRAIN:
            return pod_pb2.LEASE_ACTION_CONTINUE
        if job.time_to_target_s is not None:
            return pod_pb2.LEASE_ACTION_FINISH  # the job only waits for its ensemble
        limit_s = plan_of(job).budget.active_time_s
        if limit_s is not None and leases.active_time_s(job, self._clock.now()) >= limit_s:
            return pod_pb2.LEASE_ACTION_FINISH
        return pod_pb2.LEASE_ACTION_CONTINUE

    async def _is_sound(self, problem: cohort_pb2.Problem) -> bool:
        """Whether the checkpoint that a pod could not read is in the store as it was committed."""
        place = CheckpointPlace.of_object(problem.subject)
        if place is None:
            return False

        def committed(session: Session) -> str | None:
            row = session.get(CheckpointRow, place.prefix)
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
        """Raise DataCorrupted unless the manifest of each, which is written last, is in the store as committed."""
        await asyncio.gather(
            *(asyncio.to_thread(read_manifest, self._store, each.prefix, each.manifest_sha256) for each in checkpoints)
        )


def _is_too_many(session: Session, lease: LeaseRow, job: JobRow) -> bool:
    """Whether the job has come to want fewer pods, or fewer teams, than hold leases of it, and this one is to go: the
    newest do, of teams with all of their followers."""
    plan, (count, leads) = plan_of(job), leases.count_held(session, job.uid)
    if count <= plan.max_pods and leads <= plan.max_teams:
        return False
    held = leases.held(session, job_uid=job.uid)
    pods_of = {each.fence: session.get(PodRow, each.pod) for each in held}
    draining = {fence for fence, pod in pods_of.items() if pod is not None and pod.state == PodState.DRAINING}
    staying = [each for each in held if each.fence not in draining]
    ranked = sorted(staying, key=lambda each: (each.lead_fence or each.fence, each.fence))
    leading = [each for each in staying if each.kind == WorkKind.TRAIN]
    return lease in ranked[plan.max_pods :] or lease in leading[plan.max_teams :]


def _checkpoints(result: pod_pb2.TrainResult) -> list[agent_pb2.CheckpointReference]:
    found = []
    for member in result.members:
        if member.HasField("final"):
            found.append(member.final.checkpoint)
        if member.HasField("candidate") and member.candidate.HasField("checkpoint"):
            found.append(member.candidate.checkpoint)
    return found

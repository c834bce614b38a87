"""LeaseWork: finds work for a pod, requests a proposal, or lets the pod wait."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from google.protobuf import duration_pb2
from sqlalchemy.orm import Session

from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import InvalidInput, PodracerError
from podracer_orchestrator.board import CohortProposer, ToPropose, to_propose
from podracer_orchestrator.dispatch.capabilities import Capabilities, note_passed_over
from podracer_orchestrator.dispatch.metrics import WaitingPods, granted
from podracer_orchestrator.jobs import (
    TRAINING_STATES,
    BudgetSplit,
    JobState,
    Remainder,
    jobs,
    plan_of,
    remainder,
    used_part,
)
from podracer_orchestrator.leases import LeaseDeadlines, followers, lease_message, leases
from podracer_orchestrator.outcomes import lease_ends
from podracer_orchestrator.pool import PoolShares, pods
from podracer_orchestrator.stored_messages import as_problem
from podracer_orchestrator.tables import (
    JobRow,
    LeaseRow,
    LeaseState,
    PodRow,
    PodState,
    WorkKind,
    WorkRow,
    WorkState,
)
from podracer_orchestrator.transactions import WORK, ChangeFeed, Clock, Transactions, touch
from podracer_orchestrator.works import Change, works
from podracer_platform.rpc import LeaseTokens

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ask:
    """A decoded LeaseWork request."""

    report: pods.PodReport
    request_id: str
    capabilities: Capabilities = field(default_factory=Capabilities)

    @property
    def asker(self) -> leases.Asker:
        return leases.Asker(self.report.name, self.report.instance_id, self.request_id)


Found = pod_pb2.Lease | ToPropose | None
"""The answer to a pod: a lease, a cohort that has to be proposed first, or nothing."""


class Dispatcher:
    """Answers pods that ask for work."""

    def __init__(
        self,
        transactions: Transactions,
        deadlines: LeaseDeadlines,
        tokens: LeaseTokens,
        proposer: CohortProposer,
        changes: ChangeFeed,
        clock: Clock,
        shares: PoolShares | None = None,
    ) -> None:
        """`shares`: of the pool; None: pods are started elsewhere."""
        self._transactions = transactions
        self._deadlines = deadlines
        self._tokens = tokens
        self._proposer = proposer
        self._changes = changes
        self._clock = clock
        self._shares = shares or PoolShares(clock)
        self._draining = False
        self._waits = WaitingPods()
        self._asking: dict[str, str] = {}  # each waiting pod's last request

    def drain(self) -> None:
        """Grant no more leases, and answer every waiting pod at once."""
        self._draining = True
        self._changes.notify([WORK])

    def admission_score(self, fence: int) -> float | None:
        """The score that a candidate of the lease's job now needs, as far as the job's last cohort
        has told."""
        return self._proposer.admission_scores.get(self._deadlines.job_of(fence))

    async def lease(self, ask: Ask, wait_s: float) -> pod_pb2.Lease | None:
        """A lease within `wait_s`, or None. A repeated request gets the same lease, or None once it
        has ended. A pod's next request ends the wait for its former one."""
        pod = ask.report.name
        self._asking[pod] = ask.request_id
        try:
            with self._waits.one_more():
                return await self._lease(ask, self._clock.monotonic() + wait_s)
        finally:
            if self._asking.get(pod) == ask.request_id:
                del self._asking[pod]

    async def _lease(self, ask: Ask, deadline: float) -> pod_pb2.Lease | None:
        looked_at_ns = time.time_ns()
        version = self._changes.version(WORK)
        is_repeated, found = await self._transactions.write(
            lambda session: self._check_in_and_find(session, ask)
        )
        if is_repeated:
            return found if isinstance(found, pod_pb2.Lease) else None
        while not self._draining:
            if isinstance(found, ToPropose):
                found = await self._have_proposed(ask, found)
            if isinstance(found, pod_pb2.Lease):
                return granted(found, looked_at_ns)
            if found is None:
                left_s = deadline - self._clock.monotonic()
                if left_s <= 0.0 or not self._is_last(ask):
                    return None
                await self._changes.wait(WORK, version, min(left_s, self._proposer.next_chance_s))
                version, looked_at_ns = self._changes.version(WORK), time.time_ns()
                found = await self._look(ask)
        return None

    async def _look(self, ask: Ask, turn: str = "") -> Found:
        return await self._transactions.write(lambda session: self._find_again(session, ask, turn))

    async def _have_proposed(self, ask: Ask, what: ToPropose) -> Found:
        """Request a job's next cohort when it is this pod's turn; returns the work that the pod
        then finds.

        A pod that has waited for its turn first checks for work again, and takes its own proposal
        before the next turn begins. Otherwise every waiting pod would check again after each
        proposal for another pod."""
        turn = self._proposer.turn(what.job_uid)
        has_waited = turn.locked()
        async with turn:
            found: Found = await self._look(ask, what.job_uid) if has_waited else what
            if not isinstance(found, ToPropose) or found.job_uid != what.job_uid:
                return found
            # If that found nothing, there may be a lead to follow.
            return await self._proposer.propose(
                found, lambda session: self._find_again(session, ask, what.job_uid)
            )

    def _check_in_and_find(self, session: Session, ask: Ask) -> tuple[bool, Found]:
        is_repeated, former = self._check_in(session, ask)
        return is_repeated, former if is_repeated or self._draining else self._find(session, ask)

    def _check_in(self, session: Session, ask: Ask) -> tuple[bool, pod_pb2.Lease | None]:
        """Record the pod. Returns whether the same request has had a lease, and that lease while it
        is held."""
        now = self._clock.now()
        pod = pods.check_in(session, ask.report, now)
        former, held = leases.of_asker(session, ask.asker)
        if former is not None:
            return True, self._granted_before(session, ask, former)
        for lease in held:
            # A learner works on one lease at a time: one that asks again has lost, or forgotten,
            # its former lease.
            restarted = lease.instance_id != ask.report.instance_id
            why = "its learner was restarted" if restarted else "its learner asked for other work"
            problem = as_problem(PodracerError(f"{pod.name}: {why}", reason="POD_RESTARTED"))
            # Its deadline stays for the sweep: this transaction may fail.
            lease_ends.lose(session, lease, LeaseState.EXPIRED, why, now, problem=problem)
        if pod.state == PodState.LOST:
            pod.state = PodState.IDLE
        session.flush()
        return False, None

    def _granted_before(self, session: Session, ask: Ask, former: LeaseRow) -> pod_pb2.Lease | None:
        """The lease that the same request has had, while it is held."""
        if former.pod != ask.report.name:
            raise InvalidInput(
                f"the request {ask.request_id} was made by another pod", reason="WRONG_REQUEST_ID"
            )
        if former.state != LeaseState.HELD or not self._deadlines.is_running(former.fence):
            return None
        self._deadlines.renew(former.fence)
        return self._message(session, former)

    def _is_last(self, ask: Ask) -> bool:
        """Whether the pod has made no later request: the asker may be gone where it has."""
        return self._asking.get(ask.report.name) == ask.request_id

    def _find_again(self, session: Session, ask: Ask, turn: str = "") -> Found:
        """`_find` for a call that has waited: meanwhile a repetition of it may have got the
        lease."""
        former, _ = leases.of_asker(session, ask.asker)
        if former is not None:
            return self._granted_before(session, ask, former)
        return self._find(session, ask, turn) if self._is_last(ask) else None

    def _find(self, session: Session, ask: Ask, turn: str = "") -> Found:
        """A lease if there is work; else what has to be proposed; else None.

        The job whose `turn` this is comes first, as the request was mostly made for it. Jobs in
        which the pod would have to wait for its turn come last, as another job may have work at
        once."""
        # all is stored before; what is changed here is not asked for again
        with session.no_autoflush:
            pod = session.get_one(PodRow, ask.report.name)
            if pod.state in (PodState.DRAINING, PodState.STOPPED):
                return _exit_message("the pod is no longer needed")
            own = session.get(JobRow, turn) if turn else None
            if own is not None and self._shares.may_take(session, pod, own):
                found = self._find_in(session, own, works.ready(session, own), ask)
                if found is not None:
                    return found
            offer = self._shares.offer(session, pod)
            with_ready = works.with_ready(session)

            def is_crowded(job: JobRow) -> bool:
                return job.uid not in with_ready and self._proposer.turn(job.uid).locked()

            passed_over = [] if own is None else [own.uid]
            for job in sorted((job for job in offer.jobs if job is not own), key=is_crowded):
                ready = works.ready(session, job) if job.uid in with_ready else ()
                found = None if job.uid in offer.full else self._find_in(session, job, ready, ask)
                if isinstance(found, pod_pb2.Lease):
                    self._shares.took(offer, job, passed_over)
                if found is not None:
                    return found
                passed_over.append(job.uid)
            return None

    def _find_in(self, session: Session, job: JobRow, ready: Sequence[WorkRow], ask: Ask) -> Found:
        now, can = self._clock.now(), ask.capabilities
        obstacle = can.obstacle(session.get_one(PodRow, ask.report.name), job)
        if obstacle:
            note_passed_over(session, job, ask.report.name, obstacle, now)
            return None
        ready = [work for work in ready if can.can_do(session, job, work)]
        for work in ready:
            if (
                work.kind != WorkKind.TRAIN
                and (lease := self._grant(session, job, work, ask)) is not None
            ):
                return lease
        if JobState(job.state) not in TRAINING_STATES or job.time_to_target_s is not None:
            return None  # it only waits for what pods do already
        round_ = next((work for work in ready if work.kind == WorkKind.TRAIN), None)
        left = remainder(plan_of(job).budget, leases.usage(session, job, now))
        if plan_of(job).learners > 1:
            return self._find_in_team(session, job, round_, left, ask)
        return self._grant(session, job, round_, ask, left) or self._propose(
            session, job, left, ask
        )

    def _find_in_team(
        self, session: Session, job: JobRow, work: WorkRow | None, left: Remainder, ask: Ask
    ) -> Found:
        """Lead a team while there are fewer teams than the pods suffice for, else follow a lead,
        else lead after all.

        A lead begins at once and alone; followers join it later. Work that another lead has lost
        comes first."""
        pod, now, plan = ask.report, self._clock.now(), plan_of(job)
        can_fuse = ask.capabilities.can_fuse
        if not can_fuse or not pod.address:
            why = (
                "its learner does not support fusion"
                if not can_fuse
                else "its learner reports no address that other learners can reach"
            )
            followers.note_unfit(session, job, pod.name, why, now)
            return None
        leads = [
            lease for lease in leases.held(session, job_uid=job.uid) if lease.kind == WorkKind.TRAIN
        ]
        found: Found = None
        if len(leads) < plan.max_teams:
            found = self._grant(session, job, work, ask, left)
        if found is None and len(leads) < min(
            plan.max_teams, plan.teams(self._shares.expected(session, job))
        ):
            found = self._propose(session, job, left, ask)
        # else the job has shrunk, and one of them will be released
        if found is None and len(leads) <= plan.max_teams:
            found = self._follow(session, job, leads, left, ask)
        if found is None and len(leads) < plan.max_teams:
            found = self._propose(session, job, left, ask)
        return found

    def _propose(
        self, session: Session, job: JobRow, left: Remainder, ask: Ask
    ) -> ToPropose | None:
        """The request to the leaderboard for another cohort."""
        if job.rounds_over or left.is_empty or not self._proposer.may_ask(job):
            return None
        # of now, or from before a crash
        of_before = works.of_kind(session, job, WorkKind.TRAIN, WorkState.PROPOSING)
        if of_before:
            work = of_before[0]
        else:
            plan = plan_of(job)
            places = plan.members or plan.places(plan.teams(self._shares.expected(session, job)))
            work = jobs.add_work(
                session, job, WorkKind.TRAIN, WorkState.PROPOSING, self._clock.now(), places
            )
        used = used_part(plan_of(job).budget, leases.usage(session, job, self._clock.now()))
        return to_propose(job, work, left, used, ask.capabilities.trainable(job))

    def _follow(
        self, session: Session, job: JobRow, leads: Sequence[LeaseRow], left: Remainder, ask: Ask
    ) -> pod_pb2.Lease | None:
        """Lease a place in a team, if the remaining cost pays for it until the end of the lead's
        round."""
        now = self._clock.now()
        place = followers.open_place(session, leads, ask.report.name, plan_of(job).learners, now)
        if place is None:
            return None
        cost_s = 0.0 if left.cost_s is None else followers.time_left_s(place.lead, now)
        if left.cost_s is not None and cost_s > left.cost_s:
            return None
        lease = leases.follow(session, job, place, ask.asker, cost_s, now)
        self._deadlines.begin(lease.fence, job.uid)
        return self._message(session, lease)

    def _grant(
        self,
        session: Session,
        job: JobRow,
        work: WorkRow | None,
        ask: Ask,
        left: Remainder | None = None,
    ) -> pod_pb2.Lease | None:
        """Lease a waiting work, if it may begin now. `left`: the remaining budget, if known."""
        if work is None:
            return None
        change, plan = Change(session, job, work, ask.report.name, self._clock.now()), plan_of(job)
        what = lease_ends.work_of(work.kind).grant(
            change,
            lambda: (
                left or remainder(plan.budget, leases.usage(session, job, change.now)),
                self._split(session, job),
            ),
        )
        if what is None:
            return None
        lease = leases.grant(session, job, work, ask.asker, what, change.now)
        self._deadlines.begin(lease.fence, job.uid)
        if plan.learners > 1 and work.kind == WorkKind.TRAIN:
            touch(session, WORK)  # there is a lead to follow
        return self._message(session, lease)

    def _message(self, session: Session, lease: LeaseRow) -> pod_pb2.Lease:
        change = lease_ends.change_of(session, lease, self._clock.now())
        kind = lease_ends.work_of(lease.kind)
        return lease_message(change, lease, kind, self._tokens, self._deadlines.term_s)

    def _split(self, session: Session, job: JobRow) -> BudgetSplit:
        plan = plan_of(job)
        if not plan.budget.can_be_reserved:
            return BudgetSplit(learners=plan.learners)
        held = leases.held(session, job_uid=job.uid)
        teams = plan.teams(self._shares.expected(session, job))
        without = teams - sum(lease.kind != WorkKind.FOLLOW for lease in held)
        if job.cost_s <= 1.0:
            return BudgetSplit(max(1, without), 0.0, plan.learners)  # a short past says little
        # What one pod costs in a second; while there were fewer pods this is too little.
        pod_s = leases.active_time_s(job, self._clock.now()) * teams * plan.learners
        rate = max(1.0, job.cost_s / pod_s) if pod_s > 0.0 else 1.0
        return BudgetSplit(max(1, without), job.env_steps / job.cost_s * rate, plan.learners, rate)


def _exit_message(reason: str) -> pod_pb2.Lease:
    return pod_pb2.Lease(
        exit=pod_pb2.ExitWork(reason=reason), term=duration_pb2.Duration(seconds=0)
    )

"""Continuous jobs: each makes one ordinary job per generation, and decides about its best policy.

`advance` does one step in one transaction, and returns whether there may be another one. It depends
on stored data only, so an orchestrator that was killed before or after a step continues there: a
generation is neither lost nor made twice."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.common.v1 import evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.errors import PodracerError
from podracer_orchestrator import outbox
from podracer_orchestrator.continuous import contests, promotions
from podracer_orchestrator.continuous.promotions import Generation, Policy
from podracer_orchestrator.jobs import (
    FINAL_STATES,
    JobState,
    NewJob,
    founders,
    jobs,
    known_description,
    newest_best,
)
from podracer_orchestrator.stored_messages import (
    best_of,
    description_of,
    final_policy,
    problem_of,
    retrained_of,
    spec_of,
)
from podracer_orchestrator.tables import ContinuationRow, Decision, JobRow
from podracer_orchestrator.transactions import (
    GENERATION,
    ChangeFeed,
    Clock,
    Transactions,
    job_topic,
    touch,
)
from podracer_platform.messages import (
    search_from_message,
    seconds_from_duration,
    space_from_message,
)
from podracer_platform.rpc import job_name

logger = logging.getLogger(__name__)

_LONGEST_NAME = 63
INTERVAL_S = 2.0
"""How often data sets and the time are checked; the end of a job is noticed at once."""


class GenerationTask:
    """The task that advances continuous jobs, beside the calls."""

    def __init__(self, transactions: Transactions, changes: ChangeFeed, clock: Clock) -> None:
        self._transactions = transactions
        self._changes = changes
        self._clock = clock

    async def run(self) -> None:
        """Advance all jobs whenever one may have ended, and periodically."""
        while True:
            version = self._changes.version(GENERATION)
            await self.advance_all()
            await self._changes.wait(GENERATION, version, INTERVAL_S)

    async def advance_all(self) -> None:
        """Take every possible step; a failure of one job does not block the others."""
        try:
            uids = await self._transactions.read(running)
        except PodracerError as error:
            logger.error("cannot read the continuous jobs, retrying: %s", error)
            return
        for uid in uids:
            try:
                await self._advance(uid)
            except PodracerError as error:
                logger.error("cannot advance the continuous job %s, retrying: %s", uid, error)

    async def _advance(self, uid: str) -> None:
        while await self._transactions.read(
            lambda session: needs_step(session, uid, self._clock.now())
        ):
            if not await self._transactions.write(
                lambda session: advance(session, uid, self._clock.now())
            ):
                return


def running(session: Session) -> Sequence[str]:
    """The uids of the running continuous jobs."""
    query = select(JobRow.uid).where(JobRow.is_continuous, JobRow.state == JobState.RUNNING)
    return session.scalars(query.order_by(JobRow.create_time, JobRow.uid)).all()


def needs_step(session: Session, uid: str, now: datetime) -> bool:
    """Whether `advance` would change anything."""
    job, stand = session.get(JobRow, uid), session.get(ContinuationRow, uid)
    if job is None or stand is None or job.state != JobState.RUNNING:
        return False
    if stand.child_uid is None:
        return _due_data(session, job, stand, now) is not None
    child = session.get(JobRow, stand.child_uid)
    if child is None or JobState(child.state) in FINAL_STATES:
        return True
    return job.description is None and child.description is not None


def advance(session: Session, uid: str, now: datetime) -> bool:
    """Take one step with a continuous job; False if there is nothing to do now."""
    if not needs_step(session, uid, now):
        return False
    job, stand = session.get_one(JobRow, uid), session.get_one(ContinuationRow, uid)
    if stand.child_uid is None:
        _begin_generation(session, job, stand, now)
        return True
    child = session.get(JobRow, stand.child_uid)
    if child is not None and job.description is None and child.description is not None:
        jobs.describe(session, job, description_of(child), now)
    if child is None or JobState(child.state) in FINAL_STATES:
        _end_generation(session, job, stand, child, now)
    touch(session, job_topic(job.uid))
    return True


def _due_data(session: Session, job: JobRow, stand: ContinuationRow, now: datetime) -> str | None:
    """The hash of the data for the next generation; None while it is not due, or cannot be made."""
    spec = spec_of(job)
    rows = founders.named(session, job.project, spec)
    if len(rows) < len(spec.data_sets):
        return None
    watched = (
        [rows[spec.continuous.data_set]]
        if spec.continuous.data_set
        else [rows[name] for name in sorted(rows)]
    )
    hashes = [row.sha256 for row in watched]
    data_sha256 = (
        hashes[0]
        if len(hashes) == 1
        else hashlib.sha256("".join(hashes).encode()).hexdigest()
        if hashes
        else ""
    )
    has_passed = stand.next_time is not None and now >= stand.next_time
    is_due = stand.generation == 0 or data_sha256 != stand.data_sha256 or has_passed
    return data_sha256 if is_due else None


def _begin_generation(session: Session, job: JobRow, stand: ContinuationRow, now: datetime) -> None:
    data_sha256 = _due_data(session, job, stand, now)
    assert data_sha256 is not None, "it is due"
    spec, number = spec_of(job), stand.generation + 1
    own = job_pb2.JobSpec()
    own.CopyFrom(spec)
    own.ClearField("continuous")
    own.display_name = _numbered(spec.display_name, number)
    own.seed = spec.seed + number - 1
    beginnings = _founders(session, job)
    if beginnings:
        del own.founders[:]
        own.founders.extend(beginnings)
    job_id = _numbered(job.job_id, number)
    if jobs.is_taken(session, job.project, job_id):
        job_id = _numbered(job.job_id, number, f"-{job.uid[:6]}")
    new = NewJob(
        job.project, job_id, own, known_description(own), parent_uid=job.uid, generation=number
    )
    child = jobs.create(session, new, now)
    stand.generation, stand.child_uid, stand.data_sha256 = number, child.uid, data_sha256
    if spec.continuous.HasField("interval"):
        stand.next_time = now + timedelta(seconds=seconds_from_duration(spec.continuous.interval))
    job.revision += 1
    name = job_name(child.project, child.job_id)
    given = f", data {data_sha256[:12]}" if data_sha256 else ""
    message = f"generation {number} is {name}{given}, from {len(beginnings)} founders"
    outbox.record(
        session, job, "GENERATION_STARTED", message, now=now, subject=name, data_sha256=data_sha256
    )


def _end_generation(
    session: Session, job: JobRow, stand: ContinuationRow, child: JobRow | None, now: datetime
) -> None:
    """Decide about the generation's best policy; then the next generation may begin."""
    number, stand.child_uid = stand.generation, None
    job.revision += 1
    if child is None:
        generation = Generation(number, "", stand.data_sha256)
        promotions.keep(session, job, Decision.FAILED, generation, "its job was deleted", now)
        return
    name = job_name(child.project, child.job_id)
    generation = Generation(number, name, stand.data_sha256)
    if JobState(child.state) is not JobState.SUCCEEDED:
        problem = problem_of(child)
        reason = f"{name} is {child.state}" + (
            f": {problem.message}" if problem and problem.message else ""
        )
        promotions.keep(session, job, Decision.FAILED, generation, reason, now)
        return
    if child.best is None:
        promotions.keep(
            session, job, Decision.KEPT, generation, f"{name} has brought no candidate", now
        )
        return
    _judge(session, job, child, generation, now)


def _judge(
    session: Session, job: JobRow, child: JobRow, generation: Generation, now: datetime
) -> None:
    final = final_policy(child)
    assert final is not None, "it has a candidate"
    present, contest = promotions.champion(session, job), contests.outcome(session, child)
    # what was trained once more is not judged
    judged = best_of(child) if child.retrained is None else None
    challenger = judged if contest is None else contest.challenger
    champion = None if contest is None else contest.champion
    generation = Generation(
        generation.number, generation.child, generation.data_sha256, champion, challenger
    )
    if present is None:
        is_better, reason = True, "the first candidate"
    elif contest is None and present.prefix == final.checkpoint.prefix:
        is_better, reason = False, "its best policy was promoted by hand already"
    elif contest is None and not contests.can_act(session, child, present.prefix):
        is_better = True
        reason = "the champion cannot act in the environment any more: its spaces are others"
    elif contest is None or contest.champion_prefix != present.prefix:
        is_better, reason = False, "the champion has been changed by hand meanwhile"
    elif champion is None or challenger is None:
        is_better, reason = False, contest.problem
    else:
        is_better, reason = contests.is_won(champion, challenger, spec_of(job).continuous.margin)
    checkpoint_is_there = promotions.is_there(session, job.project, final.checkpoint.prefix)
    if is_better and checkpoint_is_there:
        policy = Policy(final.agent, final.checkpoint.prefix)
        promotions.promote(session, job, policy, now, reason=reason, generation=generation)
    else:
        reason = reason if checkpoint_is_there else "its checkpoint is damaged"
        promotions.keep(session, job, Decision.KEPT, generation, reason, now)


def _founders(session: Session, job: JobRow) -> list[evolution_pb2.Founder]:
    """The champion and the best policy of the newest generation that has one; not one that was
    rolled back, or whose algorithm the job does not search: the generation's leaderboard would
    refuse it.

    For a retrained policy it is the selected candidate: the retrained one has seen the data that
    select, also for the next generation."""
    found, avoided = [], promotions.rolled_back(session, job)
    present, newest = promotions.champion(session, job), newest_best(session, job)
    if present is not None:
        found.append((present.agent, present.prefix))
    if newest is not None and (final := final_policy(newest)) is not None:
        found.append((final.agent, final.checkpoint.prefix))
    selected = _selected(jobs.children(session, job))
    unique = [selected.get(each, each) for each in dict.fromkeys(found) if each[1] not in avoided]
    known = [
        founder
        for each in unique
        if (founder := founders.of_checkpoint(session, *each)) is not None
    ]
    return [founder for founder in known if founder.algorithm in _searched(job)]


def _selected(generations: Iterable[JobRow]) -> dict[tuple[str, str], tuple[str, str]]:
    """The candidates of the jobs' retrained policies, each by agent and checkpoint."""
    pairs = ((retrained_of(child), best_of(child)) for child in generations)
    return {
        (retrained.agent, retrained.checkpoint.prefix): (best.agent, best.checkpoint.prefix)
        for retrained, best in pairs
        if retrained is not None and best is not None
    }


def _searched(job: JobRow) -> set[str]:
    space = (
        space_from_message(description_of(job).action_space)
        if job.description is not None
        else None
    )
    search = search_from_message(spec_of(job).search)
    return {share.algorithm for share in search.shares(space)}


def _numbered(name: str, number: int, ending: str = "") -> str:
    """`NAME-3`, cut to the length of a name."""
    ending = f"-{number}{ending}"
    return f"{name[: _LONGEST_NAME - len(ending)].rstrip('-')}{ending}"

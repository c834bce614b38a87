"""Retention: deletes checkpoints that are no longer needed, and the leftovers of writers that died.

A checkpoint stays while any of these needs it: a place on the leaderboard, an alias, a living
agent's best or newest few, a held lease, waiting work, a challenge, the job's own best and
ensemble, the best few of the job, a fork; and in other jobs an alias that points at it or can be
rolled back to it, a contest, a founder. Others are deleted once they have not been written to for
an hour. Only the orchestrator deletes: it removes a checkpoint from its database before it touches
the objects. Files that the manifest of another checkpoint shares (parts of transitions) stay."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.errors import DataCorrupted, InvalidInput, PodracerError
from podracer_core.storage import (
    FILE_NAME,
    REPLAY_FOLDER,
    CheckpointPlace,
    ObjectStore,
    job_prefix,
    read_manifest,
)
from podracer_orchestrator import outbox
from podracer_orchestrator.artifacts import uploads
from podracer_orchestrator.artifacts.uploads import Uploads
from podracer_orchestrator.board import Delivery, LeaderboardClient
from podracer_orchestrator.config import OrchestratorConfig
from podracer_orchestrator.continuous import promotions
from podracer_orchestrator.jobs import FORKED, founders, jobs
from podracer_orchestrator.leases import leases
from podracer_orchestrator.outcomes import objective
from podracer_orchestrator.stored_messages import (
    best_of,
    ensemble_of,
    order_of,
    proposal_of,
    retrained_of,
)
from podracer_orchestrator.tables import (
    CheckpointRow,
    JobRow,
    MemberRow,
    WorkKind,
    WorkRow,
    WorkState,
)
from podracer_orchestrator.transactions import Clock, Transactions
from podracer_orchestrator.works import checkpoints

logger = logging.getLogger(__name__)

_OPEN = (WorkState.PROPOSING.value, WorkState.READY.value, WorkState.LEASED.value)


@dataclass(slots=True)
class Collected:
    """The deleted checkpoints, or those that would be."""

    prefixes: list[str] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, other: Collected) -> None:
        """Add the checkpoints and bytes of `other`."""
        self.prefixes += other.prefixes
        self.size_bytes += other.size_bytes


@dataclass(slots=True)
class _Stored:
    """The objects of one checkpoint, committed or not."""

    sizes: dict[str, int]  # in bytes, by key
    modified: datetime


@dataclass(frozen=True, slots=True)
class _Pins:
    """The leaderboard's data: the checkpoints that it needs, the living agents, and by score the
    agents with a judged checkpoint."""

    prefixes: frozenset[str] = frozenset()
    living: frozenset[str] = frozenset()
    best: Sequence[str] = ()


class RetentionTask:
    """The task that collects periodically (`run`), or at once (`collect`)."""

    def __init__(
        self,
        transactions: Transactions,
        board: LeaderboardClient,
        delivery: Delivery,
        store: ObjectStore,
        uploads: Uploads,
        clock: Clock,
        config: OrchestratorConfig,
    ) -> None:
        self._transactions = transactions
        self._board = board
        self._delivery = delivery
        self._store = store
        self._uploads = uploads
        self._clock = clock
        self._config = config
        self._age = timedelta(seconds=config.collect_after)
        self._collecting = asyncio.Lock()

    async def run(self) -> None:
        """Collect forever."""
        while True:
            await asyncio.sleep(self._config.collect_every)
            try:
                found = await self.collect()
            except PodracerError as error:
                logger.warning("cannot collect checkpoints, retrying: %s", error)
                continue
            if found.prefixes:
                logger.info(
                    "collected %d checkpoints, %d bytes", len(found.prefixes), found.size_bytes
                )

    async def collect(self, project: str | None = None, *, dry_run: bool = False) -> Collected:
        """Delete unneeded checkpoints of one project or of all; with `dry_run` only list them.

        A job whose leaderboard does not answer now is left for the next time.
        """
        found = Collected()
        async with self._collecting:
            for uid in await self._transactions.read(lambda session: _job_uids(session, project)):
                try:
                    found.add(await self._collect(uid, dry_run))
                except PodracerError as error:
                    logger.warning("cannot collect checkpoints of job %s, retrying: %s", uid, error)
                except Exception:
                    logger.exception("unexpected error while collecting checkpoints of job %s", uid)
            if not dry_run:
                latest = self._clock.now() - self._age
                await uploads.collect_uploads(
                    self._transactions, self._store, self._uploads, latest, project
                )
        return found

    async def _collect(self, uid: str, dry_run: bool) -> Collected:
        place = await self._transactions.read(lambda session: _place(session, uid))
        if place is None:
            return Collected()
        board, prefix = place
        everything = await asyncio.to_thread(self._stored, prefix)
        latest = self._clock.now() - self._age
        stored = {each: found for each, found in everything.items() if found.modified < latest}
        if not stored:
            return Collected()
        held = set(await self._transactions.read(lambda session: leases.fences(session, uid)))
        await self._delivery.flush(board)  # the leaderboard cannot pin agents that it does not know
        pins = await self._ask(uid, board)
        run = self._transactions.read if dry_run else self._transactions.write
        # Also of leases that have ended since: the leaderboard may have got theirs after its
        # answer.
        others = [each for each in stored if CheckpointPlace.parse(each).fence not in held]
        doomed = await run(lambda session: self._doom(session, uid, board, others, pins, dry_run))
        named = await asyncio.to_thread(self._named_by_others, everything, set(doomed))
        going = {each: stored[each].sizes.keys() - named for each in doomed}
        if not dry_run:
            await asyncio.to_thread(self._delete, going.values())
        size_bytes = sum(stored[each].sizes[key] for each, keys in going.items() for key in keys)
        return Collected(sorted(each for each, keys in going.items() if keys), size_bytes)

    def _stored(self, prefix: str) -> dict[str, _Stored]:
        """The checkpoints below a prefix, finished or not, by their prefixes."""
        found: dict[str, _Stored] = {}
        for info in self._store.list(f"{prefix}agents/"):
            place = CheckpointPlace.of_object(info.key)
            if place is not None:
                stored = found.setdefault(place.prefix, _Stored({}, info.modified))
                stored.sizes[info.key] = info.size_bytes
                stored.modified = max(stored.modified, info.modified)
        return found

    def _named_by_others(self, stored: Mapping[str, _Stored], doomed: Collection[str]) -> set[str]:
        """Files of doomed checkpoints that the manifests of others name; all parts of transitions
        of an agent with a manifest that cannot be read."""
        parts: dict[str, set[str]] = defaultdict(set)  # by agent
        for each in doomed:
            keys = {key for key in stored[each].sizes if key.startswith(f"{each}{REPLAY_FOLDER}")}
            if keys:
                parts[CheckpointPlace.parse(each).agent] |= keys
        named = set[str]()
        for each in stored.keys() - doomed:
            agent = CheckpointPlace.parse(each).agent
            if agent in parts and f"{each}{FILE_NAME}" in stored[each].sizes:
                try:
                    named |= {file.key(each) for file in read_manifest(self._store, each).files}
                except (DataCorrupted, InvalidInput) as error:
                    logger.warning("all transitions of %s stay: %s", agent, error)
                    named |= parts[agent]
        return named

    async def _ask(self, uid: str, board: str) -> _Pins:
        needed: set[str] = set()
        living, scores = set[str](), list[tuple[float, str]]()
        job = await self._transactions.read(lambda session: jobs.get_by_uid(session, uid))
        if job.description is None:  # it has no leaderboard yet
            return _Pins()
        for candidate in (await self._board.get(board)).candidates:
            needed.add(candidate.evaluation.checkpoint.prefix)
            # where children of it start
            needed.add(candidate.agent.best_evaluation.checkpoint.prefix)
        for change in await self._board.alias_changes(board):
            needed.add(change.checkpoint.prefix)
        for agent in await self._board.agents(board):
            if agent.HasField("best_evaluation"):
                best = agent.best_evaluation
                scores.append((objective.score(job, best), best.checkpoint.prefix))
            if agent.state == leaderboard_pb2.AGENT_STATE_RETIRED:
                continue
            living.add(agent.name)
            needed |= {
                agent.best_evaluation.checkpoint.prefix,
                agent.latest_evaluation.checkpoint.prefix,
            }
            needed |= _of_spec(agent.spec)
        best_first = [prefix for _, prefix in sorted(scores, reverse=True)]
        return _Pins(frozenset(needed), frozenset(living), best_first[: self._config.keep_best])

    def _doom(
        self,
        session: Session,
        uid: str,
        board: str,
        stored: Collection[str],
        pins: _Pins,
        dry_run: bool,
    ) -> Sequence[str]:
        """The stored checkpoints that are not needed; removes them from the database."""
        job = session.get(JobRow, uid)
        if job is None or outbox.has_news(session, board):
            return []  # deleted meanwhile, or news came for the leaderboard: the next time
        needed = (
            pins.prefixes
            | set(pins.best)
            | _needed(session, job)
            | self._newest(session, uid, pins.living)
        )
        needed |= (
            promotions.pointed_at(session).keys()
            | founders.needed(session).keys()
            | _in_contests(session)
        )
        needed |= checkpoints.in_place_of(session, uid, needed)
        held = set(leases.fences(session, uid))
        doomed = [
            each
            for each in stored
            if each not in needed and CheckpointPlace.parse(each).fence not in held
        ]
        if not dry_run:
            for first in range(0, len(doomed), 500):
                some = doomed[first : first + 500]
                session.execute(
                    update(MemberRow).where(MemberRow.checkpoint.in_(some)).values(checkpoint=None)
                )
                session.execute(delete(CheckpointRow).where(CheckpointRow.prefix.in_(some)))
        return doomed

    def _newest(self, session: Session, uid: str, agents: Collection[str]) -> set[str]:
        """The newest few of each living agent: if one is damaged, the one before it is used."""
        rows = select(CheckpointRow.agent, CheckpointRow.prefix).where(
            CheckpointRow.job_uid == uid, CheckpointRow.refused.is_(False)
        )
        newest: dict[str, list[str]] = defaultdict(list)
        for agent, prefix in session.execute(
            rows.order_by(CheckpointRow.env_steps.desc(), CheckpointRow.fence.desc())
        ):
            if agent in agents and len(newest[agent]) < self._config.keep_last:
                newest[agent].append(prefix)
        return {prefix for prefixes in newest.values() for prefix in prefixes}

    def _delete(self, doomed: Iterable[Collection[str]]) -> None:
        """Delete manifests first: without one a checkpoint does not exist, even if this process
        dies here."""
        for keys in doomed:
            for key in sorted(keys, key=lambda key: not key.endswith(FILE_NAME)):
                self._store.delete(key)


def _job_uids(session: Session, project: str | None) -> Sequence[str]:
    query = select(JobRow.uid).order_by(JobRow.create_time, JobRow.uid)
    return session.scalars(
        query if project is None else query.where(JobRow.project == project)
    ).all()


def _place(session: Session, uid: str) -> tuple[str, str] | None:
    """The name of a job's leaderboard, and the prefix of its objects."""
    job = session.get(JobRow, uid)
    return None if job is None else (outbox.board_of(job), job_prefix(job.project, job.uid))


def _needed(session: Session, job: JobRow) -> set[str]:
    """The checkpoints that the job itself, its open works and its challenges need."""
    ensemble = ensemble_of(job)
    policies = [best_of(job), retrained_of(job), *(ensemble.policies if ensemble else ())]
    policies.append(checkpoints.unjudged_policy(session, job))
    needed = {each.checkpoint.prefix for each in policies if each is not None}
    needed |= {details["checkpoint"] for details in outbox.details(session, job, FORKED)}
    challenged = select(WorkRow.checkpoint).where(
        WorkRow.job_uid == job.uid, WorkRow.checkpoint.is_not(None)
    )
    needed |= {prefix for prefix in session.scalars(challenged) if prefix}
    for work in session.scalars(
        select(WorkRow).where(WorkRow.job_uid == job.uid, WorkRow.state.in_(_OPEN))
    ):
        needed |= {each.checkpoint.prefix for each in order_of(work).policies}
        needed |= {
            prefix for each in proposal_of(work).proposals for prefix in _of_spec(each.agent)
        }
        members = select(MemberRow.checkpoint).where(MemberRow.work_id == work.id)
        needed |= {prefix for prefix in session.scalars(members) if prefix}
    return needed


def _in_contests(session: Session) -> set[str]:
    """The checkpoints in the contests of jobs: the champion is of another job."""
    query = select(WorkRow).where(WorkRow.kind == WorkKind.CONTEST, WorkRow.state.in_(_OPEN))
    orders = [order_of(work) for work in session.scalars(query)]
    return {policy.checkpoint.prefix for order in orders for policy in order.policies}


def _of_spec(spec: agent_pb2.AgentSpec) -> set[str]:
    """The checkpoints that an agent starts from."""
    return {
        spec.resume.prefix,
        *(parent.checkpoint.prefix for parent in spec.initialization.parents),
    }

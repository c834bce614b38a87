"""The learner's main loop: lease, work, complete, lease again."""

from __future__ import annotations

import logging
import math
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import closing

from podracer.orchestrator.v1 import pod_service_pb2, pod_service_pb2_grpc
from podracer_core.errors import (
    DataCorrupted,
    Fenced,
    InvalidInput,
    NotFound,
    PodracerError,
    PreconditionFailed,
    UserCodeFailed,
)
from podracer_core.storage import FolderStore, ObjectStore, job_prefix
from podracer_core.training import processor_seconds
from podracer_learner.config import LearnerConfig
from podracer_learner.evaluators import (
    EvaluationTooLong,
    evaluate_for,
    inspect_environment_for,
)
from podracer_learner.fusion import FollowerRegistry, LeadOptions, follow, lead_fusion
from podracer_learner.lease import (
    DRAINING,
    ROUND_OVER,
    FencedStore,
    HeldLease,
    Interrupted,
    LeaseControl,
    LeaseGuard,
    Renewal,
    lease_work,
)
from podracer_learner.peers import Peers
from podracer_learner.round import (
    Commands,
    LearnerStatus,
    ReplayCache,
    RoundSetup,
    TrainRun,
    problem_message,
    set_up_round,
    work_span,
)
from podracer_learner.user_files import UserFiles
from podracer_platform.messages import seconds_from_duration
from podracer_platform.rpc import Backoff, parse
from podracer_platform.storage import Spool, SpoolFolder
from podracer_platform.telemetry import current, metrics, span

logger = logging.getLogger(__name__)

_AWAY_S = (0.1, 2.0)

# What no other pod could do better.
_FINAL = (UserCodeFailed, InvalidInput, NotFound, DataCorrupted, EvaluationTooLong)


class LeaseLoop:
    """Leases work from the orchestrator and does it, in the main thread."""

    def __init__(
        self,
        config: LearnerConfig,
        peers: Peers,
        store: ObjectStore,
        status: LearnerStatus,
        commands: Commands,
        followers: FollowerRegistry,
        request: pod_service_pb2.LeaseWorkRequest,
    ) -> None:
        """`request`: the common part of all LeaseWork calls. Raises InvalidInput if no spool can be
        made."""
        self._config, self._peers, self._store = config, peers, store
        self._status = status
        self._commands = commands
        self._followers = followers
        self._request = request
        self._replays = ReplayCache()
        self._cache = config.file_cache()
        self._spool: SpoolFolder | None = None
        if not isinstance(store, FolderStore):
            only_ours = config.spool_dir is None  # the default is in the shared temporary folder
            self._spool = SpoolFolder(config.spool_folder(), config.spool_size, only_ours=only_ours)
        self._stub = pod_service_pb2_grpc.PodServiceStub(peers.orchestrator)

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set or the orchestrator says EXIT. Raises if it refuses this pod for
        good."""
        away = Backoff(*_AWAY_S)
        try:
            while (lease := lease_work(self._stub, self._request, stop)) is not None:
                received_at, used_before = time.monotonic(), processor_seconds()
                if lease.WhichOneof("work") == "exit":
                    logger.info("the orchestrator ends this pod: %s", lease.exit.reason)
                    return
                try:
                    own = job_prefix(parse("lease", lease.name, "lease").project, lease.job_uid)
                except InvalidInput as error:
                    logger.warning("a lease that cannot be held, asking again: %s", error.message)
                    stop.wait(next(away))
                    continue
                away.reset()
                self._status.working(lease)
                with work_span(lease):
                    self._work(lease, own, received_at, used_before, stop)
                self._status.idle()
            self._status.draining()
        finally:
            if self._spool is not None:
                self._spool.close()

    def _work(
        self,
        lease: pod_service_pb2.Lease,
        own: str,
        received_at: float,
        used_before: float,
        stop: threading.Event,
    ) -> None:
        """`own`: the prefix of the job's objects."""
        logger.info(
            "leased %s", lease.name, extra={"fence": lease.fence, "work": lease.WhichOneof("work")}
        )
        self._peers.shown.lease = lease.name
        guard = LeaseGuard(lease.name, lease.fence)
        control = LeaseControl(self._stub, lease, guard)
        renewal = Renewal(control, guard, seconds_from_duration(lease.term))

        def check() -> None:
            guard.check()
            if stop.is_set() or renewal.calls_back:
                raise Interrupted("told to stop")

        under = self._store.under(control.store_access, own)
        store: ObjectStore = FencedStore(under, guard, check, self._config.store_patience)
        if self._spool is not None:  # unless the store is a folder
            store = Spool(store, self._spool)
        held = HeldLease(lease, received_at, used_before, guard, control, renewal, store)
        try:
            renewal.start()
            self._do(held, check, stop)
            self._count(lease, "done")
        except Fenced as error:
            logger.warning("abandoned: %s", error.message)
            self._count(lease, "lost")
        except Interrupted:
            control.release(DRAINING)
            self._count(lease, "handed_back")
        except PodracerError as error:
            self._give_up(held, error)
            self._count(lease, "failed")
        except Exception as error:
            logger.exception("unexpected error in %s", lease.name)
            detail = "".join(traceback.format_exception(error))
            control.release(problem_message(PodracerError(f"unexpected error: {error!r}"), detail))
            self._count(lease, "failed")
        finally:
            self._peers.shown.lease = ""
            store.close()
            renewal.stop()
            if renewal.action == pod_service_pb2.LEASE_ACTION_DRAIN:
                stop.set()

    @staticmethod
    def _count(lease: pod_service_pb2.Lease, result: str) -> None:
        """Note in the metrics and the span of the work how it ended."""
        metrics.WORKS.add(kind=lease.WhichOneof("work") or "", result=result)
        current().set(result=result)

    def _do(self, held: HeldLease, check: Callable[[], None], stop: threading.Event) -> None:
        lease = held.lease
        files = UserFiles(held.store, self._cache, check)
        match lease.WhichOneof("work"):
            case "inspect":
                found = inspect_environment_for(lease.inspect, self._config, self._peers, files)
                result = pod_service_pb2.InspectResult(
                    description=found.description, warnings=found.warnings
                )
                held.control.complete(pod_service_pb2.CompleteWorkRequest(inspect=result))
            case "train":
                if not self._train(held, files, stop):
                    raise Interrupted("told to stop")
            case "follow":
                self._follow(held, files, check, stop)
                held.control.release(ROUND_OVER)
            case "evaluate":
                evaluated = evaluate_for(held, self._config, self._peers, files)
                held.control.complete(pod_service_pb2.CompleteWorkRequest(evaluate=evaluated))
            case work:
                raise PreconditionFailed(
                    f"this learner does not support the work {work or 'unset'}",
                    reason="UNSUPPORTED_WORK",
                )

    def _train(self, held: HeldLease, files: UserFiles, stop: threading.Event) -> bool:
        """Train the work; returns whether it was completed."""
        work = held.lease.train

        def in_a_hurry() -> bool:
            finish = held.renewal.action == pod_service_pb2.LEASE_ACTION_FINISH
            return stop.is_set() or held.renewal.calls_back or finish

        setup = self._set_up(work, files)
        try:
            limit_s = setup.plan.duration_s
            ends_at = math.inf if limit_s is None else held.received_at + limit_s
            options = LeadOptions(
                held.lease.fence, work.follower_count, held.guard.check, in_a_hurry, ends_at
            )
            with lead_fusion(work, options, setup.algorithm, self._followers.serving) as fusion:
                run = TrainRun(
                    held, setup, stop, self._status, self._commands, self._config, fusion
                )
                completed = run.run()
            self._replays.keep(setup.algorithm, list(work.cohort.members), run.outcomes)
        finally:
            setup.close()
        return completed

    def _follow(
        self, held: HeldLease, files: UserFiles, check: Callable[[], None], stop: threading.Event
    ) -> None:
        work = held.lease.follow
        setup = self._set_up(work.train, files, work.rank)
        with closing(setup), self._peers.learner(work.lead_address) as channel:
            try:
                follow(held, setup, channel, self._status, check, self._config.peer_patience)
            finally:
                # keep the replay for a later round with these agents, even if the lead was lost
                if not stop.is_set():
                    self._replays.keep_followed(setup.algorithm, list(work.train.cohort.members))

    def _set_up(
        self, work: pod_service_pb2.TrainWork, files: UserFiles, rank: int = 0
    ) -> RoundSetup:
        # not the current one: what workers and evaluators do later is not part of it
        preparing = span("set up")
        try:
            return set_up_round(work, self._config, self._peers, files, self._replays, rank)
        finally:
            preparing.end()

    def _give_up(self, held: HeldLease, error: PodracerError) -> None:
        """Fail the work if no pod could do it, else hand it back. A follower always hands back: the
        lead decides."""
        logger.warning("%s: %s", held.lease.name, error.message, extra={"reason": error.reason})
        problem = problem_message(error)
        if not isinstance(error, _FINAL) or held.lease.WhichOneof("work") == "follow":
            held.control.release(problem)
            return
        try:
            held.control.complete(pod_service_pb2.CompleteWorkRequest(problem=problem))
        except PodracerError as second:
            logger.warning("cannot complete %s: %s", held.lease.name, second.message)

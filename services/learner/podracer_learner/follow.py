"""One FOLLOW lease: the same round as the lead's, but for its end, its evaluations and its checkpoints."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import grpc

from podracer.learner.v1 import learner_service_pb2_grpc
from podracer_core.telemetry.spans import current
from podracer_core.training.epochs import EpochFusion
from podracer_core.training.session import TrainingSession
from podracer_learner.fusion_follower import FollowTerms, FusionFollower, RoundOver
from podracer_learner.leading import fusion_deadline_s
from podracer_learner.lease import HeldLease
from podracer_learner.observation import RoundMeter
from podracer_learner.round_setup import RoundSetup
from podracer_learner.status import LearnerStatus

__all__ = ["follow"]

logger = logging.getLogger(__name__)

_REPORT_INTERVAL_S = 0.3


def follow(
    held: HeldLease,
    setup: RoundSetup,
    channel: grpc.Channel,
    status: LearnerStatus,
    check: Callable[[], None],
    patience_s: float,
) -> None:
    """Train until the lead ends its round. `channel` leads to it; `check` is called between updates and while waiting.

    patience_s: how long it is waited for until it leads. Raises what `FusionFollower` and `check` raise.
    """
    work = held.lease.follow
    # A lead that is lost is looked for as long as it would wait for its followers.
    terms = FollowTerms(work.rank, work.lead_fence, patience_s, fusion_deadline_s(work.train.fusion), check)
    follower = FusionFollower(learner_service_pb2_grpc.LearnerServiceStub(channel), terms)
    algorithm = setup.algorithm
    fusion = EpochFusion(algorithm, algorithm.share(work.rank), follower, work.rank, work.train.fusion.interval_updates)
    session = TrainingSession(algorithm, setup.source, None, setup.plan, began_at=held.received_at, fusion=fusion)
    meter, reported_at = RoundMeter(session, algorithm, setup.source), 0.0
    try:
        fusion.begin(follower.join())
        logger.info("follows %s as rank %d from fusion %d on", work.lead_address, work.rank, fusion.epoch)
        while True:
            check()
            follower.poll()
            session.step()
            if time.monotonic() - reported_at >= _REPORT_INTERVAL_S:
                reported_at = time.monotonic()
                progress = session.progress()
                meter.count(progress)
                status.training(held.lease, progress, sum(progress.env_steps) / progress.elapsed_s, setup)
    except RoundOver as over:
        logger.info("the lead says: %s", over.message)
    finally:
        current().set(rank=work.rank, **session.phases.attributes)
        follower.close()

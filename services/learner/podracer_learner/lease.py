"""A lease that is held: its grant, and what keeps it and what it allows."""

from __future__ import annotations

from dataclasses import dataclass

from podracer.common.v1 import cohort_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.errors import PodracerError
from podracer_core.storage.object_store import ObjectStore
from podracer_learner.control import LeaseControl
from podracer_learner.lease_guard import LeaseGuard
from podracer_learner.renewal import Renewal

__all__ = ["DRAINING", "ROUND_OVER", "HeldLease", "Interrupted"]

DRAINING = cohort_pb2.Problem(reason="DRAINING", message="the pod was told to stop, or to do other work")

ROUND_OVER = cohort_pb2.Problem(reason="ROUND_OVER", message="the lead has ended the round")


class Interrupted(PodracerError):
    """The learner was told to stop while it waited."""

    reason = "DRAINING"


@dataclass(frozen=True, slots=True)
class HeldLease:
    """`store` is the object store, written to only while the lease is ours. `received_at`, on the monotonic clock;
    `used_before`: this process's processor seconds then."""

    lease: pod_service_pb2.Lease
    received_at: float
    used_before: float
    guard: LeaseGuard
    control: LeaseControl
    renewal: Renewal
    store: ObjectStore

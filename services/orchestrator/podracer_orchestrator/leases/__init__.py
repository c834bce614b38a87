"""Leases: rows, followers, deadlines in memory, and messages for pods."""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_orchestrator.leases import followers, lease_messages, leases
    from podracer_orchestrator.leases.leases import LeaseDeadlines, LiveReport
    from podracer_orchestrator.leases.followers import ROUND_OVER
    from podracer_orchestrator.leases.lease_messages import FollowWork, lease_message, train_work
    from podracer_orchestrator.leases.leases import Holder, PodLease
else:
    __all__, __getattr__ = exports(__name__)

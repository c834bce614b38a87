"""A lease of work.

control      the calls under it
held_lease   what keeps it, in a thread of its own
guard        what it protects: no write without it
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_learner.lease.control import CommitCall, LeaseControl, lease_work, work_request
    from podracer_learner.lease.guard import FencedStore, LeaseGuard
    from podracer_learner.lease.held_lease import (
        DRAINING, ROUND_OVER, HeldLease, Interrupted, Renewal,
    )
else:
    __all__, __getattr__ = exports(__name__)

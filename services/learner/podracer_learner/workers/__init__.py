"""Rollouts from workers.

source      rollouts joined from the workers' parts
crew        which worker has which environments; late and lost workers
partition   how environments are shared, and how long a rollout waits
link        one worker, the weights for it, and the stream to it
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_learner.workers import crew, link, partition
    from podracer_learner.workers.crew import WorkerPlan
    from podracer_learner.workers.link import (
        Arrival, LinkOptions, LinkState, Opened, Weights, WorkerLink,
    )
    from podracer_learner.workers.partition import (
        Share, UsualDuration, consecutive, has_quorum, is_worth_moving, remaining_wait_s, shares,
    )
    from podracer_learner.workers.source import RemoteSource, absent_rows, join_rollouts, moved_to
else:
    __all__, __getattr__ = exports(__name__)

"""Rollouts from workers.

source, rollouts                rollouts joined from the workers' parts
crew, partition                    which worker has which environments; late and lost workers
link, discovery                 one worker and the stream to it; finding workers
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_learner.workers import crew, link, partition
    from podracer_learner.workers.crew import WorkerPlan
    from podracer_learner.workers.discovery import WorkerDirectory, resolve_host
    from podracer_learner.workers.link import (
        Arrival, LinkOptions, LinkState, Opened, Weights, WorkerLink,
    )
    from podracer_learner.workers.partition import (
        Share, UsualDuration, consecutive, has_quorum, is_worth_moving, remaining_wait_s, shares,
    )
    from podracer_learner.workers.rollouts import absent_rows, join_rollouts, moved_to
    from podracer_learner.workers.source import RemoteSource
else:
    __all__, __getattr__ = exports(__name__)

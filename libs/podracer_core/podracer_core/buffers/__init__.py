"""Storage of experience.

rollout        T steps of a cohort, for on-policy updates and on the wire
replay         the last transitions of every member
trajectories   episodes and segments in their order
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.buffers import replay
    from podracer_core.buffers.replay import (
        PriorityTree, Replay, Transitions, from_parts, require_replay, to_parts,
    )
    from podracer_core.buffers.rollout import EpisodeStatistics, Rollout, allocate_rollout
    from podracer_core.buffers.trajectories import Pieces, Trajectories
else:
    __all__, __getattr__ = exports(__name__)

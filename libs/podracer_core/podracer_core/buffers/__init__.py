"""Storage of experience.

rollout        T steps of a cohort, for on-policy updates and on the wire
replay         the last transitions of every member; replay_parts: cut for checkpoints; priorities:
               drawn by these
trajectories   episodes and segments in their order
memory         whether a device has room
"""

from podracer_core.buffers.replay import Replay, Transitions
from podracer_core.buffers.rollout import EpisodeStatistics, Rollout, allocate_rollout

__all__ = ["EpisodeStatistics", "Replay", "Rollout", "Transitions", "allocate_rollout"]

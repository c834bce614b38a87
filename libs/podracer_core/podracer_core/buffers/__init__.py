"""Storage of experience.

rollout        T steps of a cohort, for on-policy updates and on the wire
replay         the last transitions of every member; replay_parts: cut for checkpoints; priorities:
               drawn by these
trajectories   episodes and segments in their order
memory         whether a device has room
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.buffers import memory, replay
    from podracer_core.buffers.memory import free_bytes, require_memory, total_bytes
    from podracer_core.buffers.priorities import PriorityTree
    from podracer_core.buffers.replay import Replay, Transitions, require_replay
    from podracer_core.buffers.replay_parts import from_parts, to_parts
    from podracer_core.buffers.rollout import EpisodeStatistics, Rollout, allocate_rollout
    from podracer_core.buffers.trajectories import Pieces, Trajectories
else:
    __all__, __getattr__ = exports(__name__)

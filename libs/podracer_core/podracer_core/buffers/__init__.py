"""Where experience lies: rollouts, and the replay buffers of the off-policy algorithms."""

from podracer_core.buffers.replay import Replay, Transitions
from podracer_core.buffers.rollout import EpisodeStatistics, Rollout, allocate_rollout

__all__ = ["EpisodeStatistics", "Replay", "Rollout", "Transitions", "allocate_rollout"]

"""Where experience lies: rollouts now, replay buffers with the off-policy algorithms."""

from podracer_core.buffers.rollout import EpisodeStatistics, Rollout, allocate_rollout

__all__ = ["EpisodeStatistics", "Rollout", "allocate_rollout"]

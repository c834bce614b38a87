"""What an environment itself has to say of an episode, where all episodes of a greedy policy are alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["EpisodeStatistic"]


@dataclass(frozen=True, slots=True)
class EpisodeStatistic:
    """How good the episode was, and how certain that is.

    value         in place of the mean return
    lower_bound   of its two-sided 95 % interval
    upper_bound   of it
    others        further statistics by name
    """

    value: float
    lower_bound: float
    upper_bound: float
    others: Mapping[str, float] = field(default_factory=dict)

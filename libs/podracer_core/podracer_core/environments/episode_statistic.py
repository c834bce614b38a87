"""What an environment itself says of an episode, where all episodes are alike and the mean of many says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["EpisodeStatistic"]


@dataclass(frozen=True, slots=True)
class EpisodeStatistic:
    """`value` is what policies are ranked by, `lower_bound` to `upper_bound` its 95 % interval; `statistics` are
    further ones by name. All are finite."""

    value: float
    lower_bound: float
    upper_bound: float
    statistics: Mapping[str, float] = field(default_factory=dict)

"""Settings of the leaderboard."""

from __future__ import annotations

from dataclasses import dataclass

from podracer_core.service.process import ServiceSettings


@dataclass(frozen=True, kw_only=True)
class LeaderboardConfig(ServiceSettings):
    """`database` is a URL: `sqlite:////absolute/path` (the folder is made) or `postgresql://…`."""

    database: str

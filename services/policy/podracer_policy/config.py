"""Settings of a policy server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from podracer_core.config import Seconds
from podracer_core.service.process import ServiceSettings


@dataclass(frozen=True)
class PolicyConfig(ServiceSettings):
    """
    policies         what to serve from the start, each NAME=SOURCE: a checkpoint's folder, or projects/p/jobs/j@alias,
                     which is followed. Folders of one name act together, the best first. Empty: LoadPolicy brings them
    rule             how those act together, mean or vote; empty: by action space
    orchestrator     where checkpoints of a followed alias come from
    leaderboard      whose aliases are followed
    client_token     file with the token to show to these two; unset: the file `client` in the folder of tokens
    follow_interval  how often to look where an alias points
    """

    policies: tuple[str, ...] = ()
    rule: str = ""
    orchestrator: str = ""
    leaderboard: str = ""
    client_token: Path | None = None
    follow_interval: Seconds = 5.0

"""The orchestrator's settings, from PODRACER_<NAME> environment variables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from podracer_core.config import Seconds
from podracer_core.errors import FieldViolation, InvalidInput

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
PoolName = Literal["local", "static"]


@dataclass(frozen=True)
class OrchestratorSettings:
    """What the orchestrator is told when it starts.

    listen          where to listen: `127.0.0.1:7700`, `unix:///absolute/path`
    tokens          folder with the token files `client`, `pod`, `control`
    database        `sqlite:////absolute/path`
    store           the object store: `file:///absolute/path`, `s3://bucket/prefix`
    leaderboard     address of the leaderboard
    lease_term      how long a lease lives without renewal
    pool            who makes pods: `local` starts processes here, `static` waits for those that come
    state_dir       logs of the local pool's pods go below it
    run_dir         short private folder for the local pool's unix sockets
    max_pods        pods of the local pool at most
    allow_insecure  whether plaintext may leave this machine
    """

    listen: str
    tokens: Path
    database: str
    store: str
    leaderboard: str
    lease_term: Seconds = 10.0
    pool: PoolName = "static"
    state_dir: Path | None = None
    run_dir: Path | None = None
    max_pods: int = 64
    allow_insecure: bool = False
    log_level: LogLevel = "INFO"
    log_json: bool = False

    def __post_init__(self) -> None:
        """Raise InvalidInput where settings do not go together."""
        violations = []
        if not 0.5 <= self.lease_term <= 3600.0:
            violations.append(FieldViolation("PODRACER_LEASE_TERM", f"is {self.lease_term:g} s, expected 0.5 s to 1 h"))
        if self.max_pods < 1:
            violations.append(FieldViolation("PODRACER_MAX_PODS", f"is {self.max_pods}, expected 1 or more"))
        if self.pool == "local":
            missing = [name for name in ("state_dir", "run_dir") if getattr(self, name) is None]
            violations += [FieldViolation(f"PODRACER_{name.upper()}", "the local pool needs it") for name in missing]
        if violations:
            raise InvalidInput("; ".join(map(str, violations)), violations=violations, reason="INVALID_SETTING")

"""Settings of a worker."""

from __future__ import annotations

from dataclasses import dataclass

from podracer_core.attachments.settings import PodSettings

__all__ = ["WorkerConfig"]


@dataclass(frozen=True)
class WorkerConfig(PodSettings):
    """`max_sessions` learners at a time."""

    max_sessions: int = 1

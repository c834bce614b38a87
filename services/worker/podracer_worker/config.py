"""Settings of a worker."""

from __future__ import annotations

from dataclasses import dataclass

from podracer_core.attachments.settings import PodSettings


@dataclass(frozen=True)
class WorkerConfig(PodSettings):
    """
    max_sessions     learners at a time
    device           to collect on: cpu, cuda, cuda:0, or auto: a GPU where there is one and the environment runs on it
    """

    max_sessions: int = 1
    device: str = "auto"

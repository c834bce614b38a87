"""Settings of an evaluator."""

from __future__ import annotations

from dataclasses import dataclass

from podracer_core.attachments.settings import PodSettings


@dataclass(frozen=True)
class EvaluatorConfig(PodSettings):
    """
    max_sessions    learners at a time
    store           URL of the object store, for checkpoints that are named by reference; unset: none
    allow_folders   read checkpoints from any folder of this machine that a caller names: only for a private evaluator
                    of this machine's own user
    """

    max_sessions: int = 1
    store: str = ""
    allow_folders: bool = False

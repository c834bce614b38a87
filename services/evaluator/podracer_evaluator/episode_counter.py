"""Counts episodes from several threads."""

from __future__ import annotations

import threading

from podracer.common.v1 import agent_pb2
from podracer_core.telemetry.metrics import EPISODES


class EpisodeCounter:
    """Episodes since the start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.total = 0

    def add(self, episodes: int, purpose: str) -> None:
        """`purpose`: as `purpose_name` gives it."""
        with self._lock:
            self.total += episodes
        EPISODES.add(episodes, purpose=purpose)


def purpose_name(purpose: agent_pb2.EvaluationPurpose.ValueType) -> str:
    """`progress`, `candidate`, …; `requested` for one that is not set."""
    if purpose not in agent_pb2.EvaluationPurpose.values()[1:]:
        return "requested"
    return agent_pb2.EvaluationPurpose.Name(purpose).removeprefix("EVALUATION_PURPOSE_").lower()

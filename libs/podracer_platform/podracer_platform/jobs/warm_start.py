"""The agents of other jobs that the first agents of a job start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from podracer.common.v1 import agent_pb2, evolution_pb2
from podracer_core.catalogue.ranges import HyperparameterValue
from podracer_core.errors import InvalidInput
from podracer_core.sections.checks import Checks
from podracer_core.sections.search import Search
from podracer_platform.messages.catalogue import (
    hyperparameter_to_message,
    hyperparameters_from_message,
)

MAX_FOUNDERS = 64


@dataclass(frozen=True)
class WarmStart:
    """What the first agents start from: the best `candidates` of another job's leaderboard, or the
    `checkpoint` in a folder."""

    job: str = ""
    candidates: int = 1
    checkpoint: Path | None = None


@dataclass(frozen=True)
class Founder:
    """An agent of another job that a new one starts from: its checkpoint and its specification.

    Of an uploaded checkpoint, `agent` is the artifact's name, and `prefix` and `manifest_sha256`
    are the archive's."""

    agent: str
    prefix: str
    manifest_sha256: str
    algorithm: str
    hyperparameters: Mapping[str, HyperparameterValue] = field(default_factory=dict)

    @classmethod
    def from_message(cls, message: evolution_pb2.Founder) -> Founder:
        """Raises InvalidInput for a hyperparameter without a value."""
        checkpoint = message.checkpoint
        values = hyperparameters_from_message(message.hyperparameters)
        return cls(
            message.agent, checkpoint.prefix, checkpoint.manifest_sha256, message.algorithm, values
        )

    def to_message(self) -> evolution_pb2.Founder:
        """The inverse of `from_message`."""
        return evolution_pb2.Founder(
            agent=self.agent,
            checkpoint=agent_pb2.CheckpointReference(
                prefix=self.prefix, manifest_sha256=self.manifest_sha256
            ),
            algorithm=self.algorithm,
            hyperparameters={
                key: hyperparameter_to_message(value) for key, value in self.hyperparameters.items()
            },
        )


Beginnings = WarmStart | tuple[Founder, ...]
"""The starts of the first agents: as requested, or as looked up on the other job's leaderboard."""


def founders_to_messages(warm_start: Beginnings) -> list[evolution_pb2.Founder]:
    """The founders as messages. Raises InvalidInput for a warm start that has not been looked
    up."""
    if isinstance(warm_start, WarmStart):
        raise InvalidInput(
            f"warm_start: {warm_start.job or warm_start.checkpoint} has to be looked up first"
        )
    return [founder.to_message() for founder in warm_start]


def check_warm_start(check: Checks, warm_start: Beginnings, search: Search) -> None:
    """Check counts, and that the job searches the founders' algorithms."""
    if isinstance(warm_start, WarmStart):
        is_one = bool(warm_start.job) != (warm_start.checkpoint is not None)
        check.that(
            is_one,
            "warm_start",
            "expected either a job, by its name, or a checkpoint, by its folder",
        )
        check.between(warm_start.candidates, 1, MAX_FOUNDERS, "warm_start.candidates")
        return
    check.that(len(warm_start) <= MAX_FOUNDERS, "founders", f"expected at most {MAX_FOUNDERS}")
    searched = {share.algorithm for share in search.algorithms}
    for founder in warm_start:
        message = (
            f"{founder.agent} is an agent of {founder.algorithm}, which the job does not search"
        )
        check.that(not searched or founder.algorithm in searched, "founders", message)

"""The candidates of another job's leaderboard that a new job starts from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer_client.names import refused
from podracer_core.catalogue.messages import hyperparameters_from_message
from podracer_core.errors import InvalidInput, NotFound
from podracer_core.jobs.spec import JobSpec
from podracer_core.jobs.warm_start import Founder, WarmStart

if TYPE_CHECKING:
    from podracer_client.jobs.client import Client

__all__ = ["look_up_founders"]


def look_up_founders(client: Client, spec: JobSpec) -> JobSpec:
    """`spec` with the best candidates of the job in its warm start: an id, or the name in a file if only one has it.

    Raises InvalidInput if the job does not exist, or has no candidate.
    """
    wanted = spec.warm_start
    if not isinstance(wanted, WarmStart):
        return spec
    try:
        board = client.job(wanted.job).leaderboard()
    except (NotFound, InvalidInput) as error:
        raise refused("warm_start.job", error.message) from error
    if not board.candidates:
        raise refused("warm_start.job", f"the job {wanted.job} has no candidate on its leaderboard")
    founders = tuple(map(_founder, board.candidates[: wanted.candidates]))
    return replace(spec, warm_start=founders)


def _founder(candidate: leaderboard_service_pb2.Candidate) -> Founder:
    agent, checkpoint = candidate.agent, candidate.evaluation.checkpoint
    return Founder(
        agent.name,
        checkpoint.prefix,
        checkpoint.manifest_sha256,
        agent.spec.algorithm,
        hyperparameters_from_message(agent.spec.hyperparameters),
    )

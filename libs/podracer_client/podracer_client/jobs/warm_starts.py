"""The candidates of another job's leaderboard that a new job starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer_client.names import leaderboard_name, refused
from podracer_core.catalogue.messages import hyperparameters_from_message
from podracer_core.errors import NotFound
from podracer_core.jobs.spec import JobSpec
from podracer_core.jobs.warm_start import Founder, WarmStart

__all__ = ["look_up_founders"]


def look_up_founders(read: Callable[[str], leaderboard_service_pb2.Leaderboard], spec: JobSpec) -> JobSpec:
    """`spec` with the best candidates of the job named in its warm start; `read` returns a leaderboard by its name.

    Raises InvalidInput if the job does not exist, or has no candidate.
    """
    wanted = spec.warm_start
    if not isinstance(wanted, WarmStart):
        return spec
    try:
        board = read(leaderboard_name(wanted.job))
    except NotFound as error:
        raise refused("warm_start.job", f"there is no leaderboard of a job {wanted.job}") from error
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

"""The candidates of another job become founders, or a clear refusal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_client.jobs.warm_starts import look_up_founders
from podracer_core.errors import InvalidInput, NotFound
from podracer_core.jobs.job_file import parse_job
from podracer_core.jobs.spec import JobSpec
from podracer_core.jobs.warm_start import WarmStart

SPEC = parse_job(
    "name: x\nenvironment: CartPole-v1\nobjective: {max_env_steps: 1000}\nwarm_start: {job: former, candidates: 2}"
)


def board(count: int) -> leaderboard_pb2.Leaderboard:
    found = leaderboard_pb2.Leaderboard()
    for number in range(1, count + 1):
        candidate = found.candidates.add(rank=number)
        candidate.agent.name = f"projects/default/jobs/former/agents/a{number}"
        candidate.agent.spec.algorithm = "ppo"
        candidate.agent.spec.hyperparameters["gamma"].number = 0.9
        candidate.evaluation.checkpoint.prefix = f"projects/default/jobs/u/agents/a{number}/checkpoints/1-1/"
        candidate.evaluation.checkpoint.manifest_sha256 = "0" * 64
    return found


class Jobs:
    """A client that knows one job, `former`, with a leaderboard of some candidates."""

    def __init__(self, candidates: int) -> None:
        self._candidates = candidates

    def job(self, name: str) -> Jobs:
        if name != "former":
            raise NotFound(f"there is no job {name}; did you mean former?")
        return self

    def leaderboard(self) -> leaderboard_pb2.Leaderboard:
        return board(self._candidates)


def look_up(spec: JobSpec, candidates: int = 3) -> JobSpec:
    return look_up_founders(cast("Any", Jobs(candidates)), spec)


def test_the_best_candidates_become_founders() -> None:
    message = look_up(SPEC).to_message()
    assert [founder.agent[-2:] for founder in message.founders] == ["a1", "a2"]
    assert message.founders[0].checkpoint.prefix == "projects/default/jobs/u/agents/a1/checkpoints/1-1/"
    assert message.founders[0].hyperparameters["gamma"].number == 0.9


def test_a_job_without_a_warm_start_asks_for_no_job() -> None:
    plain = replace(SPEC, warm_start=())
    assert look_up_founders(cast("Any", None), plain) is plain


def test_nothing_to_start_from_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"warm_start.job: the job former has no candidate"):
        look_up(SPEC, candidates=0)
    with pytest.raises(InvalidInput, match=r"warm_start.job: there is no job formr; did you mean former\?"):
        look_up(replace(SPEC, warm_start=WarmStart("formr")))

"""The candidates of another job become founders, or a clear refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_client.jobs.warm_starts import look_up_founders
from podracer_core.errors import InvalidInput, NotFound
from podracer_core.jobs.job_file import parse_job

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


def test_the_best_candidates_become_founders() -> None:
    asked: list[str] = []

    def read(name: str) -> leaderboard_pb2.Leaderboard:
        asked.append(name)
        return board(3)

    message = look_up_founders(read, SPEC).to_message()
    assert asked == ["projects/default/leaderboards/former"]
    assert [founder.agent[-2:] for founder in message.founders] == ["a1", "a2"]
    assert message.founders[0].checkpoint.prefix == "projects/default/jobs/u/agents/a1/checkpoints/1-1/"
    assert message.founders[0].hyperparameters["gamma"].number == 0.9


def test_a_job_without_a_warm_start_asks_no_leaderboard() -> None:
    plain = replace(SPEC, warm_start=())
    assert look_up_founders(lambda name: pytest.fail(f"{name} was asked for"), plain) is plain


def test_nothing_to_start_from_is_refused() -> None:
    def gone(name: str) -> leaderboard_pb2.Leaderboard:
        raise NotFound(f"there is no leaderboard {name}")

    with pytest.raises(InvalidInput, match=r"warm_start.job: the job former has no candidate"):
        look_up_founders(lambda name: board(0), SPEC)
    with pytest.raises(InvalidInput, match=r"warm_start.job: there is no leaderboard of a job former"):
        look_up_founders(gone, SPEC)

"""The leaderboard and the summary as a terminal shows them."""

from __future__ import annotations

import json
import math

import pytest
from google.protobuf.duration_pb2 import Duration

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_client.display import (
    JobSummary,
    candidate_json,
    differing_names,
    job_json,
    leaderboard_text,
    telling_names,
)

NAME = "projects/default/jobs/x"


def value(number: float) -> agent_pb2.HyperparameterValue:
    return agent_pb2.HyperparameterValue(number=number)


@pytest.fixture
def board() -> leaderboard_pb2.Leaderboard:
    def candidate(rank: int, name: str, rate: float, *parents: str) -> leaderboard_pb2.Candidate:
        spec = agent_pb2.AgentSpec(
            algorithm="ppo",
            hyperparameters={
                "learning_rate": value(rate),
                "gamma": value(0.9),
                "gae_lambda": value(0.95),
                "activation": agent_pb2.HyperparameterValue(text="tanh"),
            },
        )
        spec.initialization.kind = (
            agent_pb2.INITIALIZATION_KIND_FUSE if parents else agent_pb2.INITIALIZATION_KIND_FRESH
        )
        agent = leaderboard_pb2.Agent(
            name=f"{NAME}/agents/{name}",
            spec=spec,
            parents=[f"{NAME}/agents/{parent}" for parent in parents],
            replaced=f"{NAME}/agents/a0009" if parents else "",
            cost=Duration(seconds=1234),
        )
        evaluation = agent_pb2.Evaluation(
            mean=-180.0,
            lower_bound=-201.25,
            upper_bound=math.inf,
            returns=[-180.0] * 32,
            env_steps=1_234_567,
        )
        return leaderboard_pb2.Candidate(
            rank=rank, agent=agent, evaluation=evaluation, confirmed=rank == 1, score=-201.25
        )

    return leaderboard_pb2.Leaderboard(
        name="projects/default/leaderboards/x",
        candidates=[
            candidate(1, "a0001", 0.00123456),
            candidate(2, "a0002", 0.002, "a0001", "a0003"),
        ],
        agent_count=9,
    )


def test_a_ranking_fits_a_hundred_columns(board):
    text = leaderboard_text(board, every=True, width=100)
    assert max(map(len, text.splitlines())) <= 100
    assert "activation tanh" in text


def test_a_ranking_says_where_agents_come_from_and_what_differs(board):
    head, first, below_first, second, below_second = leaderboard_text(board, width=100).splitlines()
    assert head.split()[:4] == ["rank", "agent", "algorithm", "score"]
    assert first.split()[:5] == ["1", "a0001", "ppo", "-201.2", "-180.0"]
    assert " yes " in first
    assert " no " in second
    assert "1.23 M" in first
    # gae_lambda and activation: as usual
    assert below_first.strip() == "fresh; learning_rate 0.001235, gamma 0.9"
    assert below_second.strip().startswith(
        "fused from a0001 and a0003, for a0009; learning_rate 0.002"
    )


def test_the_score_is_the_one_that_the_leaderboard_tells(board):
    board.candidates[0].score = -190.0  # with broken episodes
    assert leaderboard_text(board).splitlines()[1].split()[3:5] == ["-190.0", "-180.0"]


def test_beside_the_mean_stands_what_is_left_of_it_once_luck_is_taken_away(board):
    """As in tests/unit/evaluate/test_shrinkage.py."""
    for candidate, mean, episodes in zip(board.candidates, (20.0, 0.0), (32, 8), strict=True):
        candidate.evaluation.mean, candidate.evaluation.standard_deviation = mean, 10.0
        candidate.evaluation.returns[:] = [mean] * episodes
    head, first, _, second, _ = leaderboard_text(board).splitlines()
    assert head.split()[4:6] == ["mean", "corrected"]
    assert (first.split()[4:6], second.split()[4:6]) == (["20.0", "19.8"], ["0.00", "0.62"])


def test_an_empty_ranking():
    board = leaderboard_pb2.Leaderboard(name="projects/default/leaderboards/x", agent_count=3)
    assert (
        leaderboard_text(board)
        == "projects/default/leaderboards/x: no agent is ranked yet; 3 agents so far\n"
    )


def test_a_candidate_as_json_is_complete_and_strict(board):
    values = candidate_json(board.candidates[1])
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert (values["score"], values["upper_bound"], values["confirmed"]) == (-201.25, None, False)
    assert values["hyperparameters"]["learning_rate"] == 0.002
    assert values["parents"] == [f"{NAME}/agents/a0001", f"{NAME}/agents/a0003"]
    assert (values["initialization"], values["device_seconds"]) == ("FUSE", 1234.0)


def test_which_hyperparameters_are_worth_a_look():
    agents = [
        ("ppo", {"learning_rate": 0.1, "gamma": 0.99, "horizon": 64}),
        ("ppo", {"learning_rate": 0.2, "gamma": 0.99, "horizon": 64}),
        ("own", {"speed": 3}),
    ]
    assert telling_names(agents) == {"ppo": ("learning_rate",), "own": ()}
    assert differing_names(agents) == ("learning_rate",)


def test_the_evaluator_that_a_job_names_is_shown(finished_job):
    assert "evaluator" not in "\n".join(JobSummary(finished_job, "").lines())
    assert job_json(finished_job)["evaluator"] is None
    finished_job.spec.evaluation.evaluator = "success_rate"
    assert "evaluator    success_rate" in JobSummary(finished_job, "").lines()
    assert job_json(finished_job)["evaluator"] == "success_rate"


def test_a_confirmed_best_and_an_ensemble_are_shown(finished_job):
    assert "confirmed" not in "\n".join(JobSummary(finished_job, "").lines())
    assert job_json(finished_job)["best_confirmed"] is False
    finished_job.progress.best.purpose = agent_pb2.EVALUATION_PURPOSE_CHALLENGE
    finished_job.ensemble.rule = "mean"
    finished_job.ensemble.policies.add(agent=f"{NAME}/agents/a0001")
    finished_job.ensemble.policies.add(agent=f"{NAME}/agents/a0004")
    assert "ensemble     mean of a0001, a0004" in JobSummary(finished_job, "").lines()
    finished_job.ensemble.evaluation.CopyFrom(finished_job.progress.best)
    lines = JobSummary(finished_job, "").lines()
    assert any(line.endswith("agent a0002, confirmed") for line in lines)
    ensemble = (
        "ensemble     -182.4 (95 % interval -201.3 to -163.5, 2 episodes), mean of a0001, a0004"
    )
    assert ensemble in lines
    values = job_json(finished_job)
    assert values["best_confirmed"] is True
    assert values["ensemble"]["rule"] == "mean"
    assert values["ensemble"]["mean"] == -182.4

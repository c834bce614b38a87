"""The round's values on their way to the orchestrator."""

from __future__ import annotations

import math

import pytest

from podracer.common.v1 import agent_pb2
from podracer_core.errors import Unavailable, UserCodeFailed
from podracer_core.evaluate import EvaluationResult
from podracer_core.training import Judgement, Progress
from podracer_learner.round import (
    evaluation_message,
    member_progress,
    problem_message,
    progress_report,
)


def test_a_judgement_says_when_what_was_known_of_which_weights():
    result = EvaluationResult((1.0, 3.0), (10, 30), (7, 8))
    judgement = Judgement(1, 500, 9, 2.5, "candidate", result, 3.25, 0.5)
    message = evaluation_message(judgement, "4-1", "projects/p/jobs/j/agents/a", 1000)
    assert message.evaluation_id == "4-1"
    assert message.purpose == agent_pb2.EVALUATION_PURPOSE_CANDIDATE
    assert message.env_steps == 1500
    assert message.policy_version == 9
    assert message.train_time.ToMilliseconds() == 2500
    assert message.confirm_time.ToMilliseconds() == 3250
    assert message.duration.ToMilliseconds() == 500
    assert list(message.returns) == [1.0, 3.0]
    assert message.mean == 2.0
    assert message.standard_deviation == pytest.approx(math.sqrt(2))
    assert message.lower_bound < 2.0 < message.upper_bound


def test_one_episode_has_finite_bounds():
    judgement = Judgement(0, 1, 1, 0.0, "progress", EvaluationResult((5.0,), (1,), (1,)), 0.0, 0.0)
    message = evaluation_message(judgement, "x", "a", 0)
    assert message.lower_bound == message.upper_bound == 5.0


def test_cost_is_shared_by_the_members():
    message = member_progress("a", 100, 8.0, 2.0, 4, failed=False)
    assert message.cost.ToMilliseconds() == 2000
    assert message.evaluation_cost.ToMilliseconds() == 500


def test_a_report_leaves_out_what_is_no_number():
    progress = Progress(
        elapsed_s=2.0,
        used_s=4.0,
        evaluation_s=0.2,
        updates=3,
        env_steps=[100, 300],
        returns=[math.nan, 20.5],
        metrics={"kl": [0.1, math.nan]},
        active=[True, False],
    )
    report = progress_report(["a", "b"], progress, 200.0)
    first, second = report.members
    assert (first.cost.ToMilliseconds(), first.evaluation_cost.ToMilliseconds()) == (2000, 100)
    assert not first.HasField("training_return")
    assert second.training_return == 20.5
    assert dict(first.metrics) == {"kl": 0.1}
    assert dict(second.metrics) == {}
    assert (first.failed, second.failed) == (False, True)
    assert report.env_steps_per_second == 200.0


def test_a_problem_of_user_code_shows_the_users_traceback():
    problem = problem_message(UserCodeFailed("it raised", user_traceback="Traceback: …"), "ours")
    assert (problem.reason, problem.message, problem.detail) == (
        "USER_CODE_FAILED",
        "it raised",
        "Traceback: …",
    )
    assert problem_message(Unavailable("gone", reason="WORKER_LOST")).reason == "WORKER_LOST"

"""How sure a claim of the target has to be: the more of them were heard, the surer."""

from __future__ import annotations

import math

import pytest

from podracer.common.v1 import agent_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_orchestrator.jobs.plan import JobPlan, plan_of
from podracer_orchestrator.outcomes.claims import FALSE_CLAIMS, corrected_score, level
from podracer_orchestrator.tables import JobRow

TWO_EPISODES = agent_pb2.Evaluation(returns=[90.0, 110.0], mean=100.0, lower_bound=100 - 10 / math.tan(math.pi / 40))


def plan(statistic: str = "TARGET_STATISTIC_LOWER_BOUND") -> JobPlan:
    spec = job_pb2.JobSpec(objective={"target_return": 50.0, "statistic": statistic})
    return plan_of(JobRow(spec=spec.SerializeToString()))


def test_all_claims_of_a_job_together_err_as_often_as_one_may() -> None:
    assert [level(number) for number in (1, 2, 3)] == pytest.approx([0.05 / 2, 0.05 / 6, 0.05 / 12])
    assert sum(map(level, range(1, 10_000))) == pytest.approx(FALSE_CLAIMS * (1 - 1 / 10_000))


def test_the_bound_of_a_claim_worked_by_hand() -> None:
    """Of two episodes t has one degree of freedom, P(T > t) = 1/2 - atan(t)/pi: at 1/40 12.706, at 1/120 38.188."""
    expected = [100 - 10 / math.tan(math.pi * tail) for tail in (1 / 40, 1 / 120, 1 / 240)]
    assert expected[:2] == pytest.approx([-27.062, -281.885], abs=1e-3)
    assert [corrected_score(plan(), TWO_EPISODES, number) for number in (1, 2, 3)] == pytest.approx(expected)


def test_what_has_no_error_needs_no_correction() -> None:
    assert corrected_score(plan("TARGET_STATISTIC_MEAN"), TWO_EPISODES, 3) == 100.0
    certain = agent_pb2.Evaluation(returns=[7.0], mean=7.0, lower_bound=5.0, deterministic=True)
    assert corrected_score(plan(), certain, 3) == 5.0

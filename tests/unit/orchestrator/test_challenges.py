"""How sure a claim of the target has to be: the more of them were heard, the surer."""

from __future__ import annotations

import math

import pytest

from podracer.common.v1 import agent_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.statistics import FALSE_CLAIMS, claim_level
from podracer_orchestrator.outcomes import corrected_score
from podracer_orchestrator.tables import JobRow

EPISODES = agent_pb2.Evaluation(returns=[90.0, 110.0] * 50, mean=100.0, lower_bound=98.0)


def job(statistic: str = "TARGET_STATISTIC_LOWER_BOUND") -> JobRow:
    spec = job_pb2.JobSpec(objective={"target_return": 50.0, "statistic": statistic})
    return JobRow(project="default", spec=spec.SerializeToString())


def test_all_claims_of_a_job_together_err_as_often_as_one_may():
    assert [claim_level(number) for number in (1, 2, 3)] == pytest.approx(
        [0.030396, 0.030396 / 4, 0.030396 / 9], rel=1e-4
    )
    assert sum(map(claim_level, range(1, 10_000))) == pytest.approx(FALSE_CLAIMS, rel=1e-4)
    assert sum(map(claim_level, range(1, 10_000))) < FALSE_CLAIMS


def test_each_claim_is_held_against_a_lower_bound_than_the_one_before():
    first, second, third = (corrected_score(job(), EPISODES, number) for number in (1, 2, 3))
    assert 98.1 > first > second > third > 96.5
    assert corrected_score(job(), EPISODES, 1) == first


def test_what_has_no_error_needs_no_correction():
    assert corrected_score(job("TARGET_STATISTIC_MEAN"), EPISODES, 3) == 100.0
    certain = agent_pb2.Evaluation(returns=[7.0], mean=7.0, lower_bound=5.0, deterministic=True)
    assert corrected_score(job(), certain, 3) == 5.0


def test_what_is_no_number_holds_nothing():
    broken = agent_pb2.Evaluation(
        returns=[math.inf, -math.inf, 1e308, 1e308], mean=math.nan, lower_bound=math.nan
    )
    assert not corrected_score(job(), broken, 1) >= 50.0

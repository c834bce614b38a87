"""Who wins a contest, by numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest

from podracer.common.v1 import agent_pb2
from podracer_orchestrator.continuous import is_won, paired_lower_bound


def evaluation(*returns: float, deterministic: bool = False) -> agent_pb2.Evaluation:
    mean = sum(returns) / len(returns)
    return agent_pb2.Evaluation(
        returns=returns, mean=mean, lower_bound=mean, upper_bound=mean, deterministic=deterministic
    )


def test_the_bound_of_paired_differences():
    # Differences 1, 2, 3: mean 2, standard deviation 1, standard error 1 / sqrt 3, t(0.975, 2) =
    # 4.3027.
    assert paired_lower_bound([10.0, 20.0, 30.0], [11.0, 22.0, 33.0]) == pytest.approx(
        2 - 4.3027 / math.sqrt(3), abs=1e-4
    )
    assert paired_lower_bound([1.0], [2.0]) == -math.inf


def test_luck_promotes_no_challenger():
    won, reason = is_won(evaluation(10.0, 20.0, 30.0), evaluation(11.0, 22.0, 33.0), 0.0)
    assert not won, "2 - 2.484 is below 0"
    assert "-0.484" in reason


def test_a_steady_lead_is_enough():
    # Differences 2, 2, 2.3: mean 2.1, standard deviation sqrt 0.03, bound 2.1 - 4.3027 * 0.1 =
    # 1.6697.
    champion, challenger = evaluation(10.0, 20.0, 30.0), evaluation(12.0, 22.0, 32.3)
    assert is_won(champion, challenger, 0.0)[0]
    assert is_won(champion, challenger, 1.6)[0]
    assert not is_won(champion, challenger, 1.7)[0], "the bound has to pass the margin too"
    assert not is_won(champion, challenger, 2.1)[0]


def test_where_evaluation_is_deterministic_the_mean_alone_decides():
    champion, challenger = (evaluation(value, deterministic=True) for value in (1.0, 1.2))
    assert is_won(champion, challenger, 0.0)[0]
    assert not is_won(champion, challenger, 0.25)[0]
    assert not is_won(champion, champion, 0.0)[0], "equal is not better"


def test_what_is_no_number_wins_nothing():
    assert not is_won(evaluation(1.0, 1.0), evaluation(math.nan, math.nan), 0.0)[0]
    assert not is_won(evaluation(math.nan, 1.0), evaluation(2.0, 2.0), 0.0)[0]

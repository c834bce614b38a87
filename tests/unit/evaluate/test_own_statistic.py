"""Evaluations with the environment's own statistic: on their way through messages and JSON,
repeated and together."""

from __future__ import annotations

import json

import pytest

from podracer_core.environments import EpisodeStatistic
from podracer_core.errors import InvalidInput
from podracer_core.evaluate import EvaluationResult, result_from_json, result_to_json
from podracer_platform.training_messages import result_from_message, result_to_message
from support.errors import raises

OWN = EpisodeStatistic(1.5, -0.5, 3.0, {"sharpe_ratio": 1.5, "max_drawdown": -0.25})
RESULT = EvaluationResult((12.0,), (50,), (7,), statistic=OWN)


def test_mean_and_interval_are_its():
    assert (RESULT.mean, RESULT.lower_bound, RESULT.upper_bound, RESULT.std) == (
        1.5,
        -0.5,
        3.0,
        0.0,
    )
    assert RESULT.repeated((1, 2, 3)) == EvaluationResult(
        (12.0,) * 3, (50,) * 3, (1, 2, 3), statistic=OWN
    )
    assert RESULT.repeated((1, 2)).repeated((3,)) == EvaluationResult(
        (12.0,), (50,), (3,), statistic=OWN
    )


def test_it_crosses_messages_and_json_unchanged():
    message = result_to_message(RESULT)
    assert message.deterministic
    assert (message.mean, message.lower_bound, message.upper_bound) == (1.5, -0.5, 3.0)
    assert result_from_message(message) == RESULT
    assert result_from_json(json.loads(json.dumps(result_to_json(RESULT)))) == RESULT


def test_json_of_before_has_none():
    plain = EvaluationResult((1.0, 2.0), (3, 4), (5, 6))
    stored = result_to_json(plain)
    assert result_from_json(stored) == plain
    del stored["deterministic"], stored["statistics"]
    assert result_from_json(stored) == plain
    with raises(InvalidInput, "BAD_EVALUATION"):
        result_from_json(result_to_json(RESULT) | {"statistics": [1]})


def test_only_equal_ones_go_together():
    both = RESULT + EvaluationResult((12.0,), (50,), (8,), statistic=OWN)
    assert both.seeds == (7, 8)
    assert both.statistic == OWN
    with pytest.raises(InvalidInput, match="different statistics"):
        RESULT + EvaluationResult((12.0,), (50,), (8,))

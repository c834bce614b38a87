"""Evaluation results as protobuf messages and as JSON values of a checkpoint's metadata, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from podracer.common.v1 import agent_pb2
from podracer_core.environments.vec_environment import EpisodeStatistic
from podracer_core.errors import InvalidInput
from podracer_core.evaluate.result import EvaluationResult


def result_to_message(result: EvaluationResult) -> agent_pb2.Evaluation:
    """The numbers of an Evaluation; who, why and when is for the caller to add.

    The interval of a single episode is unbounded: both bounds are its return then, as no number says so better.
    """
    lower, upper = _bounds(result)
    return agent_pb2.Evaluation(
        returns=result.returns,
        lengths=result.lengths,
        seeds=result.seeds,
        mean=result.mean,
        standard_deviation=result.std,
        lower_bound=lower,
        upper_bound=upper,
        deterministic=result.deterministic,
        statistics={} if result.statistic is None else result.statistic.statistics,
    )


def result_from_message(message: agent_pb2.Evaluation) -> EvaluationResult:
    """The inverse of `result_to_message`. Raises InvalidInput where the lists do not belong together."""
    statistic = None
    if message.deterministic:
        statistic = EpisodeStatistic(message.mean, message.lower_bound, message.upper_bound, dict(message.statistics))
    return EvaluationResult(tuple(message.returns), tuple(message.lengths), tuple(message.seeds), statistic=statistic)


def result_to_json(result: EvaluationResult) -> dict[str, Any]:
    """What a checkpoint's metadata keep under "evaluation"."""
    lower, upper = _bounds(result)
    return {
        "episodes": result.episodes,
        "returns": list(result.returns),
        "lengths": list(result.lengths),
        "seeds": list(result.seeds),
        "mean": result.mean,
        "standard_deviation": result.std,
        "lower_bound": lower,
        "upper_bound": upper,
        "deterministic": result.deterministic,
        "statistics": {} if result.statistic is None else dict(result.statistic.statistics),
    }


def result_from_json(value: Mapping[str, Any]) -> EvaluationResult:
    """The inverse of `result_to_json`. Raises InvalidInput for anything else."""
    try:
        returns = tuple(float(number) for number in value["returns"])
        statistic = None
        if value.get("deterministic", False):  # absent where an earlier version wrote it
            further = {str(name): float(number) for name, number in value["statistics"].items()}
            mean, lower, upper = (float(value[name]) for name in ("mean", "lower_bound", "upper_bound"))
            statistic = EpisodeStatistic(mean, lower, upper, further)
        lengths, seeds = tuple(map(int, value["lengths"])), tuple(map(int, value["seeds"]))
        return EvaluationResult(returns, lengths, seeds, statistic=statistic)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"not a stored evaluation: {error!r}", reason="BAD_EVALUATION") from error


def _bounds(result: EvaluationResult) -> tuple[float, float]:
    if result.deterministic or math.isfinite(result.half_width):
        return result.lower_bound, result.upper_bound
    return result.mean, result.mean

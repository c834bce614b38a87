"""What the message of an evaluation counts for."""

from __future__ import annotations

import statistics

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer_core.statistics import student_t_half_width

CONFIRMING = (agent_pb2.EVALUATION_PURPOSE_CHALLENGE, agent_pb2.EVALUATION_PURPOSE_FINAL)
"""The purposes of evaluations with fresh seeds, which have not selected their policy."""


def broken_episodes(message: agent_pb2.Evaluation | leaderboard_service_pb2.Agent) -> int:
    """The number of episodes whose world broke."""
    return message.broken_number_episodes + message.broken_code_episodes


def counted(evaluation: agent_pb2.Evaluation, lowest: float | None) -> agent_pb2.Evaluation | None:
    """Returns, mean and bounds for ranking and targets: each broken episode counts with `lowest`,
    the lowest return of an intact episode that is known of the job, or this evaluation's own lowest
    if that is lower. None if no episode was intact: it is never ranked."""
    broken, returns = broken_episodes(evaluation), list(evaluation.returns)
    if broken and not returns:
        return None
    if not broken or evaluation.deterministic:
        return evaluation
    returns += [min(returns if lowest is None else [lowest, *returns])] * broken
    mean = statistics.fmean(returns)
    half = student_t_half_width(statistics.stdev(returns), len(returns))
    return agent_pb2.Evaluation(
        returns=returns, mean=mean, lower_bound=mean - half, upper_bound=mean + half
    )

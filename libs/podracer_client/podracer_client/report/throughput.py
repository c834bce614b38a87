"""Environment steps a second over time, from what evaluations say of their agents' steps."""

from __future__ import annotations

from podracer_client.report.records import Evaluation, JobReport

_BINS = 80


def throughput(report: JobReport) -> tuple[list[float], list[float]]:
    """Edges of equal spans of time (one more than rates), and steps a second of all agents in each.

    An agent's steps between two evaluations count evenly over the time between them that its lease had trained. What
    came after an agent's last evaluation is not in it, so the sum is a little below the job's steps.
    """
    start_s, end_s = report.start_s or 0.0, report.now_s
    if end_s <= start_s:
        return [], []
    width = (end_s - start_s) / _BINS
    steps = [0.0] * _BINS
    for begin_s, until_s, count in _stretches(report):
        first, last = (min(_BINS - 1, max(0, int((time_s - start_s) / width))) for time_s in (begin_s, until_s))
        if first == last:
            steps[first] += count
            continue
        for index in range(first, last + 1):
            inside = min(until_s, start_s + (index + 1) * width) - max(begin_s, start_s + index * width)
            steps[index] += count * max(0.0, inside) / (until_s - begin_s)
    return [start_s + index * width for index in range(_BINS + 1)], [count / width for count in steps]


def job_steps(report: JobReport) -> list[tuple[Evaluation, float]]:
    """Every evaluation whose time is known, oldest first, with the steps of all agents together until then."""
    first = {agent.name: agent.start_steps for agent in report.agents}
    latest: dict[str, int] = {}
    total = 0.0
    found = []
    for evaluation in report.evaluations:
        if evaluation.time_s is None:
            continue
        before = latest.get(evaluation.agent, first.get(evaluation.agent, 0))
        if evaluation.env_steps > before:
            total += evaluation.env_steps - before
            latest[evaluation.agent] = evaluation.env_steps
        found.append((evaluation, total))
    return found


def _stretches(report: JobReport) -> list[tuple[float, float, int]]:
    """Begin, end and steps of every stretch of training between two evaluations of an agent."""
    first = {agent.name: (agent.create_s or 0.0, agent.start_steps) for agent in report.agents}
    latest: dict[str, tuple[float, int]] = {}
    found = []
    for evaluation in report.evaluations:
        if evaluation.time_s is None:
            continue
        since_s, steps = latest.get(evaluation.agent) or first.get(evaluation.agent, (0.0, 0))
        if evaluation.env_steps <= steps:
            continue
        begin_s = max(since_s, evaluation.time_s - evaluation.train_s) if evaluation.train_s > 0 else since_s
        found.append((min(begin_s, evaluation.time_s), evaluation.time_s, evaluation.env_steps - steps))
        latest[evaluation.agent] = (evaluation.time_s, evaluation.env_steps)
    return found

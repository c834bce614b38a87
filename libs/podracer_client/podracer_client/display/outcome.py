"""The end of a job: an exit code, and for a missed target the best result and suggestions for
another run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from podracer.orchestrator.v1 import job_pb2
from podracer_client.display.numbers import count_text, duration_text, return_text, seconds
from podracer_client.display.score import best_score, score, score_name, statistic
from podracer_client.names import enum_word
from podracer_core.config import format_seconds
from podracer_core.jobs.evaluations import CONFIRMING

TARGET_MISSED = 3
"""Exit code: the budget is used, and the target was not reached."""
_NEARLY = 0.95
"""The used part of a limit from which it counts as the one that ended the job: no round begins for
the rest."""
_FEW_AGENTS = 16


def exit_code(jobs: Iterable[job_pb2.Job]) -> int:
    """1 if a job did not succeed, otherwise 3 if a job missed its target, otherwise 0."""
    jobs = list(jobs)
    if any(job.state != job_pb2.JOB_STATE_SUCCEEDED for job in jobs):
        return 1
    return TARGET_MISSED if any(map(missed_target, jobs)) else 0


def result_word(job: job_pb2.Job) -> str:
    """What came of a job that has ended: `REACHED`, `MISSED`, `BUDGET_USED`, …; else its state."""
    if missed_target(job):
        return "MISSED"
    word = enum_word(job_pb2.JobOutcome, job.outcome) or enum_word(job_pb2.JobState, job.state)
    return word.removeprefix("TARGET_")


def missed_target(job: job_pb2.Job) -> bool:
    """Whether it had a target and used its budget without reaching it."""
    has_target = job.spec.objective.HasField("target_return")
    return has_target and job.outcome == job_pb2.JOB_OUTCOME_BUDGET_USED


def target_lines(job: job_pb2.Job) -> list[str]:
    """The best result of a job that missed its target, and suggestions; empty for any other job."""
    if not missed_target(job):
        return []
    titles = ["try next", *[""] * 5]
    advice = [f"{title:<13}{text}" for title, text in zip(titles, _advice(job), strict=False)]
    return [f"target       {_how_far(job)}", *advice]


def _how_far(job: job_pb2.Job) -> str:
    objective, best = job.spec.objective, job.progress.best
    target = return_text(objective.target_return)
    if not job.progress.HasField("best"):
        return f"{target}; no evaluation came before the end"
    confirmed = "confirmed" if best.purpose in CONFIRMING else "unconfirmed"
    called, name = statistic(objective), score_name(job.spec.environment)
    episodes = f" over {count_text(len(best.returns))} episodes" if best.returns else ""
    place = f"at {count_text(best.env_steps)} steps of its lineage"
    if best.create_time.seconds and job.create_time.seconds:
        age = seconds(best.create_time) - seconds(job.create_time)
        place += f", {duration_text(max(0.0, age))} after the job's creation"
    return (
        f"{return_text(best_score(job))} of {target} ({called} of the {name}{episodes}, "
        f"{confirmed}), {place}"
    )


def _advice(job: job_pb2.Job) -> Iterator[str]:
    """Suggestions: keys of the job file with other values, the most likely first."""
    spec, objective, best = job.spec, job.spec.objective, job.progress.best
    has_best = job.progress.HasField("best")
    if has_best and score(best, objective) < objective.target_return <= best.mean:
        episodes = (
            f"evaluation.episodes: {4 * len(best.returns)}"
            if best.returns
            else "more evaluation.episodes"
        )
        yield f"{episodes}: the mean reached the target, the lower bound of its interval did not"
    yield from _longer(job)
    algorithms = [share.algorithm for share in spec.search.algorithms]
    if algorithms:
        yield f"search.algorithms: auto (it had only {', '.join(algorithms)})"
    elif spec.search.space:
        yield "no search.space: the algorithms' own ranges"
    if (population := spec.evolution.population) and population < _FEW_AGENTS:
        yield f"evolution.population: {2 * population} (now {population})"


def _longer(job: job_pb2.Job) -> Iterator[str]:
    """Twice the limits that ended the job; all limits if none is nearly used: a round was too long
    for the rest."""
    objective, progress = job.spec.objective, job.progress
    duration, cost = seconds(objective.max_duration), seconds(objective.max_cost)
    limits = (
        (
            "max_env_steps",
            objective.max_env_steps,
            progress.env_steps,
            lambda limit: f"{limit:_.0f}",
        ),
        ("max_duration", duration, seconds(progress.train_time), format_seconds),
        ("max_cost", cost, seconds(progress.cost), format_seconds),
    )
    given = [limit for limit in limits if limit[1]]
    used = [limit for limit in given if limit[2] >= _NEARLY * limit[1]]
    for name, limit, _, text in used or given:
        yield f"objective.{name}: {text(2 * limit)} (now {text(limit)})"

"""The end of a job: its result, an exit code, the place of its best policy, and the next
commands."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import job_pb2, job_service_pb2
from podracer_client.display.output import count_text, duration_text, evaluation_text, return_text
from podracer_client.jobs import (
    COUNTS,
    History,
    agent_hyperparameters,
    best_score,
    score,
    score_name,
)
from podracer_client.names import enum_word, seconds, short_name, time_json
from podracer_core.config import format_seconds
from podracer_platform.jobs import CONFIRMING, broken_episodes
from podracer_platform.messages import arguments_from_message

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
    called, name = History(job).objective.statistic, score_name(job.spec.environment)
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


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A job at its end; `checkpoint` is the path (or the name on a server) of the best policy,
    empty where none is."""

    job: job_pb2.Job
    checkpoint: str

    def to_json(self) -> dict[str, Any]:
        """The object that ends the output of `--json`."""
        progress = self.job.progress
        train_seconds = seconds(progress.train_time)
        reached = progress.HasField("time_to_target")
        return {
            "event": "job_finished",
            "state": History(self.job).state,
            "outcome": enum_word(job_pb2.JobOutcome, self.job.outcome) or None,
            "best_return": progress.best.mean if progress.HasField("best") else None,
            "best_score": best_score(self.job),
            "broken_episodes": broken_episodes(progress.best),
            "cut_episodes": progress.best.cut_episodes,
            "env_steps": progress.env_steps,
            "train_seconds": round(train_seconds, 3),
            "cost_seconds": round(seconds(progress.cost), 3),
            "evaluation_seconds": round(seconds(progress.evaluation_cost), 3),
            "seconds_to_target": round(seconds(progress.time_to_target), 3) if reached else None,
            "env_steps_per_second": round(progress.env_steps / train_seconds, 1)
            if train_seconds
            else 0.0,
            "agents": progress.agent_count,
            "checkpoint": self.checkpoint or None,
        }

    def problem_lines(self) -> list[str]:
        """The reason of a failure, with the traceback of the user's code if there is one; empty for
        any other job."""
        if not self.job.HasField("problem"):
            return []
        problem = self.job.problem
        return [
            f"problem      {problem.reason}: {problem.message}",
            *(f"  {line}" for line in problem.detail.splitlines()),
        ]

    def lines(self) -> list[str]:
        """The summary as text."""
        progress = self.job.progress
        outcome = enum_word(job_pb2.JobOutcome, self.job.outcome).lower().replace("_", " ")
        if missed_target(self.job):
            outcome += ", target missed"
        if progress.HasField("time_to_target"):
            outcome += f" after {duration_text(seconds(progress.time_to_target))} of training"
        lines = [f"{self.job.name}: {History(self.job).state}{', ' if outcome else ''}{outcome}"]
        lines += self.problem_lines()
        if self.job.HasField("continuous_status"):
            return [
                *lines,
                *(f"{title:<13}{text}" for title, text in History(self.job).standing.items()),
            ]
        if self.job.parent:
            lines.append(f"generation   {self.job.generation} of {short_name(self.job.parent)}")
        lines.append(
            f"trained      {count_text(progress.env_steps)} environment steps, "
            f"{progress.agent_count} agents, {duration_text(seconds(progress.train_time))}"
        )
        if cost_s := seconds(progress.cost):
            share = seconds(progress.evaluation_cost) / cost_s
            lines.append(
                f"used         {cost_s:,.1f} device seconds, {share:.0%} of them for evaluation"
            )
        if evaluator := self.job.spec.evaluation.evaluator:
            lines.append(f"evaluator    {evaluator}")
        if progress.HasField("best"):
            best = progress.best
            confirmed = ", confirmed" if best.purpose in CONFIRMING else ""
            title = f"best {score_name(self.job.spec.environment)}"
            ranked, called = best_score(self.job), History(self.job).objective.statistic
            first = "" if called == "mean" else f"{return_text(ranked)} ({called}), mean "
            lines.append(
                f"{title}  {first}{evaluation_text(best)}, agent "
                f"{short_name(best.agent)}{confirmed}"
            )
        lines += target_lines(self.job)
        if self.job.HasField("retrained"):
            lines.append(f"retrained    {retrained_text(self.job)}")
        elif (
            self.job.state == job_pb2.JOB_STATE_SUCCEEDED
            and self.job.spec.HasField("retrain")
            and progress.HasField("best")
        ):
            lines.append("retrained    no, that has failed: its events say why")
        if self.job.HasField("ensemble"):
            lines.append(f"ensemble     {_ensemble_text(self.job.ensemble)}")
        if self.checkpoint:
            title = "last policy" if self.job.HasField("unjudged") else "best policy"
            lines.append(f"{title}  {self.checkpoint}")
        return lines


def retrained_text(job: job_pb2.Job) -> str:
    """The final policy of the job, and the arguments that differ from those of the job's agents."""
    policy, changes = job.retrained, job.spec.retrain.kwargs
    others = ", ".join(
        f"{name} {value}" for name, value in sorted(arguments_from_message(changes, "").items())
    )
    steps = count_text(policy.checkpoint.env_steps)
    return f"{short_name(policy.agent)}, {steps} environment steps{', ' if others else ''}{others}"


def _ensemble_text(ensemble: job_pb2.Ensemble) -> str:
    """The score of the ensemble, and its members."""
    agents = (
        f"{ensemble.rule} of {', '.join(short_name(policy.agent) for policy in ensemble.policies)}"
    )
    return (
        f"{evaluation_text(ensemble.evaluation)}, {agents}"
        if ensemble.HasField("evaluation")
        else agents
    )


def program_words(argv: Sequence[str] | None = None) -> list[str]:
    """The words that start this command from here: `podracer`, `.venv/bin/podracer`, `python -m
    podracer_client`."""
    first = (sys.argv if argv is None else argv)[0]
    if first.endswith("__main__.py"):
        return [_short_path(Path(sys.executable)), "-m", "podracer_client"]
    found = shutil.which("podracer")
    if found is not None and Path(first).exists() and Path(found).samefile(first):
        return ["podracer"]
    return [_short_path(Path(first)) if Path(first).exists() else "podracer"]


def next_steps(
    checkpoint: str,
    leaderboard_arguments: Sequence[str],
    *,
    again: Sequence[str] = (),
    checkpoint_options: Sequence[str] = (),
) -> list[str]:
    """Commands to copy: continue, evaluate and export the policy at `checkpoint`, show the
    leaderboard."""
    commands = [again] if again else []
    if checkpoint:
        commands.append(["evaluate", checkpoint, *checkpoint_options])
        commands.append(["export", checkpoint, "--output", "policy.pt2", *checkpoint_options])
    commands.append(["leaderboard", *leaderboard_arguments])
    return [shlex.join([*program_words(), *command]) for command in commands]


def path_text(path: Path) -> str:
    """A path, relative to the working directory if it lies below it."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _short_path(path: Path) -> str:
    text = path_text(path)
    return text if "/" in text else f"./{text}"


def job_json(job: job_pb2.Job) -> dict[str, Any]:
    """A job's figures; times in seconds."""
    progress = job.progress
    return {
        "name": job.name,
        "state": enum_word(job_pb2.JobState, job.state),
        "environment": job.spec.environment.id or job.spec.environment.entry_point,
        "outcome": enum_word(job_pb2.JobOutcome, job.outcome) or None,
        "result": result_word(job),
        "problem": job.problem.message if job.HasField("problem") else None,
        "best_return": _finite(progress.best.mean) if progress.HasField("best") else None,
        "best_score": None if (best := best_score(job)) is None else _finite(best),
        "best_confirmed": progress.best.purpose in CONFIRMING,
        "ensemble": ensemble_json(job.ensemble) if job.HasField("ensemble") else None,
        "retrained": job.retrained.agent or None,
        "evaluator": job.spec.evaluation.evaluator or None,
        "target_return": job.spec.objective.target_return
        if job.spec.objective.HasField("target_return")
        else None,
        "env_steps": progress.env_steps,
        "train_seconds": round(seconds(progress.train_time), 3),
        "seconds_to_target": History(job).time_to_target_s,
        "agents": progress.agent_count,
        "pods": progress.pod_count,
        "rounds": progress.completed_rounds,
        "create_time": time_json(job.create_time),
        "parent": job.parent or None,
        "generation": job.generation or None,
        "continuous": continuous_json(job.continuous_status)
        if job.HasField("continuous_status")
        else None,
    }


def continuous_json(status: job_pb2.ContinuousStatus) -> dict[str, Any]:
    """The state of a continuous job, as JSON values."""
    return {
        "generation": status.generation,
        "current_job": status.current_job or None,
        "champion": status.champion.agent or None,
        "champion_generation": status.champion_generation or None,
        "next_time": time_json(status.next_time) if status.HasField("next_time") else None,
        "data_sha256": status.data_sha256 or None,
    }


def candidate_json(candidate: leaderboard_service_pb2.Candidate) -> dict[str, Any]:
    """A place on the leaderboard; its score is the objective's statistic.

    `env_steps` are the lineage's up to the judged snapshot, `device_seconds` all that it has had.
    """
    agent, evaluation = candidate.agent, candidate.evaluation
    return {
        "rank": candidate.rank,
        "agent": agent.name,
        "algorithm": agent.spec.algorithm,
        "score": _finite(candidate.score),
        **evaluation_json(evaluation),
        "confirmed": candidate.confirmed,
        "exclusion": candidate.exclusion or None,
        **{name: getattr(agent, name) for name in COUNTS},
        "env_steps": evaluation.env_steps,
        "checkpoint": evaluation.checkpoint.prefix,
        "device_seconds": round(seconds(agent.cost), 3),
        "rounds": agent.rung,
        "state": enum_word(leaderboard_service_pb2.AgentState, agent.state),
        "pinned": agent.pinned,
        "initialization": enum_word(agent_pb2.InitializationKind, agent.spec.initialization.kind),
        "parents": list(agent.parents),
        "lineage": agent.lineage,
        "replaced": agent.replaced or None,
        "reason": agent.reason,
        "admit_time": time_json(candidate.admit_time),
        "hyperparameters": agent_hyperparameters(agent.spec),
    }


def evaluation_json(evaluation: agent_pb2.Evaluation) -> dict[str, Any]:
    """The statistics of an evaluation; `statistics` are the environment's own further ones, where
    it has some."""
    return {
        "mean": _finite(evaluation.mean),
        "lower_bound": _finite(evaluation.lower_bound),
        "upper_bound": _finite(evaluation.upper_bound),
        "episodes": len(evaluation.returns),
        "broken_episodes": broken_episodes(evaluation),
        "first_break": evaluation.first_break or None,
        "cut_episodes": evaluation.cut_episodes,
        **(
            {"statistics": dict(sorted(evaluation.statistics.items()))}
            if evaluation.deterministic
            else {}
        ),
    }


def ensemble_json(ensemble: job_pb2.Ensemble) -> dict[str, Any]:
    """Candidates that act together; without statistics where they were not evaluated."""
    return {
        "agents": [policy.agent for policy in ensemble.policies],
        "rule": ensemble.rule,
        **(evaluation_json(ensemble.evaluation) if ensemble.HasField("evaluation") else {}),
    }


def capacity_json(found: job_service_pb2.GetCapacityResponse) -> dict[str, Any]:
    """Plain values: seconds, bytes, cores; null where the pool cannot tell."""
    return {
        "backend": found.backend,
        "pods": found.pod_count,
        "free_pods": found.free_pod_count if found.free_pod_count >= 0 else None,
        "limit": found.limit or None,
        **{name: _resources(found, name) for name in ("total", "reserved", "used")},
        "shares": [
            {
                "job": share.job,
                "weight": share.weight,
                "pods": share.pod_count,
                "wanted": share.wanted_count,
                "min": share.min_count,
                "max": share.max_count,
                "device_seconds": round(seconds(share.used), 3),
            }
            for share in found.shares
        ],
    }


def _resources(found: job_service_pb2.GetCapacityResponse, name: str) -> dict[str, Any] | None:
    if not found.HasField(name):  # type: ignore[arg-type]
        return None
    resources = getattr(found, name)
    return {"cores": resources.cpu, "memory_bytes": resources.memory_bytes, "gpus": resources.gpu}


def _finite(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if math.isfinite(value) else None

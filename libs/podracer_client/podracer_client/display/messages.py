"""Messages as JSON objects, for `--json`."""

from __future__ import annotations

import math
from typing import Any

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import job_pb2, job_service_pb2
from podracer_client.display.summary import result_word
from podracer_client.jobs.history import COUNTS, agent_hyperparameters
from podracer_client.jobs.score import best_score
from podracer_client.names import enum_word, seconds, time_json
from podracer_platform.jobs.evaluations import CONFIRMING, broken_episodes


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
        "seconds_to_target": seconds(progress.time_to_target)
        if progress.HasField("time_to_target")
        else None,
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

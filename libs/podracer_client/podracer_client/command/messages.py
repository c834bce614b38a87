"""Messages as JSON objects, for `--json`."""

from __future__ import annotations

import json
import sys
from typing import Any

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_client.display.numbers import seconds
from podracer_client.display.snapshot import score, state_text


def write_json(values: dict[str, Any]) -> None:
    """One object a line on stdout."""
    sys.stdout.write(json.dumps(values, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def job_json(job: job_pb2.Job) -> dict[str, Any]:
    """A job's figures; times in seconds."""
    progress = job.progress
    return {
        "name": job.name,
        "state": state_text(job.state),
        "environment": job.spec.environment.id or job.spec.environment.entry_point,
        "outcome": job_pb2.JobOutcome.Name(job.outcome).removeprefix("JOB_OUTCOME_") if job.outcome else None,
        "problem": job.problem.message if job.HasField("problem") else None,
        "best_return": progress.best.mean if progress.HasField("best") else None,
        "best_score": score(progress.best, job.spec.objective) if progress.HasField("best") else None,
        "target_return": job.spec.objective.target_return if job.spec.objective.HasField("target_return") else None,
        "env_steps": progress.env_steps,
        "train_seconds": round(seconds(progress.train_time), 3),
        "seconds_to_target": seconds(progress.time_to_target) if progress.HasField("time_to_target") else None,
        "agents": progress.agent_count,
        "pods": progress.pod_count,
        "rounds": progress.completed_rounds,
        "create_time": job.create_time.ToJsonString(),
    }


def candidate_json(candidate: leaderboard_service_pb2.Candidate) -> dict[str, Any]:
    """A place on the leaderboard."""
    return {
        "rank": candidate.rank,
        "agent": candidate.agent.name,
        "algorithm": candidate.agent.spec.algorithm,
        **evaluation_json(candidate.evaluation),
        "env_steps": candidate.evaluation.env_steps,
        "checkpoint": candidate.evaluation.checkpoint.prefix,
        "parents": list(candidate.agent.parents),
        "hyperparameters": {
            name: hyperparameter(value) for name, value in sorted(candidate.agent.spec.hyperparameters.items())
        },
    }


def evaluation_json(evaluation: agent_pb2.Evaluation) -> dict[str, Any]:
    """The statistics of an evaluation."""
    return {
        "mean": evaluation.mean,
        "lower_bound": evaluation.lower_bound,
        "upper_bound": evaluation.upper_bound,
        "episodes": len(evaluation.returns),
    }


def hyperparameter(value: agent_pb2.HyperparameterValue) -> Any:
    """The plain value."""
    match value.WhichOneof("kind"):
        case None:
            return None
        case "integers":
            return list(value.integers.values)
        case kind:
            return getattr(value, kind)

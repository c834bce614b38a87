"""Converts messages to the plain values that the page shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import job_pb2, job_service_pb2
from podracer_client.display.messages import candidate_json, job_json
from podracer_client.display.numbers import seconds, time_json
from podracer_client.display.score import score_name
from podracer_client.jobs.watch import FINAL_STATES
from podracer_client.names import enum_word, short_name
from podracer_client.report import conversion
from podracer_client.report.records import Agent
from podracer_core.catalogue.algorithms import known_algorithms

_FIGURES = (
    "best_return",
    "best_score",
    "best_confirmed",
    "env_steps",
    "train_seconds",
    "agents",
    "pods",
    "rounds",
)


def job_values(job: job_pb2.Job) -> dict[str, Any]:
    """`job`: the request and the state of a job. `figures`: the values that change all the time."""
    known = job_json(job)
    progress = job.progress
    objective = conversion.objective(job.spec.objective)
    figures = {name: known.pop(name) for name in _FIGURES}
    figures |= {
        "live_env_steps": max(progress.env_steps, progress.live_env_steps),
        "env_steps_per_second": round(progress.env_steps_per_second, 1),
        "eta_seconds": round(seconds(progress.eta)) if progress.HasField("eta") else None,
        "cost_seconds": round(seconds(progress.cost), 1),
    }
    pod = job.spec.pod
    known |= {
        "id": short_name(job.name),
        "ended": job.state in FINAL_STATES,
        "objective": asdict(objective) | {"statistic": objective.statistic},
        "score_name": score_name(job.spec.environment),
        "pod_count": {"min": pod.min_count, "max": pod.max_count, "learners": pod.learners},
        "labels": dict(job.spec.labels),
    }
    return {"job": known, "figures": figures}


def pod_values(pods: Iterable[job_pb2.Pod]) -> list[dict[str, Any]]:
    """The pods that have not left for good."""
    return [
        {
            "name": short_name(pod.name),
            "state": enum_word(job_pb2.PodState, pod.state),
            "layout": enum_word(job_pb2.PodLayout, pod.layout).lower(),
            "agents": [short_name(agent) for agent in pod.agents],
            "env_steps_per_second": round(pod.env_steps_per_second, 1),
            "restarts": pod.restart_count,
            "memory_bytes": pod.used.memory_bytes or None,
            "message": pod.message,
        }
        for pod in pods
        if pod.state != job_pb2.POD_STATE_STOPPED
    ]


def agent_values(
    agents: Iterable[leaderboard_service_pb2.Agent], job: job_pb2.Job
) -> dict[str, Any]:
    """`agent/NAME` of each. `forkable`: the hyperparameters that a fork may change."""
    wanted = conversion.objective(job.spec.objective)
    records = (conversion.agent(agent, wanted, job.create_time) for agent in agents)
    return {
        f"agent/{record.name}": asdict(record) | {"forkable": _forkable(record)}
        for record in records
    }


def _forkable(agent: Agent) -> list[str]:
    """The hyperparameters that a fork may change. For an algorithm that only the servers have
    installed these are all: the servers refuse a change that is not possible."""
    info = known_algorithms().get(agent.algorithm)
    fixed = (
        {knob.name for knob in info.hyperparameters if not knob.keeps_weights} if info else set()
    )
    return [name for name in agent.hyperparameters if name not in fixed]


def board_value(board: leaderboard_service_pb2.Leaderboard) -> dict[str, Any]:
    """The ranking, and the targets of the aliases."""
    return {
        "candidates": [
            candidate_json(candidate)
            | {"agent": short_name(candidate.agent.name), "statistics": {}}
            for candidate in board.candidates
        ],
        "aliases": {alias: short_name(agent) for alias, agent in board.aliases.items()},
    }


def evaluation_row(evaluation: agent_pb2.Evaluation, job: job_pb2.Job) -> list[Any] | None:
    """Agent, steps, seconds since the job was created, mean, lower and upper bound; None if it is
    not finite."""
    found = conversion.evaluation(evaluation, job.create_time)
    if found is None:
        return None
    return [
        found.agent,
        found.env_steps,
        round(found.time_s or 0.0, 2),
        found.mean,
        found.lower,
        found.upper,
    ]


def event_row(event: job_pb2.Event, job: job_pb2.Job) -> list[Any]:
    """Position, seconds since the job was created, kind, subject, sentence, the traceback of user
    code."""
    found = conversion.event(event, job.create_time)
    text = found.details.get("traceback", "")
    return [found.position, round(found.time_s, 2), found.kind, found.subject, found.message, text]


def promotion_values(promotions: Iterable[job_service_pb2.Promotion]) -> list[dict[str, Any]]:
    """The history of aliases, newest first."""
    return [
        {
            "position": each.position,
            "alias": each.alias,
            "decision": enum_word(job_service_pb2.PromotionDecision, each.decision),
            "policy": short_name(each.policy.agent),
            "reason": each.reason,
            "time": time_json(each.create_time),
        }
        for each in promotions
    ]

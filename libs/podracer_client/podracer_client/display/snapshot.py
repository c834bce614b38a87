"""A job's figures as plain values, made from its messages, for every display."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from podracer.common.v1 import evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_client.display.numbers import seconds
from podracer_client.display.score import best_first, best_score, score, score_name, statistic
from podracer_client.names import enum_word, short_name, time_text


@dataclass(frozen=True, slots=True)
class PodRow:
    """A pod that has not left."""

    name: str
    state: str
    layout: str
    agents: tuple[str, ...]
    env_steps_per_second: float
    restarts: int
    message: str


@dataclass(frozen=True, slots=True)
class AgentRow:
    """An agent; `score` is its best by the objective's statistic."""

    name: str
    algorithm: str
    state: str
    score: float | None
    latest: float | None
    env_steps: int
    rung: int
    parents: tuple[str, ...]
    exclusion: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A job at one moment. Times in seconds; None for unknown values.

    `env_steps` are those of committed checkpoints, `live_env_steps` those that pods report beyond
    them. `score_name` is the name of the numbers of evaluations, usually `return`."""

    name: str
    state: str
    env_steps: int
    live_env_steps: int
    env_steps_per_second: float
    best_return: float | None
    best_lower_bound: float | None
    best_score: float | None
    target_return: float | None
    statistic: str
    score_name: str
    train_seconds: float
    eta_seconds: float | None
    agent_count: int
    pods: tuple[PodRow, ...]
    standing: tuple[tuple[str, str], ...] = ()
    """The standing of a continuous job: titles and texts."""


def state_text(state: job_pb2.JobState.ValueType) -> str:
    """`RUNNING` for JOB_STATE_RUNNING."""
    return enum_word(job_pb2.JobState, state)


def take_snapshot(job: job_pb2.Job, pods: Iterable[job_pb2.Pod]) -> Snapshot:
    """The snapshot of a job and its pods."""
    progress, objective = job.progress, job.spec.objective
    best = progress.best if progress.HasField("best") else None
    return Snapshot(
        name=job.name,
        state=state_text(job.state),
        env_steps=progress.env_steps,
        live_env_steps=max(progress.env_steps, progress.live_env_steps),
        env_steps_per_second=progress.env_steps_per_second,
        best_return=best.mean if best else None,
        best_lower_bound=best.lower_bound if best else None,
        best_score=best_score(job),
        target_return=objective.target_return if objective.HasField("target_return") else None,
        statistic=statistic(objective),
        score_name=score_name(job.spec.environment),
        train_seconds=seconds(progress.train_time),
        eta_seconds=seconds(progress.eta) if progress.HasField("eta") else None,
        agent_count=progress.agent_count,
        pods=tuple(_pod_row(pod) for pod in pods if pod.state != job_pb2.POD_STATE_STOPPED),
        standing=tuple(standing(job).items()),
    )


def _pod_row(pod: job_pb2.Pod) -> PodRow:
    return PodRow(
        name=short_name(pod.name),
        state=enum_word(job_pb2.PodState, pod.state),
        layout=enum_word(job_pb2.PodLayout, pod.layout).lower(),
        agents=tuple(short_name(agent) for agent in pod.agents),
        env_steps_per_second=pod.env_steps_per_second,
        restarts=pod.restart_count,
        message=pod.message,
    )


def agent_rows(
    agents: Iterable[leaderboard_service_pb2.Agent], objective: evolution_pb2.Objective
) -> tuple[AgentRow, ...]:
    """Agents for a table: as `best_first`, the newest first among equals."""
    return tuple(best_first(_agent_row(agent, objective) for agent in reversed(list(agents))))


def _agent_row(
    agent: leaderboard_service_pb2.Agent, objective: evolution_pb2.Objective
) -> AgentRow:
    return AgentRow(
        name=short_name(agent.name),
        algorithm=agent.spec.algorithm,
        state=enum_word(leaderboard_service_pb2.AgentState, agent.state),
        score=agent.best_score if agent.HasField("best_score") else None,
        latest=score(agent.latest_evaluation, objective)
        if agent.HasField("latest_evaluation")
        else None,
        env_steps=agent.env_steps,
        rung=agent.rung,
        parents=tuple(short_name(parent) for parent in agent.parents),
        exclusion=agent.exclusion,
    )


def standing(job: job_pb2.Job) -> dict[str, str]:
    """The generation, the champion and the reason for waiting; empty for an ordinary job."""
    if not job.HasField("continuous_status"):
        return {}
    status = job.continuous_status
    return {
        "generation": str(status.generation),
        "champion": _champion(status),
        "waits for": _waits_for(job),
    }


def _champion(status: job_pb2.ContinuousStatus) -> str:
    if not status.HasField("champion"):
        return "none yet"
    name = status.champion.agent.partition("/jobs/")[2].replace("/agents/", "/")
    return (
        f"{name}, of generation {status.champion_generation}"
        if status.champion_generation
        else name
    )


def _waits_for(job: job_pb2.Job) -> str:
    status = job.continuous_status
    if status.current_job:
        return f"the end of {short_name(status.current_job)}"
    if not status.generation:
        return "its first generation"
    ways = ["other data"] if job.spec.data_sets else []
    ways += [time_text(status.next_time)] if status.HasField("next_time") else []
    return " or ".join(ways)

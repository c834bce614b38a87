"""Converts messages to records: short names, times since the job's creation, finite numbers
only."""

from __future__ import annotations

import math
import re

from google.protobuf.timestamp_pb2 import Timestamp

from podracer.common.v1 import agent_pb2, environment_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_client.display.leaderboard import agent_hyperparameters, broken_text
from podracer_client.display.messages import counts_json
from podracer_client.display.numbers import seconds
from podracer_client.names import enum_word, short_name
from podracer_client.report.records import (
    Agent,
    Candidate,
    Ensemble,
    Evaluation,
    Event,
    Objective,
    Pod,
)
from podracer_core.catalogue import spaces
from podracer_core.catalogue.messages import space_from_message
from podracer_core.errors import InvalidInput

_RESOURCE = re.compile(
    r"projects/[^/\s]+/(?:jobs/[^/\s]+/)?(?:agents|jobs|leaderboards|leases|pods)/(?=\S)"
)
"""The prefix of a resource name, before its last part."""


def time_of(timestamp: Timestamp, origin: Timestamp) -> float | None:
    """Seconds since `origin`; None if the time is not set."""
    if not timestamp.seconds:
        return None
    return (timestamp.seconds - origin.seconds) + (timestamp.nanos - origin.nanos) * 1e-9


def evaluation(
    message: agent_pb2.Evaluation, origin: Timestamp, score: float | None = None
) -> Evaluation | None:
    """An evaluation of the report, which ranks by `score` if that is known; None if its mean is not
    finite."""
    if not math.isfinite(message.mean):
        return None
    return Evaluation(
        agent=short_name(message.agent),
        env_steps=message.env_steps,
        time_s=time_of(message.create_time, origin),
        train_s=seconds(message.train_time),
        mean=message.mean,
        lower=_finite(message.lower_bound),
        upper=_finite(message.upper_bound),
        episodes=len(message.returns),
        purpose=enum_word(agent_pb2.EvaluationPurpose, message.purpose),
        checkpoint=message.checkpoint.prefix,
        score=score,
    )


def objective(message: evolution_pb2.Objective) -> Objective:
    """The objective of a job."""
    return Objective(
        target=message.target_return if message.HasField("target_return") else None,
        by_mean=message.statistic == evolution_pb2.TARGET_STATISTIC_MEAN,
        max_env_steps=message.max_env_steps or None,
        max_duration_s=seconds(message.max_duration) if message.HasField("max_duration") else None,
        max_cost_s=seconds(message.max_cost) if message.HasField("max_cost") else None,
    )


def agent(message: leaderboard_pb2.Agent, wanted: Objective, origin: Timestamp) -> Agent:
    """An agent; its score is that of its best judged evaluation."""
    first = message.spec.initialization
    has_best = message.HasField("best_evaluation")
    best = evaluation(message.best_evaluation, origin, message.best_score) if has_best else None
    return Agent(
        name=short_name(message.name),
        algorithm=message.spec.algorithm,
        state=enum_word(leaderboard_pb2.AgentState, message.state),
        start=enum_word(agent_pb2.InitializationKind, first.kind) or "FRESH",
        parents=tuple(map(short_name, message.parents)),
        replaced=short_name(message.replaced),
        create_s=time_of(message.create_time, origin),
        start_steps=max((parent.checkpoint.env_steps for parent in first.parents), default=0),
        env_steps=message.env_steps,
        cost_s=seconds(message.cost),
        rung=message.rung,
        score=wanted.score(best) if best else None,
        hyperparameters=agent_hyperparameters(message.spec),
        reason=message.reason,
        failure=message.failure,
        pinned=message.pinned,
        stopping=message.stopping,
        exclusion=message.exclusion,
        **counts_json(message),
    )


def candidate(
    message: leaderboard_pb2.Candidate, wanted: Objective, origin: Timestamp
) -> Candidate | None:
    """A candidate of the report; None if its evaluation is not finite."""
    judged = evaluation(message.evaluation, origin, message.score)
    if judged is None:
        return None
    agent, note = short_name(message.agent.name), broken_text(message)
    return Candidate(message.rank, agent, wanted.score(judged), judged, message.confirmed, note)


def ensemble(message: job_pb2.Ensemble, origin: Timestamp) -> Ensemble:
    """An ensemble of candidates."""
    return Ensemble(
        tuple(short_name(policy.agent) for policy in message.policies),
        message.rule,
        evaluation(message.evaluation, origin) if message.HasField("evaluation") else None,
    )


def event(message: job_pb2.Event, origin: Timestamp) -> Event:
    """An event of the job."""
    parts = message.subject.split("/")
    return Event(
        position=message.position,
        kind=message.kind,
        message=_RESOURCE.sub("", message.message),
        about=parts[-2] if len(parts) > 1 else "",
        subject=parts[-1],
        time_s=time_of(message.time, origin) or 0.0,
        details=dict(message.details),
    )


def pod(message: job_pb2.Pod) -> Pod:
    """A pod that exists now."""
    build = message.build
    return Pod(
        name=short_name(message.name),
        state=enum_word(job_pb2.PodState, message.state),
        layout=enum_word(job_pb2.PodLayout, message.layout),
        version=f"{build.version}{f' ({build.git_commit})' if build.git_commit else ''}",
        env_steps_per_second=message.env_steps_per_second,
        restarts=message.restart_count,
        message=message.message,
    )


def environment_rows(
    identifier: str, description: environment_pb2.EnvironmentDescription | None
) -> tuple[tuple[str, str], ...]:
    """The facts of an environment; `description` is None before it was inspected."""
    rows = [("environment", identifier)]
    if description is not None:
        rows += [
            ("observations", _space(description.observation_space)),
            ("actions", _space(description.action_space)),
            (
                "time limit",
                f"{description.max_episode_steps:,} steps"
                if description.max_episode_steps
                else "none",
            ),
            ("computed by", description.backend),
            (
                "a greedy policy's returns",
                "always the same" if description.deterministic_evaluation else "vary",
            ),
            ("prepared", description.preparation),
        ]
    return tuple((word, value) for word, value in rows if value)


def _space(message: environment_pb2.Space) -> str:
    try:
        return spaces.describe(space_from_message(message))
    except InvalidInput:
        return ""


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

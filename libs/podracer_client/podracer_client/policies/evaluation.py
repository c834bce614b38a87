"""Evaluations of trained policies, and their text."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podracer.common.v1 import agent_pb2, environment_pb2
from podracer.evaluator.v1 import evaluator_service_pb2
from podracer.evaluator.v1.evaluator_service_pb2_grpc import EvaluatorServiceStub
from podracer_client.display import (
    columns,
    count_text,
    evaluation_json,
    evaluation_text,
    interval_text,
    return_text,
)
from podracer_client.jobs import score_name
from podracer_client.names import short_name
from podracer_client.policies.folders import StoredPolicy
from podracer_core.errors import InvalidInput
from podracer_platform.jobs import broken_episodes

_TIMEOUT_S = 3600.0
_FRESH_EPISODES = 100
_SHOWN_EPISODES = 8


@dataclass(frozen=True, slots=True)
class EnsembleEvaluation:
    """rule: how they act together; `alone`: each policy's own evaluation and what it is, the best
    first."""

    rule: str
    together: agent_pb2.Evaluation
    alone: Sequence[evaluator_service_pb2.EvaluateCheckpointResponse]

    @property
    def median_alone(self) -> float:
        """Median of the policies' own means."""
        return statistics.median(response.evaluation.mean for response in self.alone)


def evaluate_alone(
    evaluator: EvaluatorServiceStub,
    policy: StoredPolicy,
    *,
    rule: str = "",
    episodes: int = 0,
    environment: environment_pb2.EnvironmentSpec | None = None,
) -> evaluator_service_pb2.EvaluateCheckpointResponse:
    """Evaluate a policy on fresh episodes; 0: again those of the evaluation that its job reports,
    else the stored ones, or 100 fresh ones if none are stored.

    `environment`: another one than that of the training.
    """
    request = evaluator_service_pb2.EvaluateCheckpointRequest(
        checkpoints=sources([policy.folder]),
        ensemble=rule,
        episodes=episodes,
        environment=environment,
    )
    if policy.confirmed is not None and not episodes:
        request.seeds.extend(policy.confirmed.seeds)
        response = evaluator.EvaluateCheckpoint(request, timeout=_TIMEOUT_S)
        response.stored.CopyFrom(policy.confirmed)
        if environment is None:
            pairs = zip(response.evaluation.returns, policy.confirmed.returns, strict=True)
            response.largest_difference = max(abs(now - then) for now, then in pairs)
        return response
    try:
        return evaluator.EvaluateCheckpoint(request, timeout=_TIMEOUT_S)
    except InvalidInput as error:
        if error.reason != "NO_STORED_EVALUATION":  # what was trained once more was never evaluated
            raise
        request.episodes = _FRESH_EPISODES
        return evaluator.EvaluateCheckpoint(request, timeout=_TIMEOUT_S)


def evaluate_together(
    evaluator: EvaluatorServiceStub,
    folders: Sequence[Path],
    *,
    rule: str = "",
    episodes: int = 0,
    environment: environment_pb2.EnvironmentSpec | None = None,
) -> EnsembleEvaluation:
    """Evaluate an ensemble on fresh episodes (0: 100), and each of its policies on the same ones.

    `rule`: mean or vote, empty: by action space; `environment`: another one than that of the first
    policy's training. Raises InvalidInput for policies that cannot act together."""
    request = evaluator_service_pb2.EvaluateCheckpointRequest(
        checkpoints=sources(folders),
        ensemble=rule,
        episodes=episodes or _FRESH_EPISODES,
        environment=environment,
    )
    together = evaluator.EvaluateCheckpoint(request, timeout=_TIMEOUT_S)
    alone = []
    for source in sources(folders):
        request = evaluator_service_pb2.EvaluateCheckpointRequest(
            checkpoints=[source], seeds=together.evaluation.seeds, environment=environment
        )
        alone.append(evaluator.EvaluateCheckpoint(request, timeout=_TIMEOUT_S))
    return EnsembleEvaluation(rule or rule_text(together.description), together.evaluation, alone)


def sources(folders: Sequence[Path]) -> list[evaluator_service_pb2.CheckpointSource]:
    """The folders as sources for a private evaluator."""
    return [evaluator_service_pb2.CheckpointSource(folder=str(folder)) for folder in folders]


def rule_text(description: evaluator_service_pb2.CheckpointDescription) -> str:
    """The rule by which policies of such an action space act together."""
    kind = description.environment_description.action_space.WhichOneof("kind")
    return "mean" if kind == "box" else "vote"


def alone_text(
    response: evaluator_service_pb2.EvaluateCheckpointResponse, arguments: Mapping[str, Any]
) -> str:
    """The evaluation of one policy, and how it differs from the stored one."""
    description, evaluation = response.description, response.evaluation
    lines = [
        f"policy      {short_name(description.agent)} ({description.algorithm}), "
        f"{_environment_name(description.environment)}, {count_text(description.env_steps)} "
        "environment steps",
    ]
    if arguments:
        lines.append(
            f"changed     {_arguments_text(arguments)}: this is not the stored evaluation again"
        )
    lines.append(f"{_title(description.environment, arguments):<12}{evaluation_text(evaluation)}")
    if evaluation.statistics:
        further = (f"{name} {value:.4g}" for name, value in sorted(evaluation.statistics.items()))
        lines.append(f"further     {', '.join(further)}")
    if broken := broken_episodes(evaluation):
        played = len(evaluation.returns) + broken
        why = evaluation.first_break or "no reason was given"
        lines.append(
            f"broken      {broken} of {played} episodes broke: {why}; each was played again"
        )
    if response.HasField("stored"):
        lines.append(f"stored      {evaluation_text(response.stored)}")
    if response.HasField("largest_difference"):
        lines.append(f"difference  {response.largest_difference:.3g} at most, episode by episode")
        episodes = list(
            zip(evaluation.seeds, response.stored.returns, evaluation.returns, strict=True)
        )
        lines += [
            f"  seed {seed:<20d} stored {old:12.4f}  now {new:12.4f}"
            for seed, old, new in episodes[:_SHOWN_EPISODES]
        ]
        if len(episodes) > _SHOWN_EPISODES:
            lines.append(f"  … and {len(episodes) - _SHOWN_EPISODES} more; --json has all")
    return "\n".join(lines) + "\n"


def together_text(found: EnsembleEvaluation, arguments: Mapping[str, Any]) -> str:
    """The evaluation of several policies that act together, and a row for each of them alone."""
    environment = found.alone[0].description.environment
    lines = [
        f"policies    {len(found.alone)}, together by {found.rule}, "
        f"{_environment_name(environment)}"
    ]
    if arguments:
        lines.append(f"changed     {_arguments_text(arguments)}")
    lines += [
        f"{_title(environment, arguments):<12}{evaluation_text(found.together)}",
        f"variance    {return_text(_variance(found.together))}",
        f"alone       {return_text(found.median_alone)} is the median of the means, in the same "
        "episodes:",
    ]
    rows = [
        (
            f"  {rank}",
            short_name(response.description.agent),
            response.description.algorithm,
            return_text(response.evaluation.mean),
            interval_text(response.evaluation.lower_bound, response.evaluation.upper_bound),
            return_text(_variance(response.evaluation)),
        )
        for rank, response in enumerate(found.alone, 1)
    ]
    titles = ("   ", "agent", "algorithm", "mean", "95 % interval", "variance")
    return (
        "\n".join([*lines, columns(titles, rows, right=("mean", "95 % interval", "variance"))])
        + "\n"
    )


def alone_json(
    response: evaluator_service_pb2.EvaluateCheckpointResponse, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """The evaluation of one policy."""
    stored, compared = response.HasField("stored"), response.HasField("largest_difference")
    return {
        **_policy_json(response.description),
        **_episodes_json(response.description.environment, response.evaluation, arguments),
        "stored_returns": list(response.stored.returns) if stored else None,
        "largest_difference": response.largest_difference if compared else None,
    }


def together_json(found: EnsembleEvaluation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The evaluation of several policies, and of each of these `members` alone."""
    members = [
        {
            **_policy_json(response.description),
            **evaluation_json(response.evaluation),
            "variance": _variance(response.evaluation),
            "returns": list(response.evaluation.returns),
        }
        for response in found.alone
    ]
    return {
        "ensemble": found.rule,
        **_episodes_json(found.alone[0].description.environment, found.together, arguments),
        "median_alone": found.median_alone,
        "members": members,
    }


def _policy_json(description: evaluator_service_pb2.CheckpointDescription) -> dict[str, Any]:
    return {
        "agent": description.agent,
        "algorithm": description.algorithm,
        "env_steps": description.env_steps,
    }


def _episodes_json(
    environment: environment_pb2.EnvironmentSpec,
    evaluation: agent_pb2.Evaluation,
    arguments: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "environment": _environment_name(environment),
        "set": dict(arguments),
        **evaluation_json(evaluation),
        "variance": _variance(evaluation),
        "returns": list(evaluation.returns),
        "lengths": list(evaluation.lengths),
        "seeds": list(evaluation.seeds),
    }


def _environment_name(environment: environment_pb2.EnvironmentSpec) -> str:
    return environment.id or environment.entry_point


def _title(environment: environment_pb2.EnvironmentSpec, arguments: Mapping[str, Any]) -> str:
    """`mean` of returns, or what else the environment's evaluations give."""
    name = score_name(environment, arguments)
    return "mean" if name == "return" else name


def _variance(evaluation: agent_pb2.Evaluation) -> float:
    return evaluation.standard_deviation**2


def _arguments_text(arguments: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items()
    )

"""Evaluation of a policy by an evaluator, or of an ensemble beside each of its policies."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from podracer.common.v1 import agent_pb2, environment_pb2
from podracer.evaluator.v1 import evaluator_service_pb2
from podracer.evaluator.v1.evaluator_service_pb2_grpc import EvaluatorServiceStub
from podracer_client.policies.folders import StoredPolicy
from podracer_core.errors import InvalidInput

__all__ = ["EnsembleEvaluation", "evaluate_alone", "evaluate_together", "rule_text", "sources"]

_TIMEOUT_S = 3600.0
_FRESH_EPISODES = 100


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

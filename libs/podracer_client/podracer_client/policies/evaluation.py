"""Evaluations of trained policies by a private evaluator, and their text; videos of policies."""

from __future__ import annotations

import base64
import hashlib
import json
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
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
from podracer_client.jobs import Client, score_name
from podracer_client.local import Connect, StateFolder, private_evaluator
from podracer_client.names import short_name
from podracer_client.policies.environment import Trust, bring_files, changed_environment
from podracer_client.policies.folders import StoredPolicy, policy_folders, require_harmless
from podracer_client.servers import DEFAULT_FOLDER
from podracer_core.errors import DataCorrupted, DeadlineExpired, InvalidInput
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


def write_pieces(pieces: Iterable[Any], output: Path) -> Any:
    """Write the file of ExportPolicy or RecordVideo, whole or not at all; its header.

    Raises DataCorrupted, InvalidInput when it cannot be written.
    """
    header: Any = None
    digest = hashlib.sha256()
    try:
        with tempfile.NamedTemporaryFile(
            prefix=f".{output.name}.", dir=output.absolute().parent
        ) as file:
            for piece in pieces:
                if piece.WhichOneof("part") == "header":
                    header = piece.header
                else:
                    digest.update(piece.data)
                    file.write(piece.data)
            if header is None or digest.hexdigest() != header.sha256:
                raise DataCorrupted("the file arrived incomplete; nothing was written")
            file.flush()
            Path(file.name).chmod(0o644)
            output.unlink(missing_ok=True)
            output.hardlink_to(file.name)
    except OSError as error:
        raise InvalidInput(f"cannot write {output}: {error.strerror}", path=output) from error
    return header


FORMATS = {
    ".mp4": evaluator_service_pb2.VIDEO_FORMAT_MP4,
    ".gif": evaluator_service_pb2.VIDEO_FORMAT_GIF,
}
_PAGE_TIMEOUT_S, _PAGE_STEPS, _PAGE_BYTES = 120.0, 1_000, 8 << 20


def record(
    policies: Sequence[str],
    output: Path,
    connect: Connect,
    state_folder: Path | None = None,
    *,
    best: int = 0,
    arguments: Mapping[str, Any] | None = None,
    only_own_code: bool = False,
    trusted: bool = False,
    timeout_s: float = _TIMEOUT_S,
    **wanted: Any,
) -> evaluator_service_pb2.VideoHeader:
    """Film one episode of policies, named as in `policy_folders`, into `output`, whose ending (a
    key of FORMATS) says in which form; `best` as there. `only_own_code`: see `film`; `trusted`: see
    `Trust`. `wanted` are more fields of RecordVideoRequest."""
    with policy_folders(policies, best, connect, state_folder) as folders:
        own = StateFolder.objects_of(state_folder or DEFAULT_FOLDER).resolve()
        if only_own_code and not folders[0].resolve().is_relative_to(own):
            require_harmless(folders[0], "the job", f"use `podracer video {policies[0]}`")
        with private_evaluator() as evaluator:
            bring_files(evaluator, folders[0], connect, Trust(state_folder, trusted))
            environment = changed_environment(folders[0], arguments or {})
            request = evaluator_service_pb2.RecordVideoRequest(
                checkpoints=sources(folders),
                environment=environment,
                format=FORMATS[output.suffix],
                **wanted,
            )
            pieces = evaluator.RecordVideo(request, timeout=timeout_s)
            header: evaluator_service_pb2.VideoHeader = write_pieces(pieces, output)
    return header


def film(policy: str, client: Client, state_folder: Path | None) -> tuple[str, str]:
    """Film a policy of the client's server, in at most two minutes, 1,000 steps and 8 MiB: a
    `data:` URL and a text.

    For pages, whose users have not named this policy: no code comes from the server. A policy that
    is not in the state folder of this machine is filmed only in environments that are installed
    here. Raises InvalidInput (UNTRUSTED_ENVIRONMENT, TOO_LARGE), DeadlineExpired, and as `record`.
    """
    limits: dict[str, Any] = {"timeout_s": _PAGE_TIMEOUT_S, "step_limit": _PAGE_STEPS}
    with tempfile.TemporaryDirectory(prefix="podracer-video-") as folder:
        output = Path(folder, "video.mp4")
        try:
            header = record(
                [policy],
                output,
                lambda: nullcontext(client),
                state_folder,
                only_own_code=True,
                **limits,
            )
        except DeadlineExpired as error:
            raise DeadlineExpired(
                f"the episode was not filmed within {_PAGE_TIMEOUT_S:g} s"
            ) from error
        if header.size_bytes > _PAGE_BYTES:
            raise InvalidInput(f"{video_text(header)} is too large for a page", reason="TOO_LARGE")
        return (
            f"data:video/mp4;base64,{base64.b64encode(output.read_bytes()).decode()}",
            video_text(header),
        )


def video_text(header: evaluator_service_pb2.VideoHeader) -> str:
    """`an episode of 500 steps, return 500.0; 48 KiB`."""
    cut = "" if header.complete else ", not to its end"
    steps = f"an episode of {header.frame_count - 1:,} steps{cut}"
    return (
        f"{steps}, return {return_text(header.episode_return)}; {header.size_bytes / 1024:,.0f} KiB"
    )

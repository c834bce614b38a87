"""`podracer evaluate`."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from podracer_client.command.options import EnsembleRule, EnsembleSize, Json, Policies, ServerOptions, with_server
from podracer_core.errors import InvalidInput

if TYPE_CHECKING:
    from podracer.common.v1 import agent_pb2, environment_pb2
    from podracer.evaluator.v1 import evaluator_service_pb2
    from podracer_client.policies.ensembles import EnsembleEvaluation

_TIMEOUT_S = 3600.0
_SHOWN_EPISODES = 8
_TOLERANCE = 1e-4


@with_server
def evaluate(
    server: ServerOptions,
    policies: Policies,
    ensemble: EnsembleSize = 0,
    rule: EnsembleRule = "",
    episodes: Annotated[
        int,
        typer.Option(
            min=0,
            max=10_000,
            metavar="N",
            help="Episodes with fresh seeds. 0: the stored evaluation's again; of several policies 100 fresh ones.",
        ),
    ] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Another argument of the environment, as in environment.kwargs of a job file; any number of them.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Evaluate a policy: its stored episodes once more, or fresh ones, or in a changed environment; or several that act
    together, beside each of them alone."""
    from podracer.evaluator.v1 import evaluator_service_pb2
    from podracer_client.local.evaluator import private_evaluator
    from podracer_client.policies.argument_overrides import parsed_arguments, with_arguments
    from podracer_client.policies.ensembles import FRESH_EPISODES, evaluate_together, sources
    from podracer_client.policies.environment_files import bring_files, trained_environment
    from podracer_client.policies.folders import policy_folders
    from podracer_core.catalogue.messages import environment_to_message

    arguments = parsed_arguments(settings or ())
    with (
        policy_folders(policies, ensemble, server.connect, server.folder) as folders,
        private_evaluator() as evaluator,
    ):
        bring_files(evaluator, folders[0], server.connect)
        changed = None
        if arguments:
            changed = environment_to_message(with_arguments(trained_environment(folders[0]), arguments))
        if len(folders) > 1:
            found = evaluate_together(evaluator, folders, rule=rule, episodes=episodes, environment=changed)
            _show_ensemble(found, arguments, json=json)
            return
        request = evaluator_service_pb2.EvaluateCheckpointRequest(
            checkpoints=sources(folders), ensemble=rule, episodes=episodes, environment=changed
        )
        try:
            response = evaluator.EvaluateCheckpoint(request, timeout=_TIMEOUT_S)
        except InvalidInput as error:
            if error.reason != "NO_STORED_EVALUATION":  # nobody has judged what was trained once more
                raise
            request.episodes = FRESH_EPISODES
            response = evaluator.EvaluateCheckpoint(request, timeout=_TIMEOUT_S)
    if json:
        _write_json(response, arguments)
    else:
        sys.stdout.write(evaluation_text(response, arguments))
    if response.HasField("largest_difference") and response.largest_difference > _TOLERANCE:
        sys.stderr.write(
            "podracer: the stored returns did not come again; was the policy trained on another kind of machine, "
            "or with another version of its environment?\n"
        )


def evaluation_text(
    response: evaluator_service_pb2.EvaluateCheckpointResponse, arguments: Mapping[str, Any] | None = None
) -> str:
    """For people; `arguments` are those that the environment did not have in training."""
    from podracer_client.display.numbers import count_text
    from podracer_client.names import short_name

    description, evaluation = response.description, response.evaluation
    environment = description.environment.id or description.environment.entry_point
    lines = [
        f"policy      {short_name(description.agent)} ({description.algorithm}), {environment}, "
        f"{count_text(description.env_steps)} environment steps",
    ]
    if arguments:
        lines.append(f"changed     {_told(arguments)}: this is not the stored evaluation again")
    lines.append(f"{_title(description.environment, arguments):<12}{_statistics(evaluation)}")
    if evaluation.statistics:
        further = (f"{name} {value:.4g}" for name, value in sorted(evaluation.statistics.items()))
        lines.append(f"further     {', '.join(further)}")
    if response.HasField("stored"):
        lines.append(f"stored      {_statistics(response.stored)}")
    if response.HasField("largest_difference"):
        lines.append(f"difference  {response.largest_difference:.3g} at most, episode by episode")
        episodes = list(zip(evaluation.seeds, response.stored.returns, evaluation.returns, strict=True))
        lines += [
            f"  seed {seed:<20d} stored {old:12.4f}  now {new:12.4f}" for seed, old, new in episodes[:_SHOWN_EPISODES]
        ]
        if len(episodes) > _SHOWN_EPISODES:
            lines.append(f"  … and {len(episodes) - _SHOWN_EPISODES} more; --json has all")
    return "\n".join(lines) + "\n"


def ensemble_text(found: EnsembleEvaluation, arguments: Mapping[str, Any] | None = None) -> str:
    """For people; `arguments` as of `evaluation_text`."""
    from podracer_client.display.listing import columns
    from podracer_client.display.numbers import return_text
    from podracer_client.names import short_name

    environment = found.alone[0].description.environment
    lines = [f"policies    {len(found.alone)}, together by {found.rule}, {environment.id or environment.entry_point}"]
    if arguments:
        lines.append(f"changed     {_told(arguments)}")
    lines += [
        f"{_title(environment, arguments):<12}{_statistics(found.together)}",
        f"variance    {return_text(_variance(found.together))}",
        f"alone       {return_text(found.median_alone)} is the median of the means, in the same episodes:",
    ]
    rows = []
    for rank, response in enumerate(found.alone, 1):
        one = response.evaluation
        interval = f"{return_text(one.lower_bound)} to {return_text(one.upper_bound)}"
        agent = short_name(response.description.agent)
        values = (return_text(one.mean), interval, return_text(_variance(one)))
        rows.append((f"  {rank}", agent, response.description.algorithm, *values))
    titles = ("   ", "agent", "algorithm", "mean", "95 % interval", "variance")
    return "\n".join([*lines, columns(titles, rows, right=("mean", "95 % interval", "variance"))]) + "\n"


def _title(environment: environment_pb2.EnvironmentSpec, arguments: Mapping[str, Any] | None) -> str:
    """`mean` of returns, or what else the environment's evaluations give."""
    from podracer_client.display.score import score_name

    name = score_name(environment, arguments)
    return "mean" if name == "return" else name


def _statistics(evaluation: agent_pb2.Evaluation) -> str:
    from podracer_client.display.numbers import return_text

    return (
        f"{return_text(evaluation.mean)} (95 % interval {return_text(evaluation.lower_bound)} to "
        f"{return_text(evaluation.upper_bound)}, {len(evaluation.returns)} episodes)"
    )


def _variance(evaluation: agent_pb2.Evaluation) -> float:
    return evaluation.standard_deviation**2


def _told(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={json_format.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())


def _show_ensemble(found: EnsembleEvaluation, arguments: Mapping[str, Any], *, json: bool) -> None:
    from podracer_client.display.messages import evaluation_json, write_json

    if not json:
        sys.stdout.write(ensemble_text(found, arguments))
        return
    together, environment = found.together, found.alone[0].description.environment
    members = [
        {
            "agent": response.description.agent,
            "algorithm": response.description.algorithm,
            "env_steps": response.description.env_steps,
            **evaluation_json(response.evaluation),
            "variance": _variance(response.evaluation),
            "returns": list(response.evaluation.returns),
        }
        for response in found.alone
    ]
    write_json(
        {
            "event": "evaluation",
            "ensemble": found.rule,
            "environment": environment.id or environment.entry_point,
            "set": dict(arguments),
            **evaluation_json(together),
            "variance": _variance(together),
            "returns": list(together.returns),
            "lengths": list(together.lengths),
            "seeds": list(together.seeds),
            "median_alone": found.median_alone,
            "members": members,
        }
    )


def _write_json(response: evaluator_service_pb2.EvaluateCheckpointResponse, arguments: Mapping[str, Any]) -> None:
    from podracer_client.display.messages import evaluation_json, write_json

    description, evaluation = response.description, response.evaluation
    compared = response.HasField("largest_difference")
    write_json(
        {
            "event": "evaluation",
            "agent": description.agent,
            "algorithm": description.algorithm,
            "environment": description.environment.id or description.environment.entry_point,
            "set": dict(arguments),
            "env_steps": description.env_steps,
            **evaluation_json(evaluation),
            "variance": _variance(evaluation),
            "returns": list(evaluation.returns),
            "lengths": list(evaluation.lengths),
            "seeds": list(evaluation.seeds),
            "stored_returns": list(response.stored.returns) if response.HasField("stored") else None,
            "largest_difference": response.largest_difference if compared else None,
        }
    )

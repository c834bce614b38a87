"""`podracer evaluate`."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from podracer_client.command.options import Checkpoint, Json, ServerOptions, with_server

if TYPE_CHECKING:
    from podracer.evaluator.v1 import evaluator_service_pb2

_TIMEOUT_S = 3600.0
_SHOWN_EPISODES = 8
_TOLERANCE = 1e-4


@with_server
def evaluate(
    server: ServerOptions,
    checkpoint: Checkpoint,
    episodes: Annotated[
        int,
        typer.Option(
            min=0, max=10_000, metavar="N", help="Episodes with fresh seeds. 0: the stored evaluation's again."
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
    """Evaluate a policy: its stored episodes once more, or fresh ones, or in a changed environment."""
    from podracer.evaluator.v1 import evaluator_service_pb2
    from podracer_client.command.other_arguments import parsed_arguments, with_arguments
    from podracer_client.environment_files import bring_files, trained_environment
    from podracer_client.local.evaluator import private_evaluator
    from podracer_client.policies import checkpoint_folder
    from podracer_core.catalogue.messages import environment_to_message

    arguments = parsed_arguments(settings or ())
    with checkpoint_folder(checkpoint, server.connect) as folder, private_evaluator() as evaluator:
        bring_files(evaluator, folder, server.connect)
        source = evaluator_service_pb2.CheckpointSource(folder=str(folder))
        request = evaluator_service_pb2.EvaluateCheckpointRequest(checkpoints=[source], episodes=episodes)
        if arguments:
            changed = with_arguments(trained_environment(folder), arguments)
            request.environment.CopyFrom(environment_to_message(changed))
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
    from podracer_client.display.numbers import count_text, return_text
    from podracer_client.names import short_name

    description, evaluation = response.description, response.evaluation
    environment = description.environment.id or description.environment.entry_point
    lines = [
        f"policy      {short_name(description.agent)} ({description.algorithm}), {environment}, "
        f"{count_text(description.env_steps)} environment steps",
    ]
    if arguments:
        told = ", ".join(f"{name}={json_format.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
        lines.append(f"changed     {told}: this is not the stored evaluation again")
    lines.append(
        f"mean        {return_text(evaluation.mean)} (95 % interval {return_text(evaluation.lower_bound)} to "
        f"{return_text(evaluation.upper_bound)}, {len(evaluation.returns)} episodes)"
    )
    if response.HasField("stored"):
        stored = response.stored
        lines.append(
            f"stored      {return_text(stored.mean)} (95 % interval {return_text(stored.lower_bound)} to "
            f"{return_text(stored.upper_bound)}, {len(stored.returns)} episodes)"
        )
    if response.HasField("largest_difference"):
        lines.append(f"difference  {response.largest_difference:.3g} at most, episode by episode")
        episodes = list(zip(evaluation.seeds, response.stored.returns, evaluation.returns, strict=True))
        lines += [
            f"  seed {seed:<20d} stored {old:12.4f}  now {new:12.4f}" for seed, old, new in episodes[:_SHOWN_EPISODES]
        ]
        if len(episodes) > _SHOWN_EPISODES:
            lines.append(f"  … and {len(episodes) - _SHOWN_EPISODES} more; --json has all")
    return "\n".join(lines) + "\n"


def _write_json(response: evaluator_service_pb2.EvaluateCheckpointResponse, arguments: Mapping[str, Any]) -> None:
    from podracer_client.command.messages import evaluation_json, write_json

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
            "returns": list(evaluation.returns),
            "lengths": list(evaluation.lengths),
            "seeds": list(evaluation.seeds),
            "stored_returns": list(response.stored.returns) if response.HasField("stored") else None,
            "largest_difference": response.largest_difference if compared else None,
        }
    )

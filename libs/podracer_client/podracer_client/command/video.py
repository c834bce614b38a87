"""`podracer video`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from podracer_client.command.options import (
    EnsembleRule,
    EnsembleSize,
    Json,
    Policies,
    ServerOptions,
    Settings,
    Trusted,
    with_server,
)
from podracer_client.display.output import write_json
from podracer_client.files import require_writable
from podracer_client.names import short_name
from podracer_core.errors import InvalidInput

if TYPE_CHECKING:
    from podracer.evaluator.v1 import evaluator_service_pb2


@with_server
def video(
    server: ServerOptions,
    policies: Policies,
    ensemble: EnsembleSize = 0,
    rule: EnsembleRule = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file to write, .mp4 or .gif.",
            show_default="POLICY.mp4",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the episode.")] = 0,
    steps: Annotated[
        int,
        typer.Option(
            min=0,
            max=100_000,
            metavar="N",
            help="The most steps to film. 0: 10,000.",
            show_default=False,
        ),
    ] = 0,
    settings: Settings = None,
    trust: Trusted = False,
    json: Json = False,
) -> None:
    """Film one episode of a policy or an ensemble. Needs an environment that draws pictures."""
    output = output or Path(f"{_title(policies[0])}.mp4")
    if output.suffix not in (".mp4", ".gif"):
        raise InvalidInput(
            f"--output {output}: expected a name that ends with .mp4 or .gif", path=output
        )
    require_writable(output)

    from podracer_client.policies.environment import parsed_arguments
    from podracer_client.policies.recording import record, video_text

    arguments = parsed_arguments(settings or ())
    header = record(
        *(policies, output, server.connect, server.folder),
        best=ensemble,
        arguments=arguments,
        trusted=trust,
        ensemble=rule,
        seed=seed,
        step_limit=steps,
    )
    if json:
        write_json({"event": "video", "path": str(output), **video_json(header)})
    else:
        sys.stdout.write(f"wrote {output} ({video_text(header)})\n")


def video_json(header: evaluator_service_pb2.VideoHeader) -> dict[str, object]:
    """A video's size, length, return, agent and environment, as JSON values."""
    return {
        "size_bytes": header.size_bytes,
        "steps": header.frame_count - 1,
        "return": header.episode_return,
        "complete": header.complete,
        "agent": header.description.agent,
        "environment": header.description.environment.id
        or header.description.environment.entry_point,
    }


def _title(policy: str) -> str:
    """`pendulum` for a job, and for `projects/default/jobs/pendulum/checkpoints/best`; a folder's
    own name."""
    policy = policy.rstrip("/")
    title = policy.split("/")[3] if policy.endswith("/checkpoints/best") else short_name(policy)
    return title.strip(".") or "policy"

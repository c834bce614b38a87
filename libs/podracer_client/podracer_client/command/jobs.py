"""`podracer jobs`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from podracer_client.command.options import Json, ServerOptions, with_server

if TYPE_CHECKING:
    from podracer.orchestrator.v1 import job_pb2


@with_server
def jobs(
    server: ServerOptions,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only jobs in this state; may be repeated.")
    ] = None,
    experiment: Annotated[str, typer.Option(metavar="NAME", help="Only jobs of this experiment.")] = "",
    matching: Annotated[
        str,
        typer.Option(
            "--filter",
            metavar="TEXT",
            help="Only jobs for which this is so: 'state=RUNNING AND environment=CartPole-v1 AND labels.team!=vision "
            "AND create_time>=2026-01-31T00:00:00Z'.",
        ),
    ] = "",
    json: Json = False,
) -> None:
    """List jobs, newest first; of a state folder also when nothing runs there."""
    from podracer_client.display.listing import columns
    from podracer_client.display.messages import job_json, write_json
    from podracer_client.display.numbers import count_text, return_text, time_text
    from podracer_client.names import short_name

    with server.read() as client:
        found = [job.message for job in client.jobs([_state(text) for text in state or ()], matching=matching)]
    if experiment:
        from podracer_core.jobs.experiment import EXPERIMENT_LABEL

        found = [message for message in found if message.spec.labels.get(EXPERIMENT_LABEL) == experiment]
    if json:
        for message in found:
            write_json(job_json(message))
        return
    titles = ("job", "state", "environment", "best", "target", "steps", "agents", "created")
    rows = []
    for message in found:
        values = job_json(message)
        rows.append(
            (
                short_name(message.name),
                _state_text(message),
                values["environment"],
                _best_text(message, values["best_return"]),
                return_text(values["target_return"]),
                count_text(values["env_steps"]),
                str(values["agents"]),
                time_text(message.create_time),
            )
        )
    sys.stdout.write(columns(titles, rows, right=("best", "target", "steps", "agents")) + "\n")


def _state_text(message: job_pb2.Job) -> str:
    """With the generation that a continuous job is at."""
    from podracer_client.display.snapshot import state_text

    state = state_text(message.state)
    if not message.HasField("continuous_status"):
        return state
    return f"{state}, generation {message.continuous_status.generation}"


def _best_text(message: job_pb2.Job, best: float | None) -> str:
    """With what it is, where it is no return."""
    from podracer_client.display.numbers import return_text
    from podracer_client.display.score import score_name

    name = score_name(message.spec.environment)
    return return_text(best) if best is None or name == "return" else f"{name} {return_text(best)}"


def _state(text: str) -> job_pb2.JobState.ValueType:
    from podracer.orchestrator.v1 import job_pb2

    states = {name.removeprefix("JOB_STATE_"): value for name, value in job_pb2.JobState.items() if value}
    if text.upper() not in states:
        raise typer.BadParameter(f"{text!r} is no state; expected one of {', '.join(states)}", param_hint="--state")
    return states[text.upper()]

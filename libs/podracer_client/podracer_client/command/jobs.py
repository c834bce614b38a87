"""`podracer jobs`, `job`, `cancel`, `delete` and `scale`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from podracer_client.command.options import JobName, Json, ServerOptions, with_server
from podracer_client.display.output import columns, count_text, return_text, write_json
from podracer_client.names import best_checkpoint_name, short_name, time_text

if TYPE_CHECKING:
    from podracer.orchestrator.v1 import job_pb2

_TEAMS = ", or teams where an agent has several learners"


@with_server
def jobs(
    server: ServerOptions,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only jobs in this state; may be repeated."),
    ] = None,
    experiment: Annotated[
        str, typer.Option(metavar="NAME", help="Only jobs of this experiment.")
    ] = "",
    matching: Annotated[
        str,
        typer.Option(
            "--filter",
            metavar="TEXT",
            help="Only jobs that match: 'state=RUNNING AND environment=CartPole-v1 AND "
            "labels.team!=vision AND create_time>=2026-01-31T00:00:00Z'.",
        ),
    ] = "",
    json: Json = False,
) -> None:
    """List jobs, newest first. Needs no running server for a state folder."""
    from podracer_client.display.messages import job_json

    with server.read() as client:
        found = [
            job.message
            for job in client.jobs([_state(text) for text in state or ()], matching=matching)
        ]
    if experiment:
        from podracer_platform.jobs.experiment import EXPERIMENT_LABEL

        found = [
            message for message in found if message.spec.labels.get(EXPERIMENT_LABEL) == experiment
        ]
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
                _best_text(message, values["best_score"]),
                return_text(values["target_return"]),
                count_text(values["env_steps"]),
                str(values["agents"]),
                time_text(message.create_time),
            )
        )
    sys.stdout.write(columns(titles, rows, right=("best", "target", "steps", "agents")) + "\n")


@with_server
def job(server: ServerOptions, name: JobName, json: Json = False) -> None:
    """Show one job: its figures, pods and latest events. Needs no running server for a state
    folder."""
    from podracer_client.display.displays import present
    from podracer_client.display.messages import job_json
    from podracer_client.display.summary import JobSummary
    from podracer_client.jobs.history import Pod

    with server.read() as client:
        found = client.job(name)
        pods = found.pods()
        events = found.latest_events()
    preparation = found.message.environment_description.preparation
    if json:
        write_json(job_json(found.message) | {"preparation": preparation or None})
        return
    checkpoint = best_checkpoint_name(found.name) if found.progress.best.checkpoint.prefix else ""
    lines = JobSummary(found.message, checkpoint).lines()
    if preparation:
        lines.append(f"prepared     {preparation}")
    for pod in present(list(map(Pod.of, pods))):
        words = (pod.name, pod.state.lower(), pod.layout, " ".join(pod.agents), pod.message)
        lines.append(f"pod          {'  '.join(filter(None, words))}")
    lines += [
        f"event        {time_text(event.time)}  {event.kind}: {event.message}" for event in events
    ]
    sys.stdout.write("\n".join(lines) + "\n")


@with_server
def cancel(server: ServerOptions, job: JobName) -> None:
    """Cancel a job. Its results stay."""
    with server.connect() as client:
        cancelled = client.job(job).cancel()
    sys.stdout.write(f"{cancelled.name}: {cancelled.state}\n")


@with_server
def delete(server: ServerOptions, job: JobName) -> None:
    """Delete an ended job, its leaderboard and its checkpoints; of a continuous job also its
    generations."""
    with server.connect() as client:
        found = client.job(job)
        found.delete()
    sys.stdout.write(f"deleted {found.name}\n")


@with_server
def scale(
    server: ServerOptions,
    job: JobName,
    most: Annotated[
        int | None,
        typer.Option("--max", metavar="N", help=f"Pods at most{_TEAMS}.", show_default="as it is"),
    ] = None,
    least: Annotated[
        int | None,
        typer.Option("--min", metavar="N", help=f"Pods at least{_TEAMS}.", show_default="as it is"),
    ] = None,
) -> None:
    """Change how many pods may work for a job. For a running job, pods join, or finish their update
    and leave."""
    if most is None and least is None:
        raise typer.BadParameter(
            "say how many pods: --max N, --min N, or both", param_hint="--max / --min"
        )
    with server.connect() as client:
        scaled = client.job(job).scale(least=least, most=most)
    count = scaled.message.spec.pod
    sys.stdout.write(
        f"{scaled.name}: {pod_count_text(count.min_count, count.max_count, count.learners)}\n"
    )


def pod_count_text(least: int, most: int, learners: int) -> str:
    """`pod.count` in words; with several learners it is one of teams."""
    number = str(most) if least == most else f"{least} to {most}"
    if learners > 1:
        return f"{number} {'team' if most == 1 else 'teams'} of {learners} pods"
    return f"{number} {'pod' if most == 1 else 'pods'}"


def _state_text(message: job_pb2.Job) -> str:
    """The state, or what came of a job that has ended; with the generation of a continuous job."""
    from podracer_client.display.summary import result_word

    state = result_word(message).replace("_", " ")
    if not message.HasField("continuous_status"):
        return state
    return f"{state}, generation {message.continuous_status.generation}"


def _best_text(message: job_pb2.Job, best: float | None) -> str:
    """The best score, with its name if it is not a return."""
    from podracer_client.jobs.score import score_name

    name = score_name(message.spec.environment)
    return return_text(best) if best is None or name == "return" else f"{name} {return_text(best)}"


def _state(text: str) -> job_pb2.JobState.ValueType:
    from podracer.orchestrator.v1 import job_pb2

    states = {
        name.removeprefix("JOB_STATE_"): value for name, value in job_pb2.JobState.items() if value
    }
    if text.upper() not in states:
        raise typer.BadParameter(
            f"{text!r} is no state; expected one of {', '.join(states)}", param_hint="--state"
        )
    return states[text.upper()]

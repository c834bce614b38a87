"""Jobs on a server: `podracer submit`, `watch`, `jobs`, `job`, `cancel`, `delete`, `scale`, and
`agent`, what can be done to the agents of a running job."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from podracer_client.command.options import (
    JobFile,
    JobName,
    Json,
    Plain,
    ServerOptions,
    choose_display,
    with_server,
)
from podracer_client.display import columns, count_text, return_text, write_json
from podracer_client.names import best_checkpoint_name, short_name, time_text
from podracer_core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from podracer.orchestrator.v1 import job_pb2
    from podracer_client.jobs import Client, Job
    from podracer_platform.jobs import Experiment

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
    from podracer_client.display import job_json

    with server.read() as client:
        found = [
            job.message
            for job in client.jobs([_state(text) for text in state or ()], matching=matching)
        ]
    if experiment:
        from podracer_platform.jobs import EXPERIMENT_LABEL

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
    from podracer_client.display import JobSummary, job_json, present
    from podracer_client.jobs import Pod

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
    from podracer_client.display import result_word

    state = result_word(message).replace("_", " ")
    if not message.HasField("continuous_status"):
        return state
    return f"{state}, generation {message.continuous_status.generation}"


def _best_text(message: job_pb2.Job, best: float | None) -> str:
    """The best score, with its name if it is not a return."""
    from podracer_client.jobs import score_name

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


_SUBMISSION_LENGTH = 16


@with_server
def submit(
    server: ServerOptions,
    job_file: JobFile,
    job_id: Annotated[
        str,
        typer.Option(
            "--id",
            metavar="ID",
            help="The job's id. Jobs of a matrix are named ID-1, ID-2, …",
            show_default="made up",
        ),
    ] = "",
    watch: Annotated[bool, typer.Option("--watch", help="Watch the job until it ends.")] = False,
    submission: Annotated[
        str,
        typer.Option(
            metavar="ID",
            help="Continue an interrupted submission by the id that it printed.",
            show_default="a new one",
        ),
    ] = "",
    plain: Plain = False,
    json: Json = False,
) -> None:
    """Submit a job, or all jobs of a matrix, to a server and print their names."""
    from podracer_platform.jobs import load_experiment

    experiment = load_experiment(job_file)
    _check_submission(submission)

    from podracer_client.display import job_json

    with server.connect() as client:
        jobs = []
        many = experiment.axes or submission
        for job in (
            _submit_all(client, experiment, submission, job_id)
            if many
            else [client.submit(experiment.jobs[0], job_id=job_id)]
        ):
            jobs.append(job)
            if json:
                write_json(job_json(job.message))
            else:
                sys.stdout.write(f"{job.name}\n")
                sys.stdout.flush()
        if not watch:
            return
        if experiment.axes:
            raise typer.Exit(_watch_all(client, experiment, jobs, json=json))
        raise typer.Exit(_watch_job(server, client, jobs[0], plain=plain, json=json))


@with_server
def watch(server: ServerOptions, job: JobName, plain: Plain = False, json: Json = False) -> None:
    """Watch a job until it ends. Ctrl-C leaves it running."""
    with server.connect() as client:
        raise typer.Exit(_watch_job(server, client, client.job(job), plain=plain, json=json))


def _check_submission(submission: str) -> None:
    if submission and not (
        submission.isalnum() and submission.isascii() and len(submission) <= 2 * _SUBMISSION_LENGTH
    ):
        raise InvalidInput(
            f"--submission {submission!r} is not a submission id; expected the one that `podracer "
            "submit` printed",
            reason="INVALID_SUBMISSION",
        )


def _submit_all(
    client: Client, experiment: Experiment, submission: str, job_id: str
) -> Iterable[Job]:
    """Submit all jobs, or none if one would be refused; after an interruption, `submission`
    completes the rest."""
    from podracer_client.jobs import check_jobs, create_jobs

    specs = check_jobs(client, experiment.jobs)
    submission = submission or secrets.token_hex(_SUBMISSION_LENGTH)
    again = f"if interrupted, repeat the command with --submission {submission} to continue"
    sys.stderr.write(f"submitting {len(specs)} jobs; {again}\n")
    return create_jobs(client, specs, submission, job_id=job_id)


def _watch_all(client: Client, experiment: Experiment, jobs: list[Job], *, json: bool) -> int:
    """Show all jobs until the last one has ended; the exit code."""
    from podracer_client.display import choose_experiment_display, exit_code
    from podracer_client.jobs import follow_jobs

    display = choose_experiment_display(experiment.axes, json=json)
    latest = {job.name: job for job in jobs}
    for update in follow_jobs(client, list(latest)):
        display.show(job.message for job in update.values())
        latest = dict(update)
    display.finish([job.message for job in latest.values()], [])
    return exit_code(job.message for job in latest.values())


def _watch_job(server: ServerOptions, client: Client, job: Job, *, plain: bool, json: bool) -> int:
    """Show a job until it has ended; the exit code. `server` is what the user said to reach
    `client`'s servers."""
    from podracer_client.display import JobSummary, exit_code, next_steps, show_update

    with choose_display(plain=plain, json=json) as display:
        parts = ("agents",) if display.wants_agents and client.connection.leaderboard else ()
        for update in job.watch(parts=parts):
            job.message = update.job
            show_update(display, update)
        has_policy = job.progress.best.checkpoint.prefix or job.message.HasField("unjudged")
        checkpoint = best_checkpoint_name(job.name) if has_policy else ""
        options = server.arguments()
        commands = next_steps(
            checkpoint, [short_name(job.name), *options], checkpoint_options=options
        )
        display.finish(JobSummary(job.message, checkpoint), commands)
    return exit_code([job.message])


agent_application = typer.Typer(
    no_args_is_help=True, help="Act on an agent of a running job: fork, pin or stop it."
)

AgentName = Annotated[
    str, typer.Argument(metavar="AGENT", help="The agent's id or name.", show_default=False)
]


@agent_application.command()
@with_server
def fork(
    server: ServerOptions,
    job: JobName,
    agent: AgentName,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A hyperparameter to change, within the algorithm's bounds; may be repeated.",
        ),
    ] = None,
) -> None:
    """Make a new agent from an agent's weights, with changed hyperparameters. The new agent is
    trained next."""
    from podracer_client.policies import parsed_arguments

    hyperparameters = parsed_arguments(settings or (), "a hyperparameter")
    with server.connect() as client:
        made = client.job(job).fork_agent(agent, hyperparameters)
    name = (
        short_name(made)
        if made
        else "the leaderboard is unreachable; the job's events will name the new agent"
    )
    sys.stdout.write(f"forked {short_name(agent)}: {name}\n")


@agent_application.command()
@with_server
def pin(server: ServerOptions, job: JobName, agent: AgentName) -> None:
    """Protect an agent from being replaced."""
    with server.connect() as client:
        client.job(job).pin_agent(agent)
    sys.stdout.write(f"pinned {short_name(agent)}\n")


@agent_application.command()
@with_server
def unpin(server: ServerOptions, job: JobName, agent: AgentName) -> None:
    """Allow an agent to be replaced again."""
    with server.connect() as client:
        client.job(job).unpin_agent(agent)
    sys.stdout.write(f"unpinned {short_name(agent)}\n")


@agent_application.command()
@with_server
def stop(server: ServerOptions, job: JobName, agent: AgentName) -> None:
    """Stop training an agent at the end of its round. Its checkpoints and results stay."""
    with server.connect() as client:
        client.job(job).stop_agent(agent)
    sys.stdout.write(f"stopped {short_name(agent)}\n")

"""On this machine: `podracer run`, `up`, `demo` and `doctor`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from podracer_client.command.options import (
    JobFile,
    Json,
    MaxPods,
    Plain,
    ServerOptions,
    StateFolderOption,
    Web,
    choose_display,
)
from podracer_client.command.report import web
from podracer_client.display import write_json, write_table
from podracer_core.errors import InvalidInput, PreconditionFailed

if TYPE_CHECKING:
    from podracer_client.local import ServiceOptions
    from podracer_platform.jobs import Experiment

JOB = """\
name: demo
environment: {id: CartPole-v1}
objective: {target_return: 475, statistic: mean, max_duration: 2m}
search:
  algorithms: [ppo]
  space:
    {learning_rate: {log_uniform: [2.0e-3, 1.0e-2]}, horizon: 32, minibatch_size: 256, epochs: 8}
evolution: {population: 8, leaderboard_size: 4, round: {seconds: 10}}
pod: {count: 1, layout: fused, members: 8, envs_per_member: 16}
evaluation: {episodes: 32}
"""


def run(
    job_file: JobFile,
    folder: StateFolderOption = Path("runs"),
    plain: Plain = False,
    json: Json = False,
    max_pods: MaxPods = 0,
    web: Web = False,
) -> None:
    """Run a job, or all jobs of a matrix, on this machine. Continues an interrupted run of the same
    state folder."""
    from podracer_platform.jobs import load_experiment

    experiment = load_experiment(job_file)  # before anything is made or started
    _refuse_continuous(experiment, job_file)

    from podracer_client.local import ServiceOptions, run_job
    from podracer_client.servers import DEFAULT_FOLDER

    options = ServiceOptions(max_pods=max_pods)
    elsewhere = ["--dir", str(folder)] if folder != DEFAULT_FOLDER else []
    again = ["run", str(job_file), *elsewhere]
    with _live_page(folder) if web else nullcontext():
        if experiment.axes:
            report = ["report", experiment.name, *elsewhere]
            raise typer.Exit(_run_all(experiment, folder, options, again, report, json=json))
        (spec,) = experiment.jobs
        display = choose_display(plain=plain, json=json)
        raise typer.Exit(run_job(spec, folder, display, options, again))


def up(
    folder: StateFolderOption = Path("runs"),
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where the orchestrator listens.")
    ] = "127.0.0.1:7700",
    leaderboard_listen: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where the leaderboard listens.")
    ] = "127.0.0.1:7701",
    max_pods: MaxPods = 0,
) -> None:
    """Run the services on this machine until Ctrl-C, for jobs from `podracer submit`."""
    from podracer_client.local import ServiceOptions, keep_up

    raise typer.Exit(keep_up(folder, ServiceOptions(listen, leaderboard_listen, max_pods)))


@contextmanager
def _live_page(folder: Path) -> Iterator[None]:
    """Serve the live page; it finds the services once they are up."""
    from podracer_client.jobs import Client
    from podracer_client.web import serve_page

    with serve_page(lambda: Client.connect(folder=folder), state_folder=folder) as url:
        sys.stderr.write(f"live page: {url}\n")
        yield


def _refuse_continuous(experiment: Experiment, job_file: Path) -> None:
    """A continuous job never ends, so this command would not either."""
    if any(spec.continuous is not None for spec in experiment.jobs):
        instead = f"start a server with `podracer up`, then `podracer submit {job_file}`"
        raise InvalidInput(
            f"{job_file}: continuous: such a job never ends; {instead}", reason="CONTINUOUS_JOB"
        )


def _run_all(
    experiment: Experiment,
    folder: Path,
    options: ServiceOptions,
    again: list[str],
    report: list[str],
    *,
    json: bool,
) -> int:
    from podracer_client.display import choose_experiment_display, program_words
    from podracer_client.local import run_experiment

    display = choose_experiment_display(experiment.axes, json=json)
    again_text, report_text = (shlex.join([*program_words(), *words]) for words in (again, report))
    return run_experiment(experiment, folder, display, options, [report_text], again_text)


def demo(
    folder: Annotated[Path, typer.Option("--dir", metavar="DIR", help="The state folder.")] = Path(
        "podracer-demo"
    ),
    plain: Plain = False,
    max_pods: MaxPods = 0,
    page: Annotated[
        bool | None,
        typer.Option(
            "--open/--no-open",
            help="At the end, show the champion on a page until Ctrl-C, or write a video of it "
            "into DIR.",
            show_default="on a terminal",
        ),
    ] = None,
) -> None:
    """Train eight agents on CartPole, which takes seconds, and film the best one."""
    from podracer_client.display import TARGET_MISSED
    from podracer_client.local import ServiceOptions, run_job
    from podracer_platform.jobs import parse_job
    from podracer_platform.rpc import last_part

    display = choose_display(plain=plain, json=False)
    again = ["demo", "--dir", str(folder)]
    code = run_job(parse_job(JOB), folder, display, ServiceOptions(max_pods=max_pods), again)
    summary = display.summary
    if code not in (0, TARGET_MISSED) or summary is None or not summary.checkpoint:
        raise typer.Exit(code)
    shown = (sys.stdout.isatty() if page is None else page) and _show(
        last_part(summary.job.name), folder
    )
    if not shown:
        _film(summary.checkpoint, folder)
    raise typer.Exit(code)


def _film(checkpoint: str, folder: Path) -> None:
    from podracer_client.policies import record, video_text

    output = folder / "champion.mp4"
    sys.stderr.write("filming the champion\n")
    try:
        header = record([checkpoint], output, ServerOptions(folder).connect, folder)
    except PreconditionFailed as error:  # what encodes videos is an extra
        sys.stderr.write(f"podracer: no video: {error.message}\n")
        return
    sys.stdout.write(f"video        {output}: {video_text(header)}\n")


def _show(job: str, folder: Path) -> bool:
    """The champion on the page in the browser, until Ctrl-C. False without the extra that serves
    it."""
    server = {each.name: each.default for each in fields(ServerOptions)}
    try:
        web(
            **server
            | {"folder": folder, "open_browser": True, "view": f"/jobs/{job}/leaderboard/champion"}
        )
    except InvalidInput as error:
        sys.stderr.write(f"podracer: no page: {error.message}\n")
        return False
    return True


def doctor(
    folder: StateFolderOption = Path("runs"),
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Check this object store too (a URL as in PODRACER_STORE).",
            envvar="PODRACER_STORE",
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Check what this machine has and lacks. Exits with 1 if something required is missing."""
    from podracer_client.local import examine

    findings = examine(folder, store)
    if json:
        for each in findings:
            advice = each.advice if each.state != "ok" else ""
            write_json(
                {
                    "name": each.name,
                    "state": each.state,
                    "found": each.found or None,
                    "advice": advice or None,
                }
            )
    else:
        rows = [
            (each.name, each.state, each.found if each.state == "ok" else each.advice)
            for each in findings
        ]
        write_table(("what", "state", "found, or what to do"), rows)
    if any(each.state == "missing" for each in findings):
        raise typer.Exit(1)

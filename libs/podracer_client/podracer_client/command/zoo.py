"""`podracer zoo`: jobs that are known to work, with what they cost."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from podracer_client.command.options import Json, MaxPods, Plain, StateFolderOption, Web
from podracer_client.command.run import run

if TYPE_CHECKING:
    from podracer_client.zoo import Entry

TITLES = (
    "name",
    "environment",
    "algorithms",
    "target",
    "return (95 % interval)",
    "steps",
    "device time",
    "time",
)

application = typer.Typer(
    no_args_is_help=True, help="Jobs that are known to work, and what they cost."
)


@application.command("list")
def list_entries(json: Json = False) -> None:
    """List the jobs with the result and the cost of a run on two CPU cores; --json has the whole
    cards."""
    from podracer_client.display import write_json, write_table
    from podracer_client.zoo import entries

    if not json:
        write_table(TITLES, [row(entry) for entry in entries()])
        return
    for entry in entries():
        write_json(asdict(entry) | {"job_file": str(entry.job_file), "short": entry.is_short})


@application.command("run")
def run_entry(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A name of `podracer zoo list`.", show_default=False),
    ],
    folder: StateFolderOption = Path("runs"),
    plain: Plain = False,
    json: Json = False,
    max_pods: MaxPods = 0,
    web: Web = False,
) -> None:
    """Run a job of the zoo on this machine, as `podracer run` runs a job file."""
    from podracer_client.zoo import find_entry

    run(find_entry(name).job_file, folder, plain, json, max_pods, web)


def row(entry: Entry) -> tuple[str, ...]:
    """The entry's line in the table."""
    from podracer_client.display import count_text, duration_text, interval_text, return_text

    job, done = entry.job, entry.run
    algorithms = ", ".join(share.algorithm for share in job.search.algorithms) or "auto"
    known = (entry.name, job.environment.id, algorithms, return_text(job.objective.target_return))
    if done is None:
        return (*known, "not run yet", "–", "–", "–")
    reached = f"{return_text(done.mean)} ({interval_text(done.lower, done.upper)})"
    cost = (count_text(done.env_steps), duration_text(done.device_s), duration_text(done.wall_s))
    return (*known, reached, *cost)

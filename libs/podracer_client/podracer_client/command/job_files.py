"""Job files to start from: `podracer init` writes one; those of `podracer zoo` are known to work."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from podracer_client.command.options import Json, MaxPods, Plain, StateFolderOption, Web
from podracer_client.command.run import run
from podracer_client.files import write_whole
from podracer_core.errors import AlreadyExists, InvalidInput

if TYPE_CHECKING:
    from podracer_client.zoo import Entry
    from podracer_core.catalogue import EnvironmentInfo

_ENVIRONMENT, _DURATION = "CartPole-v1", "10m"
_NO_TARGET = "none"
_TEMPLATE = """\
# docs/job-file.md has every key. `podracer run` trains it here, `podracer submit` on a server.
name: {name}
{environment}
objective:                # the job ends at whichever comes first
  {goal}  # for the lower end of a mean's 95 % interval
  # statistic: mean       # or for the mean itself: sooner, and less certain
  max_duration: {max_duration}
search:
  algorithms: {algorithms}  # auto: all that suit; or a list, as `podracer algorithms` names them
  # space: {{learning_rate: {{log_uniform: [1.0e-4, 1.0e-2]}}}}   # unset: the algorithms' own ranges
{evolution}
# evaluation: {{episodes: 32}}                         # greedy episodes that judge a claim of the target
# seed: 0
"""


_ROUNDS = "population: 8, round: {seconds: 15}"
_MEANING = "  # agents at a time; how long they train at once"


def init(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="The file to write.", show_default="NAME.yaml"),
    ] = None,
    environment: Annotated[
        str,
        typer.Option(
            metavar="ID", help="The environment.", show_default=f"asked for; else {_ENVIRONMENT}"
        ),
    ] = "",
    target: Annotated[
        str,
        typer.Option(
            metavar="RETURN",
            help="The return at which the job ends, or none to train for the whole time.",
            show_default="asked for; else what the environment counts as solved",
        ),
    ] = "",
    max_duration: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="The longest time the job may take.",
            show_default="asked for; else 10m",
        ),
    ] = "",
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="An algorithm; may be repeated.",
            show_default="auto: all that can act in the environment",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a commented job file. Asks for missing options on a terminal."""
    from podracer_client.command.catalogue import label_of
    from podracer_core.catalogue import find_environment, reward_threshold

    info = find_environment(
        environment or _ask("Environment (`podracer environments` lists them)", _ENVIRONMENT)
    )
    threshold = reward_threshold(info.id)
    target = target or _ask(
        "Return to reach, or none", _NO_TARGET if threshold is None else f"{threshold:g}"
    )
    max_duration = max_duration or _ask("How long it may take at most", _DURATION)
    file = file or Path(f"{label_of(info.id)}.yaml")
    if file.exists() and not force:
        raise AlreadyExists(f"{file} already exists; --force replaces it", path=file)
    text = commented_job(info, target, max_duration, algorithm or ())
    lacking = _check(text, file)
    write_whole(file, text.encode())
    sys.stdout.write(
        f"wrote {file}\n{lacking}next\n  podracer run {file}\n  podracer submit {file} --watch\n"
    )


def _check(text: str, file: Path) -> str:
    """A line about data that the job lacks before it can run; empty if none. Raises InvalidInput
    for bad options."""
    from podracer_platform.jobs import parse_experiment

    try:
        parse_experiment(text, str(file), file.absolute().parent)
    except InvalidInput as error:
        if not all(violation.field.startswith("data.") for violation in error.violations):
            raise
        return f"first, {error.message}\n"
    return ""


def _ask(question: str, default: str) -> str:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return default
    answer: str = typer.prompt(question, default=default, err=True)
    return answer


def commented_job(
    info: EnvironmentInfo, target: str, max_duration: str, algorithms: Sequence[str]
) -> str:
    """The job file. Raises InvalidInput for a target that is no number."""
    from podracer_client.command.catalogue import environment_lines, label_of

    try:
        goal = (
            "# target_return: the return to reach"
            if target.lower() == _NO_TARGET
            else f"target_return: {float(target)!r}"
        )
    except ValueError as error:
        raise InvalidInput(
            f"--target {target}: expected a number, or none", reason="INVALID_TARGET"
        ) from error
    evolution = f"# evolution: {{{_ROUNDS}}} {_MEANING}"
    if info.ensemble_size:
        evolution = f"evolution: {{{_ROUNDS}, ensemble_size: {info.ensemble_size}}}{_MEANING}"
        evolution += "; how many of the best act together at the end"
    return _TEMPLATE.format(
        name=label_of(info.id),
        environment="\n".join(environment_lines(info)),
        goal=goal.removesuffix(".0"),
        max_duration=max_duration,
        algorithms=f"[{', '.join(algorithms)}]" if algorithms else "auto",
        evolution=evolution,
    )


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

zoo_application = typer.Typer(
    no_args_is_help=True, help="Jobs that are known to work, and what they cost."
)


@zoo_application.command("list")
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


@zoo_application.command("run")
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

"""`podracer demo`: a tournament on CartPole in seconds, and its champion in motion."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from podracer_client.command.options import MaxPods, Plain, ServerOptions
from podracer_client.command.web import web
from podracer_core.errors import InvalidInput

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
    from podracer_client.display.following import choose_display
    from podracer_client.display.outcome import TARGET_MISSED
    from podracer_client.local.run import run_job
    from podracer_client.local.services import ServiceOptions
    from podracer_core.jobs.job_file import parse_job
    from podracer_core.rpc.resource_names import last_part

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
    from podracer_client.policies.recording import record, video_text
    from podracer_core.errors import PreconditionFailed

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

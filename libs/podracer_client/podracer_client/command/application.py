"""The commands put together."""

from __future__ import annotations

from typing import Annotated

import typer

from podracer_client.command import (
    algorithms,
    backtest,
    cancel,
    capacity,
    context,
    data,
    delete,
    environments,
    evaluate,
    export,
    gc,
    history,
    job,
    jobs,
    leaderboard,
    promote,
    report,
    rollback,
    run,
    scale,
    secrets,
    serve,
    submit,
    token,
    trace,
    up,
    watch,
)

application = typer.Typer(
    name="podracer",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_HERE = "On this machine"
_SERVER = "With a server (or what `podracer up` or `podracer run` have started)"
_POLICIES = "Policies"


def _print_version(wanted: bool) -> None:
    if wanted:
        from podracer_core.service.build import describe_build

        typer.echo(f"podracer {describe_build()}")
        raise typer.Exit


@application.callback()
def podracer(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train deep-reinforcement-learning agents as a tournament of pods, on this machine or on a server."""


application.command("run", rich_help_panel=_HERE)(run.run)
application.command("up", rich_help_panel=_HERE)(up.up)
application.command("algorithms", rich_help_panel=_HERE)(algorithms.algorithms)
application.command("environments", rich_help_panel=_HERE)(environments.environments)
application.command("secrets", rich_help_panel=_HERE)(secrets.secrets)
application.command("token", rich_help_panel=_HERE)(token.token)
application.command("trace", rich_help_panel=_HERE)(trace.trace)
application.add_typer(context.application, name="context", rich_help_panel=_HERE)
application.add_typer(data.application, name="data", rich_help_panel=_HERE)
application.command("submit", rich_help_panel=_SERVER)(submit.submit)
application.command("jobs", rich_help_panel=_SERVER)(jobs.jobs)
application.command("job", rich_help_panel=_SERVER)(job.job)
application.command("watch", rich_help_panel=_SERVER)(watch.watch)
application.command("scale", rich_help_panel=_SERVER)(scale.scale)
application.command("capacity", rich_help_panel=_SERVER)(capacity.capacity)
application.command("gc", rich_help_panel=_SERVER)(gc.gc)
application.command("cancel", rich_help_panel=_SERVER)(cancel.cancel)
application.command("delete", rich_help_panel=_SERVER)(delete.delete)
application.command("leaderboard", rich_help_panel=_SERVER)(leaderboard.leaderboard)
application.command("promote", rich_help_panel=_SERVER)(promote.promote)
application.command("rollback", rich_help_panel=_SERVER)(rollback.rollback)
application.command("history", rich_help_panel=_SERVER)(history.history)
application.command("report", rich_help_panel=_SERVER)(report.report)
application.command("evaluate", rich_help_panel=_POLICIES)(evaluate.evaluate)
application.command("backtest", rich_help_panel=_POLICIES)(backtest.backtest)
application.command("export", rich_help_panel=_POLICIES)(export.export)
application.command("serve", rich_help_panel=_POLICIES)(serve.serve)

"""`podracer backtest`."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from podracer_client.command import (
    EnsembleRule,
    EnsembleSize,
    FiguresFolder,
    Json,
    Policies,
    ServerOptions,
    Settings,
    Trusted,
    with_server,
)
from podracer_client.display import write_json
from podracer_client.files import require_makeable
from podracer_client.names import short_name
from podracer_core.errors import InvalidInput

_BASELINES = ("buy_and_hold", "equal_weight_monthly")

Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="FILE|NAME",
        help="Another price table: a file, or a data set of the server.",
        show_default="the job's",
    ),
]
Start = Annotated[
    str,
    typer.Option(
        "--from", metavar="DATE", help="The first day.", show_default="the job's test split"
    ),
]
End = Annotated[
    str,
    typer.Option(
        "--to", metavar="DATE", help="The last day.", show_default="the last day of the table"
    ),
]
Index = Annotated[
    str,
    typer.Option(
        "--index", metavar="COLUMN", help="Column of the table with the level of an index."
    ),
]
Baselines = Annotated[
    list[str] | None,
    typer.Option(
        "--against",
        metavar="NAME",
        help="buy_and_hold, equal_weight_daily, equal_weight_monthly or cash; may be repeated.",
        show_default="buy_and_hold and equal_weight_monthly",
    ),
]
Walk = Annotated[
    bool,
    typer.Option(
        "--walk-forward",
        help="Chain policies that were trained up to later and later days: each acts until the day "
        "by which the next one was selected.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="DIR", help="The folder to write.", show_default="POLICY-backtest"
    ),
]


@with_server
def backtest(
    server: ServerOptions,
    policies: Policies,
    ensemble: EnsembleSize = 0,
    rule: EnsembleRule = "",
    data: Data = "",
    start: Start = "",
    end: End = "",
    index: Index = "",
    baselines: Baselines = None,
    walk: Walk = False,
    settings: Settings = None,
    trust: Trusted = False,
    output: Output = None,
    figures: FiguresFolder = None,
    json: Json = False,
) -> None:
    """Back-test a trading policy against baselines on unseen days. Writes a page (index.html) and
    all fills (trades.csv)."""
    from podracer_client.local import private_evaluator
    from podracer_client.policies import Trust, bring_files, competing_folders
    from podracer_trading import client

    arguments = _arguments(settings, start, end)
    if walk and (ensemble or len(policies) < 2):
        raise InvalidInput(
            "--walk-forward: give at least two policies, earliest first, and no --ensemble"
        )
    title = short_name(policies[0].rstrip("/"))
    folder = output or Path(f"{title}-backtest")
    for each in filter(None, (folder, figures)):
        require_makeable(each)
    with (
        competing_folders(policies, ensemble, server.connect, server.folder) as (
            folders,
            competition,
        ),
        client.price_file(data, server.connect) as table,
        private_evaluator() as evaluator,
    ):
        bring = partial(
            bring_files, evaluator, connect=server.connect, trust=Trust(server.folder, trust)
        )
        plan = client.BacktestPlan(
            arguments, rule, _BASELINES if baselines is None else baselines, index, table
        )
        found = client.play_backtest(plan, folders, evaluator, bring, walk=walk)
        found = replace(found, validation=client.edge_in_validation(competition, evaluator, bring))

    # this name is the first that loads matplotlib, which takes a second
    written = client.write_backtest(found, folder, f"{title}: back-test", figures)
    if json:
        write_json({"event": "backtest", "folder": str(folder), **client.backtest_json(found)})
    else:
        names = ", ".join(path.name for path in written)
        sys.stdout.write(f"{client.backtest_text(found)}wrote {names} to {folder}/\n")


def _arguments(settings: Settings, start: str, end: str) -> dict[str, Any]:
    """Of the environment: `--set`'s, and the days."""
    from podracer_client.policies import parsed_arguments

    arguments = {"evaluation_split": "test", **parsed_arguments(settings or ())}
    days = (("evaluation_start", start), ("evaluation_end", end))
    return arguments | {name: text for name, text in days if text}

"""The commands that the package adds to `podracer`: `backtest`, and `data`, market data imported,
invented, and stored on a server by name."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from podracer_client.command import (
    HERE,
    POLICIES,
    EnsembleRule,
    EnsembleSize,
    FiguresFolder,
    Json,
    PlacedCommand,
    Policies,
    ServerOptions,
    Settings,
    Trusted,
    with_server,
)
from podracer_client.display import columns, write_json
from podracer_client.files import require_makeable, require_writable
from podracer_client.names import moment, short_name
from podracer_core.errors import InvalidInput

if TYPE_CHECKING:
    from podracer.orchestrator.v1 import artifact_service_pb2

_EQUAL_WEIGHT = "equal_weight"
_BASELINES = ("buy_and_hold", f"{_EQUAL_WEIGHT}_monthly")

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
        help="buy_and_hold, equal_weight_daily, equal_weight_monthly or cash; may be repeated. "
        "Equal weights are always among them.",
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
        plan = client.BacktestPlan(arguments, rule, _held_against(baselines), index, table)
        found = client.play_backtest(plan, folders, evaluator, bring, walk=walk)
        found = replace(found, validation=client.edge_in_validation(competition, evaluator, bring))

    # this name is the first that loads matplotlib, which takes a second
    written = client.write_backtest(found, folder, f"{title}: back-test", figures)
    if json:
        write_json({"event": "backtest", "folder": str(folder), **client.backtest_json(found)})
    else:
        names = ", ".join(path.name for path in written)
        sys.stdout.write(f"{client.backtest_text(found)}wrote {names} to {folder}/\n")


def _held_against(baselines: list[str] | None) -> list[str]:
    """The baselines of the table: equal weights, which are hard to beat, are always among them."""
    if baselines is None:
        return [*_BASELINES]
    if any(name.startswith(_EQUAL_WEIGHT) for name in baselines):
        return baselines
    return [*baselines, f"{_EQUAL_WEIGHT}_monthly"]


def _arguments(settings: Settings, start: str, end: str) -> dict[str, Any]:
    """Of the environment: `--set`'s, and the days."""
    from podracer_client.policies import parsed_arguments

    arguments = {"evaluation_split": "test", **parsed_arguments(settings or ())}
    days = (("evaluation_start", start), ("evaluation_end", end))
    return arguments | {name: text for name, text in days if text}


application = typer.Typer(no_args_is_help=True, help="Import, generate and store price tables.")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The data set's name.", show_default=False)
]
Table = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="CSV (or .gz), Parquet or Arrow.", show_default=False),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ticker=tic,…",
        help="Names of columns in the file where they differ; may be repeated.",
    ),
]
Adjust = Annotated[
    str, typer.Option(metavar="auto|none", help="auto: smooth ex-rights dates, chained forward.")
]
DailyLimit = Annotated[
    float | None,
    typer.Option(
        metavar="X", help="An overnight fall above this fraction (0.1: 10 %) is an ex-rights date."
    ),
]
ParquetFile = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="OUT.parquet", help="Write the table there."),
]
StoredName = Annotated[
    str, typer.Option(metavar="NAME", help="Store it on the server under this name.")
]
Append = Annotated[
    bool,
    typer.Option(
        "--append", help="Add the new bars to the data set NAME. Bars in both must be equal."
    ),
]


@application.command("import")
@with_server
def import_table(
    server: ServerOptions,
    table: Table,
    columns: Columns = None,
    adjust: Adjust = "auto",
    daily_limit: DailyLimit = None,
    output: ParquetFile = None,
    name: StoredName = "",
    append: Append = False,
    json: Json = False,
) -> None:
    """Check a price table, report its gaps and outliers, and store it as Parquet in a file or on
    the server."""
    from podracer_trading.client import (
        ImportRequest,
        import_market_data,
        inspection_text,
    )

    if output is not None:
        require_writable(output)
    if append and not name:
        raise InvalidInput("--append needs --name: the data set that the bars are added to")
    if adjust not in ("auto", "none"):
        raise InvalidInput(f"--adjust is {adjust!r}, expected auto or none")
    if daily_limit is not None and not 0 < daily_limit < 1:
        raise InvalidInput(
            f"--daily-limit is {daily_limit:g}, expected a fraction between 0 and 1 (0.1 for 10 %)"
        )
    request = ImportRequest(
        table, _columns(columns or []), adjust, daily_limit, output, name, append
    )
    told = None if json else sys.stderr
    imported = import_market_data(request, server.connect, told)
    if json:
        write_json(
            dict(imported.inspection.to_plain())
            | {"adjust": imported.adjust}
            | imported.stored_values(request)
        )
        return
    sys.stdout.write(inspection_text(imported.inspection, imported.adjust))
    if imported.sha256:
        added = f", {imported.added:,} rows of them new" if append else ""
        where = " and ".join(
            [str(output)] * (output is not None) + [f"the data set {name}"] * bool(name)
        )
        sys.stdout.write(
            f"\nwrote {imported.rows:,} rows{added} to {where}\nSHA-256 {imported.sha256}\n"
        )


@application.command()
def make(
    output: Annotated[
        Path, typer.Argument(metavar="OUT", help="The file: .csv or .parquet.", show_default=False)
    ],
    tickers: Annotated[int, typer.Option(metavar="K", help="How many.")] = 5,
    bars: Annotated[int, typer.Option(metavar="N", help="Bars of each.")] = 600,
    interval: Annotated[
        str, typer.Option(metavar="day|minute", help="Length of a bar; 390 minutes a day.")
    ] = "day",
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the market.")] = 0,
    start: Annotated[
        datetime, typer.Option(formats=["%Y-%m-%d"], help="The first day.")
    ] = datetime(2020, 1, 6),
    strength: Annotated[
        float,
        typer.Option(
            metavar="X", help="Strength of the learnable trends, in volatilities of a bar. 0: none."
        ),
    ] = 0.3,
    reversion: Annotated[
        float,
        typer.Option(
            metavar="X", help="Part of its distance from the first price that a bar takes back."
        ),
    ] = 0.0,
    halts: Annotated[int, typer.Option(metavar="N", help="Gaps in the bars of each ticker.")] = 0,
    ex_rights: Annotated[int, typer.Option(metavar="N", help="Unadjusted ex-rights dates.")] = 0,
    json: Json = False,
) -> None:
    """Generate a synthetic market: correlated prices with regimes, trends, jumps and gaps.
    Seeded."""
    from podracer_trading.client import write_market
    from podracer_trading.market_data import SyntheticMarket

    if output.suffix not in (".csv", ".parquet"):
        raise InvalidInput(
            f"{output} ends with {output.suffix or 'nothing'}, expected .csv or .parquet"
        )
    require_writable(output)
    market = SyntheticMarket(
        tickers=tickers,
        bars=bars,
        interval=interval,
        seed=seed,
        start=start.date(),
        strength=strength,
        reversion=reversion,
        halts=halts,
        ex_rights=ex_rights,
    )
    rows, sha256 = write_market(market, output)
    if json:
        write_json({"path": str(output), "rows": rows, "sha256": sha256})
    else:
        sys.stdout.write(f"wrote {rows:,} rows to {output}\nSHA-256 {sha256}\n")


@application.command("list")
@with_server
def list_data_sets(server: ServerOptions, json: Json = False) -> None:
    """List the server's data sets, newest first. NAME.0123456789abcdef is an older version of NAME
    that jobs need."""
    from podracer_client.artifacts import data_sets

    with server.connect() as client:
        found = list(data_sets(client))
    if json:
        for artifact in found:
            write_json(_artifact_values(artifact))
    elif found:
        titles = ("name", "MiB", "when", "SHA-256")
        rows = [
            (
                short_name(each.name),
                f"{each.size_bytes / 2**20:,.2f}",
                _when(each),
                each.sha256[:16],
            )
            for each in found
        ]
        sys.stdout.write(f"{columns(titles, rows, right=('MiB',))}\n")
    else:
        sys.stdout.write("no data sets\n")


@application.command()
@with_server
def show(server: ServerOptions, name: Name, json: Json = False) -> None:
    """Show what a data set holds."""
    from podracer_client.artifacts import download_data_set
    from podracer_trading.market_data import read_provenance

    with server.connect() as client, download_data_set(client, name) as (artifact, file):
        provenance = read_provenance(file)
    values = _artifact_values(artifact)
    if provenance is not None:
        values |= {"rows": provenance.rows, "tickers": list(provenance.tickers)}
        values |= {"first": provenance.first, "last": provenance.last, "adjust": provenance.adjust}
        values |= {"source": provenance.source, "ex_rights": len(provenance.ex_rights)}
    if json:
        write_json(values)
        return
    for key, value in values.items():
        text = (
            ", ".join(value)
            if isinstance(value, list)
            else f"{value:,}"
            if isinstance(value, int)
            else value
        )
        sys.stdout.write(f"{key:<12}{text}\n")


@application.command()
@with_server
def delete(server: ServerOptions, name: Name) -> None:
    """Delete a data set that no job needs."""
    from podracer_client.artifacts import delete_data_set

    with server.connect() as client:
        delete_data_set(client, name)
    sys.stdout.write(f"deleted {name}\n")


@application.command()
@with_server
def download(
    server: ServerOptions,
    name: Name,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="The new file.", show_default=False),
    ],
) -> None:
    """Write a data set to a file."""
    from podracer_client.artifacts import fetch_data_set

    require_writable(output)
    with server.connect() as client:
        artifact = fetch_data_set(client, name, output)
    sys.stdout.write(f"wrote {output} ({artifact.size_bytes:,} bytes)\nSHA-256 {artifact.sha256}\n")


def _columns(texts: list[str]) -> dict[str, str]:
    """Names in the file by column, from `ticker=tic,time=date`. Raises InvalidInput for other
    texts."""
    from podracer_trading.market_data import COLUMNS

    found: dict[str, str] = {}
    for pair in (pair for text in texts for pair in text.split(",")):
        ours, equals, theirs = (part.strip() for part in pair.partition("="))
        if not equals or not theirs or ours not in COLUMNS or ours in found:
            expected = (
                f"expected COLUMN=NAME IN THE FILE, once for each of {', '.join(COLUMNS)} "
                "that differs"
            )
            raise InvalidInput(f"--columns has {pair!r}; {expected}")
        found[ours] = theirs
    return found


def _artifact_values(artifact: artifact_service_pb2.Artifact) -> dict[str, Any]:
    values = {
        "name": short_name(artifact.name),
        "sha256": artifact.sha256,
        "size_bytes": artifact.size_bytes,
    }
    return values | {"when": _when(artifact)}


def _when(artifact: artifact_service_pb2.Artifact) -> str:
    when = moment(artifact.create_time)
    return f"{when:%Y-%m-%d %H:%M:%SZ}" if when else "–"


BACKTEST = PlacedCommand(backtest, POLICIES, after="evaluate")
DATA = PlacedCommand(application, HERE, after="context")

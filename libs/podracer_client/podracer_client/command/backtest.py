"""`podracer backtest`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from podracer_client.command.options import EnsembleRule, EnsembleSize, Json, Policies, ServerOptions, with_server
from podracer_core.errors import FieldViolation, InvalidInput, NotFound

if TYPE_CHECKING:
    from podracer.evaluator.v1 import evaluator_service_pb2_grpc
    from podracer_client.backtests import Backtest
    from podracer_client.client import Client
    from podracer_core.catalogue.environments import EnvironmentSpec
    from podracer_core.catalogue.environments.spec import StoredFile

_TABLE = "table"
_SELECTION = ("evaluation_start", "evaluation_end")
_BASELINES = ("buy_and_hold", "equal_weight_monthly")


@with_server
def backtest(
    server: ServerOptions,
    policies: Policies,
    ensemble: EnsembleSize = 0,
    rule: EnsembleRule = "",
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="FILE|NAME",
            help="Another price table: a file, or a data set of the server.",
            show_default="the job's",
        ),
    ] = "",
    start: Annotated[
        str, typer.Option("--from", metavar="DATE", help="The first day.", show_default="the job's test split")
    ] = "",
    end: Annotated[
        str, typer.Option("--to", metavar="DATE", help="The last day.", show_default="the last there is")
    ] = "",
    index: Annotated[
        str, typer.Option("--index", metavar="COLUMN", help="Column of the table with the level of an index.")
    ] = "",
    baselines: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="NAME",
            help="buy_and_hold, equal_weight_daily, equal_weight_monthly or cash; any number of them.",
            show_default="buy_and_hold and equal_weight_monthly",
        ),
    ] = None,
    walk: Annotated[
        bool,
        typer.Option(
            "--walk-forward",
            help="The policies, trained up to later and later days, one after the other: each acts until the next one "
            "was selected.",
        ),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Another argument of the environment; any number of them."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="The folder to write.", show_default="POLICY-backtest"),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", metavar="DIR", help="Write every figure as SVG and PNG too.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Play a trading policy through days that it has not seen, beside what it is held against; writes a page
    (index.html) and every fill (trades.csv) into a folder."""
    from podracer.evaluator.v1 import evaluator_service_pb2
    from podracer_client.backtests import run_backtest
    from podracer_client.command.other_arguments import parsed_arguments, with_arguments
    from podracer_client.display.backtest import backtest_json, backtest_text
    from podracer_client.environment_files import bring_files, trained_environment
    from podracer_client.local.evaluator import private_evaluator
    from podracer_client.names import short_name
    from podracer_client.policies import policy_folders
    from podracer_client.report.writing import require_makeable
    from podracer_client.walk_forward import walk_forward
    from podracer_core.attachments.transfer import put_file

    arguments = {"evaluation_split": "test", **parsed_arguments(settings or ())}
    arguments |= {name: text for name, text in (("evaluation_start", start), ("evaluation_end", end)) if text}
    if walk and (ensemble or len(policies) < 2):
        raise InvalidInput("--walk-forward: name two policies or more, in the order of time, and no --ensemble")
    folder = output or Path(f"{short_name(policies[0].rstrip('/'))}-backtest")
    for each in (folder, figures) if figures else (folder,):
        require_makeable(each)
    with (
        policy_folders(policies, ensemble, server.connect, server.folder) as folders,
        _other_table(data, server.connect) as other,
        private_evaluator() as evaluator,
    ):
        former: dict[Path, StoredFile | None] = {}

        def prepared(checkpoint: Path) -> EnvironmentSpec:
            trained = trained_environment(checkpoint)
            _require_market(trained)
            environment = with_arguments(_without_dates(trained), arguments)
            former[checkpoint] = None
            if other is None:
                bring_files(evaluator, checkpoint, server.connect)
                return environment
            path, file = other
            put_file(evaluator.PutFile, evaluator_service_pb2.PutFileRequest, file, path)
            try:
                bring_files(evaluator, checkpoint, server.connect)
                former[checkpoint] = _former_table(trained, evaluator)
            except NotFound:
                if "train_end" not in environment.kwargs:  # when training ended stands in the former table alone
                    raise
            return _with_table(environment, file)

        def play(checkpoints: Sequence[Path], environment: EnvironmentSpec, beside: bool) -> Backtest:
            return run_backtest(
                evaluator,
                checkpoints,
                environment,
                rule=rule,
                baselines=(_BASELINES if baselines is None else baselines) if beside else (),
                index_column=index if beside else "",
                trained_table=former[checkpoints[0]],
            )

        if walk:
            found = walk_forward(folders, [prepared(each) for each in folders], play)
        else:
            found = play(folders, prepared(folders[0]), True)

    import logging

    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # that it builds a cache of fonts is no news
    from podracer_client.report.backtest_page import write_backtest

    written = write_backtest(found, folder, f"{short_name(policies[0].rstrip('/'))}: back-test", figures)
    if json:
        from podracer_client.command.messages import write_json

        write_json({"event": "backtest", "folder": str(folder), **backtest_json(found)})
        return
    sys.stdout.write(backtest_text(found))
    sys.stdout.write(f"wrote {', '.join(path.name for path in written)} to {folder}/\n")


@contextmanager
def _other_table(text: str, connect: Callable[[], Client]) -> Iterator[tuple[Path, StoredFile] | None]:
    """The file that `--data` names, here or on the server; None where it names none."""
    import tempfile

    from podracer_client.data_sets import fetch_data_set

    if not text:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="podracer-backtest-") as folder:
        path = Path(text)
        if not path.is_file():
            if path.suffix or "/" in text:
                problem = f"--data: there is no file {text}"
                raise InvalidInput(problem, violations=[FieldViolation("--data", problem)])
            with connect() as client:
                path = Path(folder, "table")
                fetch_data_set(client, text, path)
        yield path, _stored(path)


def _former_table(trained: EnvironmentSpec, evaluator: evaluator_service_pb2_grpc.EvaluatorServiceStub) -> StoredFile:
    """The table that the policy was trained with, which the evaluator has then."""
    from podracer.evaluator.v1 import evaluator_service_pb2
    from podracer_core.attachments.transfer import put_file
    from podracer_core.catalogue.environments.spec import StoredFile

    file = trained.data.get(_TABLE)
    if isinstance(file, StoredFile):
        return file
    path = Path(str(file or trained.kwargs.get(_TABLE, "")))
    if not path.is_file():
        problem = f"{path}, with which the policy was trained, is not here to tell when training ended"
        raise NotFound(f"--data: {problem}; --set train_end=DATE would", reason="TRAINED_TABLE_NOT_FOUND")
    stored = _stored(path)
    put_file(evaluator.PutFile, evaluator_service_pb2.PutFileRequest, stored, path)
    return stored


def _stored(path: Path) -> StoredFile:
    from podracer_core.attachments.transfer import sha256_of
    from podracer_core.catalogue.environments.spec import StoredFile

    sha256 = sha256_of(path)
    return StoredFile(f"backtest/{sha256}", sha256, path.stat().st_size)


def _with_table(environment: EnvironmentSpec, file: StoredFile) -> EnvironmentSpec:
    from dataclasses import replace

    kwargs = {name: value for name, value in environment.kwargs.items() if name != _TABLE}
    return replace(environment, kwargs=kwargs, data={**environment.data, _TABLE: file})


def _without_dates(environment: EnvironmentSpec) -> EnvironmentSpec:
    """Days by which the job selected are none to be tested on, unless who tests asks for them."""
    from dataclasses import replace

    kwargs = {name: value for name, value in environment.kwargs.items() if name not in _SELECTION}
    return replace(environment, kwargs=kwargs)


def _require_market(environment: EnvironmentSpec) -> None:
    if environment.id != "StockTrading-v0":
        problem = f"only policies of StockTrading-v0 can be back-tested, and this one is of {environment.name}"
        raise InvalidInput(f"{problem}: use `podracer evaluate`", reason="NOT_A_MARKET")

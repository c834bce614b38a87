"""A back-test of policies in folders: the environment of each, its tables, and one play or a walk
forward."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from podracer.evaluator.v1 import evaluator_service_pb2, evaluator_service_pb2_grpc
from podracer_client.artifacts import fetch_data_set
from podracer_client.jobs import Client
from podracer_client.names import refused
from podracer_client.policies import trained_environment, with_arguments
from podracer_core.catalogue import EnvironmentSpec, StoredFile
from podracer_core.errors import InvalidInput, NotFound
from podracer_platform.attachments import put_file, sha256_of
from podracer_trading.backtest import chained
from podracer_trading.client.backtests import POLICY, Account, Backtest, run_backtest

__all__ = ["BacktestPlan", "Bring", "PriceFile", "play_backtest", "price_file"]

_TABLE = "table"
_SELECTION = ("evaluation_start", "evaluation_end")

Evaluator = evaluator_service_pb2_grpc.EvaluatorServiceStub

Bring = Callable[[Path], None]
"""Sends the evaluator the files of the environment of the checkpoint in a folder."""

_Play = Callable[[Sequence[Path], EnvironmentSpec, bool], Backtest]
"""Plays checkpoints in an environment; whether beside what they are held against."""


@dataclass(frozen=True, slots=True)
class PriceFile:
    """A local price table, and its name for an evaluator."""

    path: Path
    stored: StoredFile

    @classmethod
    def of(cls, path: Path) -> PriceFile:
        sha256 = sha256_of(path)
        return cls(path, StoredFile(f"backtest/{sha256}", sha256, path.stat().st_size))

    def put(self, evaluator: Evaluator) -> StoredFile:
        """Send it to an evaluator."""
        put_file(evaluator.PutFile, evaluator_service_pb2.PutFileRequest, self.stored, self.path)
        return self.stored


@dataclass(frozen=True, slots=True)
class BacktestPlan:
    """`arguments` replace those of the trained environment; a `table` replaces the one of
    training."""

    arguments: Mapping[str, Any]
    rule: str = ""
    baselines: Sequence[str] = ()
    index_column: str = ""
    table: PriceFile | None = None


def play_backtest(
    plan: BacktestPlan, folders: Sequence[Path], evaluator: Evaluator, bring: Bring, *, walk: bool
) -> Backtest:
    """Play the checkpoints in these folders together, or (`walk`) one after the other.

    Raises InvalidInput for an environment that is no market or is refused by the evaluator,
    NotFound for files that are neither here nor on a server."""
    player = _Player(plan, evaluator, bring)
    if walk:
        return _walk_forward(folders, [player.prepare(folder) for folder in folders], player.play)
    return player.play(folders, player.prepare(folders[0]), True)


@contextmanager
def price_file(text: str, connect: Callable[[], Client]) -> Iterator[PriceFile | None]:
    """The table that `--data` names, a file here or a data set of the server; None without the
    option."""
    if not text:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="podracer-backtest-") as folder:
        path = Path(text)
        if not path.is_file():
            if path.suffix or "/" in text:
                raise refused("--data", f"there is no file {text}")
            with connect() as client:
                path = Path(folder, "table")
                fetch_data_set(client, text, path)
        yield PriceFile.of(path)


class _Player:
    """Prepares the environment of each checkpoint, and plays checkpoints in it."""

    def __init__(self, plan: BacktestPlan, evaluator: Evaluator, bring: Bring) -> None:
        self._plan, self._evaluator, self._bring = plan, evaluator, bring
        self._trained_tables: dict[Path, StoredFile | None] = {}

    def prepare(self, checkpoint: Path) -> EnvironmentSpec:
        """The environment to play in; its files are sent to the evaluator."""
        trained = trained_environment(checkpoint)
        _require_market(trained)
        environment = with_arguments(_without_dates(trained), self._plan.arguments)
        self._trained_tables[checkpoint] = None
        if self._plan.table is None:
            self._bring(checkpoint)
            return environment
        table = self._plan.table.put(self._evaluator)
        try:
            self._bring(checkpoint)
            self._trained_tables[checkpoint] = _trained_table(trained, self._evaluator)
        except NotFound:
            # only the table of training says when training ended
            if "train_end" not in environment.kwargs:
                raise
        kwargs = {name: value for name, value in environment.kwargs.items() if name != _TABLE}
        return replace(environment, kwargs=kwargs, data={**environment.data, _TABLE: table})

    def play(
        self, checkpoints: Sequence[Path], environment: EnvironmentSpec, beside: bool
    ) -> Backtest:
        """Play the checkpoints; with `beside` also the accounts they are compared with."""
        return run_backtest(
            self._evaluator,
            checkpoints,
            environment,
            rule=self._plan.rule,
            baselines=self._plan.baselines if beside else (),
            index_column=self._plan.index_column if beside else "",
            trained_table=self._trained_tables[checkpoints[0]],
        )


def _walk_forward(
    folders: Sequence[Path], environments: Sequence[EnvironmentSpec], play: _Play
) -> Backtest:
    """One account of all policies: each begins where the one before ends, with its value in cash,
    and ends on the last day by which the next one was selected. What they are held against is
    played once, from the first day to the last.

    Raises InvalidInput for policies that are not in the order of time, or whose environments do not
    say by date when their selection ended."""
    ends = _selection_ends(environments)
    windows: list[Backtest] = []
    for number, (folder, environment) in enumerate(zip(folders, environments, strict=True)):
        changes = dict(environment.kwargs)
        if number:
            account = windows[-1].policy.record
            changes |= {
                "evaluation_start": _text(account.times[-1]),
                "initial_cash": float(account.value[-1]),
            }
        if number + 1 < len(folders):
            changes["evaluation_end"] = ends[number + 1]
        windows.append(play([folder], replace(environment, kwargs=changes), False))
    record = chained([window.policy.record for window in windows])
    dates = {"evaluation_start": _text(record.times[0]), "evaluation_end": _text(record.times[-1])}
    whole = play(
        folders[-1:], replace(environments[-1], kwargs={**environments[-1].kwargs, **dates}), True
    )
    if not np.array_equal(whole.policy.record.times, record.times):
        raise InvalidInput(
            "the policies were trained on tables with different days; give one table for all with "
            "--data"
        )
    return Backtest(whole.header, (Account(POLICY, record), *whole.accounts[1:]), tuple(windows))


def _selection_ends(environments: Sequence[EnvironmentSpec]) -> list[str]:
    """The last day by which each policy was selected; that of the first one does not matter."""
    ends = [
        str(each.kwargs.get("validation_end") or each.kwargs.get("train_end") or "")
        for each in environments
    ]
    for number, (before, end) in enumerate(itertools.pairwise(ends), 2):
        if not end:
            raise InvalidInput(
                f"policy {number} has no date for the end of its validation: train with "
                "validation_end"
            )
        if end <= before:
            raise InvalidInput(
                f"policy {number} was selected by {end}, the one before it by {before}: list the "
                "policies earliest first"
            )
    return ends


def _text(moment: np.datetime64) -> str:
    """A date in the form of the environment."""
    return str(moment.astype("datetime64[s]")).replace("T", " ")


def _trained_table(trained: EnvironmentSpec, evaluator: Evaluator) -> StoredFile:
    """The table that the policy was trained with; it is sent to the evaluator."""
    file = trained.data.get(_TABLE)
    if isinstance(file, StoredFile):
        return file
    path = Path(str(file or trained.kwargs.get(_TABLE, "")))
    if not path.is_file():
        problem = (
            f"the policy's training table {path} is missing, so the end of training is unknown"
        )
        raise NotFound(
            f"--data: {problem}; give --set train_end=DATE", reason="TRAINED_TABLE_NOT_FOUND"
        )
    return PriceFile.of(path).put(evaluator)


def _without_dates(environment: EnvironmentSpec) -> EnvironmentSpec:
    """Remove the days by which the job selected, unless the caller asks for them."""
    kwargs = {name: value for name, value in environment.kwargs.items() if name not in _SELECTION}
    return replace(environment, kwargs=kwargs)


def _require_market(environment: EnvironmentSpec) -> None:
    if environment.id != "StockTrading-v0":
        problem = (
            "only policies of StockTrading-v0 can be back-tested, and this one is of "
            f"{environment.name}"
        )
        raise InvalidInput(f"{problem}: use `podracer evaluate`", reason="NOT_A_MARKET")

"""A back-test of policies in folders: the environment of each, its tables, and one play or a walk
forward; the results of its accounts; and whether a job's best candidate has an edge over
holding."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podracer.evaluator.v1 import evaluator_service_pb2, evaluator_service_pb2_grpc
from podracer_client.artifacts import fetch_data_set
from podracer_client.jobs import Client
from podracer_client.names import refused
from podracer_client.policies import Competition, sources, trained_environment, with_arguments
from podracer_core.catalogue import EnvironmentSpec, StoredFile
from podracer_core.errors import DataCorrupted, FieldViolation, InvalidInput, NotFound
from podracer_core.statistics import bootstrap_interval, paired_interval
from podracer_platform.attachments import put_file, sha256_of
from podracer_platform.messages import (
    environment_from_message,
    environment_to_message,
    file_to_message,
)
from podracer_trading.backtest import (
    BacktestRecord,
    Edge,
    Performance,
    chained,
    chained_trades_csv,
    daily_returns,
    edge_over_holding,
    record_from_messages,
    sharpe_ratio,
)

POLICY, INDEX = "policy", "index"
_TIMEOUT_S = 3600.0
_TYPED = {"evaluation_start": "--from", "evaluation_end": "--to", "index_column": "--index"}


@dataclass(frozen=True)
class Account:
    """One account of a back-test: its record and its statistics."""

    name: str
    record: BacktestRecord

    @cached_property
    def returns(self) -> NDArray[np.float64]:
        """The return of every day, [D]."""
        return daily_returns(self.record.times, self.record.value)

    @cached_property
    def performance(self) -> Performance:
        """The usual statistics."""
        return self.record.performance

    @cached_property
    def sharpe_interval(self) -> tuple[float, float]:
        """95 % of the Sharpe ratio, by a stationary bootstrap of the days."""
        return bootstrap_interval(self.returns, sharpe_ratio)

    def sharpe_above(self, other: Account) -> tuple[float, float, float]:
        """The difference of the Sharpe ratio to the other's, and its 95 % interval over the same
        days."""
        difference = float(sharpe_ratio(self.returns) - sharpe_ratio(other.returns))
        return difference, *paired_interval(self.returns, other.returns, sharpe_ratio)


@dataclass(frozen=True, slots=True)
class Backtest:
    """The policy's account first, then the accounts it is compared with. Of a walk forward the
    account is of all policies, one after the other, and `windows` has each by itself; `header` is
    the last one's. `validation`: what the days by which a job chose the policy say of it, or why
    they say nothing; empty for what is no job's."""

    header: evaluator_service_pb2.BacktestHeader
    accounts: tuple[Account, ...]
    windows: tuple[Backtest, ...] = ()
    validation: Edge | str = ""

    @property
    def policy(self) -> Account:
        """The policy's own account."""
        return self.accounts[0]

    @property
    def environment(self) -> EnvironmentSpec:
        """The environment of the back-test."""
        return environment_from_message(self.header.environment)

    @property
    def trained_bars(self) -> int:
        """Bars on which the policy was trained: its result there is no forecast."""
        if self.windows:
            return sum(window.trained_bars for window in self.windows)
        return self._bars(self.header.train_start_us, self.header.train_end_us)

    @property
    def selected_bars(self) -> int:
        """Bars by which the policy was selected among others, and on which it was not trained."""
        if self.windows:
            return sum(window.selected_bars for window in self.windows)
        header = self.header
        return self._bars(
            max(header.selection_start_us, header.train_end_us), header.selection_end_us
        )

    def _bars(self, start_us: int, end_us: int) -> int:
        """The days with returns between these bars: the return of a bar is that to the next one."""
        times = self.policy.record.times.astype("datetime64[us]").astype(np.int64)
        return int(((times >= start_us) & (times < end_us)).sum())

    @property
    def trades(self) -> str:
        """Every fill of the policy's account, as CSV."""
        return chained_trades_csv([each.policy.record for each in self.windows or (self,)])


def run_backtest(
    evaluator: evaluator_service_pb2_grpc.EvaluatorServiceStub,
    folders: Sequence[Path],
    environment: EnvironmentSpec,
    *,
    rule: str = "",
    baselines: Sequence[str] = (),
    index_column: str = "",
    trained_table: StoredFile | None = None,
) -> Backtest:
    """Play the checkpoints in these folders, as an ensemble if they are several. The evaluator has
    the environment's files, and `trained_table` where the environment has another one than the
    policy was trained with.

    Raises the evaluator's errors, in the words of the command's options.
    """
    request = evaluator_service_pb2.BacktestRequest(
        checkpoints=sources(folders),
        ensemble=rule,
        environment=environment_to_message(environment),
        baselines=baselines,
        index_column=index_column,
        trained_table=None if trained_table is None else file_to_message(trained_table),
    )
    try:
        return _received(evaluator.Backtest(request, timeout=_TIMEOUT_S))
    except InvalidInput as error:
        violations = [
            FieldViolation(_typed(each.field), _typed(each.message)) for each in error.violations
        ]
        raise InvalidInput(
            _typed(error.message), violations=violations, reason=error.reason
        ) from error


def _received(responses: Iterator[evaluator_service_pb2.BacktestResponse]) -> Backtest:
    first = next(responses, None)
    if first is None or first.WhichOneof("part") != "header":
        raise DataCorrupted("a back-test came without its header")
    header = first.header
    bars = (response.bars for response in responses)
    accounts = []
    for number, pieces in itertools.groupby(bars, lambda piece: piece.account):
        name = header.accounts[number]
        tickers = () if name == INDEX else tuple(header.tickers)
        accounts.append(Account(name, record_from_messages(pieces, tickers, header.bar_count)))
    if [account.name for account in accounts] != list(header.accounts):
        raise DataCorrupted(
            f"a back-test came with the accounts {[account.name for account in accounts]}"
        )
    return Backtest(header, tuple(accounts))


def _typed(text: str) -> str:
    for name, option in _TYPED.items():
        text = text.replace(f"environment.kwargs.{name}", option).replace(name, option)
    return text


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
        # not the days by which the job selected, unless the caller asks for them
        kwargs = {name: value for name, value in trained.kwargs.items() if name not in _SELECTION}
        environment = with_arguments(replace(trained, kwargs=kwargs), self._plan.arguments)
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


def _require_market(environment: EnvironmentSpec) -> None:
    if environment.id != "StockTrading-v0":
        problem = (
            "only policies of StockTrading-v0 can be back-tested, and this one is of "
            f"{environment.name}"
        )
        raise InvalidInput(f"{problem}: use `podracer evaluate`", reason="NOT_A_MARKET")


def edge_in_validation(
    competition: Competition | str, evaluator: Evaluator, bring: Bring
) -> Edge | str:
    """Play the candidates through the bars by which the job chose among them; a text says why there
    is no answer."""
    if isinstance(competition, str):
        return competition
    first = competition.folders[0]
    try:
        environment = trained_environment(first)
        bring(first)
        best = run_backtest(evaluator, [first], environment, baselines=("buy_and_hold",))
        if best.trained_bars:
            return "none: the policy was trained on the days that selected it"
        others = [run_backtest(evaluator, [each], environment) for each in competition.folders[1:]]
        holding = best.accounts[1].returns
        returns = [each.policy.returns for each in others]
        return edge_over_holding(
            best.policy.returns,
            holding,
            np.reshape(returns, (-1, len(holding))),
            competition.snapshots,
        )
    except (InvalidInput, NotFound) as error:  # the back-test itself may have another table
        return f"not known: {error.message}"

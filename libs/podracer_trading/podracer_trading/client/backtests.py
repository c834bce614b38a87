"""A back-test by an evaluator, and the results of its accounts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from podracer.evaluator.v1 import evaluator_service_pb2, evaluator_service_pb2_grpc
from podracer_client.policies import sources
from podracer_core.catalogue import EnvironmentSpec, StoredFile
from podracer_core.errors import DataCorrupted, FieldViolation, InvalidInput
from podracer_core.statistics import bootstrap_interval, paired_interval
from podracer_platform.messages import (
    environment_from_message,
    environment_to_message,
    file_to_message,
)
from podracer_trading.backtest import (
    BacktestRecord,
    Edge,
    Performance,
    chained_trades_csv,
    daily_returns,
    record_from_messages,
    sharpe_ratio,
)

__all__ = ["INDEX", "POLICY", "Account", "Backtest", "run_backtest"]

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
        raise _as_typed(error) from error


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


def _as_typed(error: InvalidInput) -> InvalidInput:
    violations = [
        FieldViolation(_typed(each.field), _typed(each.message)) for each in error.violations
    ]
    return InvalidInput(_typed(error.message), violations=violations, reason=error.reason)


def _typed(text: str, words: Mapping[str, str] = _TYPED) -> str:
    for name, option in words.items():
        text = text.replace(f"environment.kwargs.{name}", option).replace(name, option)
    return text

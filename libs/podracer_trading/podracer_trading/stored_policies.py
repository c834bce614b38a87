"""A back-test of stored policies: decisions bar by bar, beside baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from podracer.evaluator.v1 import evaluator_service_pb2
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.checkpoint import (
    Checkpoint,
    load_actor,
    load_ensemble,
    make_environment_for,
    rule_of,
)
from podracer_core.errors import InvalidInput
from podracer_core.evaluate import Evaluated
from podracer_platform.attachments import FileCache, place_environment
from podracer_platform.messages import (
    environment_from_message,
    environment_to_message,
    file_from_message,
)
from podracer_trading.backtest import BacktestRecord, record_to_messages
from podracer_trading.backtesting import (
    BASELINES,
    MARKET,
    dated,
    index_record,
    not_a_market,
    play_baseline,
    play_policy,
    seen_bars,
)
from podracer_trading.environment import Market, StockTrading, prepare
from podracer_trading.info import StockTradingConfig
from podracer_trading.market_data import checked, moment, read_index, read_table, refusal

POLICY, INDEX = "policy", "index"
_TABLE = "table"
_NAMED = 5  # tickers in a message


def backtest(
    checkpoints: Sequence[Checkpoint],
    descriptions: Sequence[evaluator_service_pb2.CheckpointDescription],
    request: evaluator_service_pb2.BacktestRequest,
    cache: FileCache,
    check: Callable[[], None] = lambda: None,
) -> list[evaluator_service_pb2.BacktestResponse]:
    """The header and all bars. Files come from `cache`; `check` raises to cancel.

    Raises InvalidInput for another environment than StockTrading-v0, for an unknown baseline or
    index, and the errors of preparing the market and loading the policy."""
    rule = rule_of(checkpoints, request.ensemble) if len(checkpoints) > 1 else ""
    spec = environment_from_message(
        request.environment if request.HasField("environment") else descriptions[0].environment
    )
    _require_possible(spec, request)
    former = _former_market(spec, request, cache)
    trained = [environment_from_message(description.environment) for description in descriptions]
    own = [environment.kwargs for environment in trained]
    if former is not None:
        spec = replace(spec, kwargs=dated(spec.kwargs, former))
        own = [dated(kwargs, former) for kwargs in own]
    elif spec.data != trained[0].data:  # another table: without the bars of training
        dates = {
            name: spec.kwargs[name]
            for name in ("train_end", "validation_end")
            if name in spec.kwargs
        }
        own = [{**dates, **kwargs} for kwargs in own]
    actor = (
        load_actor(checkpoints[0])
        if len(checkpoints) == 1
        else load_ensemble(checkpoints, rule, "cpu")
    )
    with place_environment(spec, cache) as placed:
        if former is not None:
            _require_tickers(former.tickers, placed.spec)
        environment = make_environment_for(checkpoints[0], placed.spec, 1, "cpu")
        assert isinstance(environment, StockTrading), "what the catalogue says of its id"
        records = _records(actor, environment, request, check)
    header = evaluator_service_pb2.BacktestHeader(
        description=descriptions[0],
        tickers=environment.market.tickers,
        accounts=list(records),
        bar_count=len(environment.bars),
        environment=environment_to_message(spec),
        preparation=environment.preparation.removeprefix(f"{environment.config.table}: "),
        ensemble=rule,
        **_seen_spans(own, environment.market, None if former is None else former.times[-1]),
    )
    return [evaluator_service_pb2.BacktestResponse(header=header), *_pieces(records.values())]


def _require_possible(
    spec: EnvironmentSpec, request: evaluator_service_pb2.BacktestRequest
) -> None:
    if spec.id != MARKET:
        raise not_a_market(spec.name)
    unknown = [name for name in request.baselines if name not in BASELINES]
    if unknown:
        problem = f"there is no baseline {unknown[0]!r}; expected some of {', '.join(BASELINES)}"
        raise InvalidInput(problem, field="baselines")


def _records(
    actor: Evaluated,
    environment: StockTrading,
    request: evaluator_service_pb2.BacktestRequest,
    check: Callable[[], None],
) -> dict[str, BacktestRecord]:
    """The record of each account, in the order of the header."""
    records = {POLICY: play_policy(actor, environment, check)}
    for name in dict.fromkeys(request.baselines):
        check()
        records[name] = play_baseline(name, environment)
    if request.index_column:
        records[INDEX] = _index(request.index_column, environment)
    return records


def _pieces(records: Iterable[BacktestRecord]) -> Iterator[evaluator_service_pb2.BacktestResponse]:
    for account, record in enumerate(records):
        for bars in record_to_messages(account, record):
            yield evaluator_service_pb2.BacktestResponse(bars=bars)


def _former_market(
    spec: EnvironmentSpec, request: evaluator_service_pb2.BacktestRequest, cache: FileCache
) -> Market | None:
    """The market of the policy's training table, if the request has another table."""
    if not request.HasField("trained_table"):
        return None
    table = file_from_message(request.trained_table, "trained_table")
    with place_environment(replace(spec, data={**spec.data, _TABLE: table}), cache) as placed:
        return prepare(StockTradingConfig.from_options(placed.spec.arguments), torch.device("cpu"))


def _require_tickers(trained: Sequence[str], spec: EnvironmentSpec) -> None:
    """Raises InvalidInput for a table of other stocks, which the policy would confuse with its
    own."""
    config = StockTradingConfig.from_options(spec.arguments)
    found = checked(read_table(config.table, config.columns)).tickers
    if found != tuple(trained):
        lacking, more = (
            _names(sorted(set(a) - set(b))) for a, b in ((trained, found), (found, trained))
        )
        differs = [f"lacks {lacking}"] if lacking else []
        differs += [f"has {more} besides"] if more else []
        problem = f"the policy was trained on {_names(trained)}; this table {' and '.join(differs)}"
        raise InvalidInput(problem, field="environment.data.table")


def _names(tickers: Sequence[str]) -> str:
    more = len(tickers) - _NAMED
    return ", ".join(tickers[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _seen_spans(
    own: Iterable[Mapping[str, Any]], market: Market, until: np.datetime64 | None
) -> dict[str, int]:
    """Fields of the header: the bars on which the policies with these arguments were trained, and
    selected."""
    seen = [seen_bars(kwargs, market, until) for kwargs in own]
    times = market.times.astype("datetime64[us]").astype(np.int64)
    found: dict[str, int] = {}
    for name, masks in zip(("train", "selection"), zip(*seen, strict=True), strict=True):
        span = times[np.logical_or.reduce(masks)]
        if len(span):
            found |= {f"{name}_start_us": int(span[0]), f"{name}_end_us": int(span[-1])}
    return found


def _index(column: str, environment: StockTrading) -> BacktestRecord:
    config = environment.config
    times, level = read_index(config.table, config.columns, column)
    bars = environment.market.times[environment.bars.start : environment.bars.stop]
    place = np.searchsorted(times, bars, side="right") - 1
    if place[0] < 0:
        raise refusal(
            "index_column",
            f"{column!r} begins at {moment(times[0])}, after the first bar, {moment(bars[0])}",
        )
    return index_record(level[place], environment)

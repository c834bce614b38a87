"""A back-test of what is stored: a policy's decisions, and what they are held against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from podracer.evaluator.v1 import evaluator_service_pb2
from podracer_core.attachments.cache import FileCache
from podracer_core.attachments.placement import place_environment
from podracer_core.backtest.messages import record_to_messages
from podracer_core.backtest.record import BacktestRecord
from podracer_core.backtest.simulation import BASELINES, index_record, play_baseline, play_policy
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.catalogue.messages import environment_from_message, environment_to_message, file_from_message
from podracer_core.checkpoint import Checkpoint, load_actor, load_ensemble, rule_of
from podracer_core.checkpoint.evaluation import make_environment_for
from podracer_core.environments.stock_trading.environment import StockTrading
from podracer_core.environments.stock_trading.market import prepare
from podracer_core.environments.stock_trading.settings import Split, StockTradingConfig
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.market_data.reading import read_index
from podracer_core.market_data.refusal import refusal
from podracer_core.market_data.table import moment
from podracer_evaluator.checkpoints import describe

__all__ = ["INDEX", "POLICY", "backtest"]

POLICY, INDEX = "policy", "index"
_ENVIRONMENT = "StockTrading-v0"
_TABLE = "table"


def backtest(
    checkpoints: Sequence[Checkpoint],
    request: evaluator_service_pb2.BacktestRequest,
    cache: FileCache,
    check: Callable[[], None] = lambda: None,
) -> list[evaluator_service_pb2.BacktestResponse]:
    """The header and all bars. Files are taken from `cache`; `check` raises to give up.

    Raises InvalidInput for another environment than StockTrading-v0, for a baseline or an index that is not there, and
    what preparing the market and loading the policy raise.
    """
    description = describe(checkpoints[0])
    rule = rule_of(checkpoints, request.ensemble) if len(checkpoints) > 1 else ""
    named = request.environment if request.HasField("environment") else description.environment
    spec = environment_from_message(named)
    if spec.id != _ENVIRONMENT:
        problem = f"only policies of {_ENVIRONMENT} can be back-tested, and this is {spec.name}: use evaluate"
        raise InvalidInput(problem, violations=[FieldViolation("environment", problem)], reason="NOT_A_MARKET")
    unknown = [name for name in request.baselines if name not in BASELINES]
    if unknown:
        problem = f"there is no baseline {unknown[0]!r}; expected some of {', '.join(BASELINES)}"
        raise InvalidInput(problem, violations=[FieldViolation("baselines", problem)])
    if request.HasField("trained_table"):
        spec = _with_dates(spec, request, cache)
    actor = load_actor(checkpoints[0]) if len(checkpoints) == 1 else load_ensemble(checkpoints, rule, "cpu")
    with place_environment(spec, cache) as placed:
        environment = make_environment_for(checkpoints[0], placed.spec, 1, "cpu")
        assert isinstance(environment, StockTrading), "what the catalogue says of its id"
        records = {POLICY: play_policy(actor, environment, check)}
        for name in dict.fromkeys(request.baselines):
            check()
            records[name] = play_baseline(name, environment)
        if request.index_column:
            records[INDEX] = _index(request.index_column, environment)
    trained = environment.market.times[environment.market.splits["train"]].astype("datetime64[us]").astype(np.int64)
    header = evaluator_service_pb2.BacktestHeader(
        description=description,
        tickers=environment.market.tickers,
        accounts=list(records),
        bar_count=len(environment.bars),
        train_start_us=int(trained[0]),
        train_end_us=int(trained[-1]),
        environment=environment_to_message(spec),
        preparation=environment.preparation.removeprefix(f"{environment.config.table}: "),
        ensemble=rule,
    )
    return [evaluator_service_pb2.BacktestResponse(header=header), *_pieces(records.values())]


def _pieces(records: Iterable[BacktestRecord]) -> Iterator[evaluator_service_pb2.BacktestResponse]:
    for account, record in enumerate(records):
        for bars in record_to_messages(account, record):
            yield evaluator_service_pb2.BacktestResponse(bars=bars)


def _with_dates(
    spec: EnvironmentSpec, request: evaluator_service_pb2.BacktestRequest, cache: FileCache
) -> EnvironmentSpec:
    """Training and validation end when they ended in the table that the policy was trained with: fractions of another
    table would be other days, and what is observed would be standardized by them."""
    if "train_end" in spec.kwargs:
        return spec
    table = file_from_message(request.trained_table, "trained_table")
    with place_environment(replace(spec, data={**spec.data, _TABLE: table}), cache) as placed:
        market = prepare(StockTradingConfig.from_options(placed.spec.arguments), torch.device("cpu"))
    ends: dict[str, Split] = {"train_end": "train", "validation_end": "validation"}
    last = {name: market.times[market.splits[split][-1]] for name, split in ends.items() if market.splits[split]}
    dates = {name: str(time.astype("datetime64[s]")).replace("T", " ") for name, time in last.items()}
    return replace(spec, kwargs={**spec.kwargs, **dates})


def _index(column: str, environment: StockTrading) -> BacktestRecord:
    config = environment.config
    times, level = read_index(config.table, config.columns, column)
    bars = environment.market.times[environment.bars.start : environment.bars.stop]
    place = np.searchsorted(times, bars, side="right") - 1
    if place[0] < 0:
        raise refusal(
            "index_column", f"{column!r} begins at {moment(times[0])}, after the first bar, {moment(bars[0])}"
        )
    return index_record(level[place], environment)

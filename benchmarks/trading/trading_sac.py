"""Why does one account of SAC trade well? Our SAC with Stable-Baselines3's settings, and with one
change at a time.

The market, the years and the costs are those of trading.py, with adjusted prices. The
seeds of a variant are the members of one cohort, each with an account of its own and one gradient
step for each of its decisions. After each number of gradient steps in SNAPSHOTS every policy plays
the validation and the test, on the CPU. Shown are the test's Sharpe ratio of the snapshot that the
validation chooses (by the lower end of the Sharpe ratio's interval), of the last one and of each,
and how the account was invested in the test: the share in cash, the concentration (the sum of
squared weights of the shares; 1 / their number if all are equal), the turnover (traded value of a
year over the account), and beta (the slope of its daily returns over those of equal weights).

    sb3      the defaults of Stable-Baselines3: 256-256, batches of 256, 100 random decisions, no
             normalization
    starts   the same; each training episode begins at the first bar, in cash
    scaled   the same; observations normalized by running statistics
    entropy  the same; half the target entropy
    ours     our SAC's settings in a search: 64-64, batches of 128, one gradient step for two
             decisions

`--closes` is a table with a column of closing prices for each stock, instead of `--data`: no
opening prices, so orders fill at the next day's close. It is split once, at `--splits`, instead of
by years.

Each variant and test is a line of `--results` and is not repeated.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from numpy.typing import NDArray
from report import finish, print_table, read_lines, spread, versions
from trading_results import Season

from podracer_core.algorithms import CohortConfig, MemberConfig, algorithm_class
from podracer_core.collect import Collector
from podracer_core.device import set_up_torch
from podracer_core.evaluate import Evaluated, GreedyEvaluator
from podracer_trading.backtest import DAYS_A_YEAR, sharpe_ratio
from podracer_trading.backtesting import play_baseline
from podracer_trading.environment import Decision, StockTrading

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "docs" / "benchmarks" / "trading_sac.jsonl"
RESULTS = ROOT / "runs" / "benchmarks" / "trading_sac.jsonl"
SNAPSHOTS = (250, 500, 1000, 2000, 3000, 4000, 5000, 7000, 10_000)
_SB3 = {
    "hidden_sizes": (256, 256),
    "batch_size": 256,
    "learning_starts": 100,
    "replay_capacity": 20_000,
}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sb3": (_SB3, {}),
    "starts": (_SB3, {"random_start": False, "random_holdings": False}),
    "scaled": (_SB3 | {"normalize_observations": True}, {}),
    "entropy": (_SB3 | {"target_entropy_scale": 0.5}, {}),
    "ours": (
        {
            "hidden_sizes": (64, 64),
            "batch_size": 128,
            "learning_starts": 500,
            "updates_per_step": 0.5,
        },
        {},
    ),
}
"""Hyperparameters, and arguments of the training's environment."""

Array = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="an invented market, one year, 60 steps: under a minute",
    )
    parser.add_argument("--data", type=Path, help="a price table; unset: an invented one")
    parser.add_argument(
        "--columns", default="", help="names in the table where they differ: ticker=tic,time=date"
    )
    parser.add_argument("--years", type=int, nargs="+", default=[2017, 2018, 2019])
    parser.add_argument(
        "--closes", type=Path, help="a CSV file: days, and the closing prices of each stock"
    )
    parser.add_argument(
        "--splits", nargs=3, default=("2010-12-31", "2014-12-31", "2022-12-31"), metavar="DAY",
        help="of --closes: the last days of training, validation and test",
    )  # fmt: skip
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--device", default="cpu", help="of the training: cpu or cuda")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="ended variants, a JSON line each"
    )
    options = parser.parse_args()
    snapshots: tuple[int, ...] = SNAPSHOTS
    set_up_torch(1)
    print(versions("torch", "numpy"), f"· {options.seeds} seeds on {options.device}", flush=True)
    with tempfile.TemporaryDirectory(prefix="trading-") as scratch:
        if options.quick:
            options.seeds, options.data, options.variants, snapshots = (
                2,
                None,
                ["sb3", "ours"],
                (30, 60),
            )
            options.results, options.closes = Path(scratch, "results.jsonl"), None
        markets = _markets(options, Path(scratch))
        runs = read_lines(RECORD, options.results)
        known = {(run["variant"], run["test"], run["seeds"]): run for run in runs}
        for variant, test in product(options.variants, markets):
            if (key := (variant, test, options.seeds)) not in known:
                looks = train(
                    variant, test, markets[test], options.seeds, snapshots, options.device
                )
                known[key] = {
                    "variant": variant,
                    "test": test,
                    "seeds": options.seeds,
                    "looks": looks,
                }
                options.results.parent.mkdir(parents=True, exist_ok=True)
                with options.results.open("a") as file:
                    file.write(json.dumps(known[key]) + "\n")
    report(
        [
            known[variant, test, options.seeds]
            for test, variant in product(markets, options.variants)
        ]
    )


def _markets(options: argparse.Namespace, scratch: Path) -> dict[str, dict[str, Any]]:
    """By the name of the test: arguments of StockTrading-v0, of which `evaluation_end` is the
    test's last day."""
    if options.closes is not None:
        table, (train_end, validation_end, test_end) = scratch / "prices.csv", options.splits
        _write_table(options.closes, table)
        ends = {"train_end": train_end, "validation_end": validation_end}
        arguments = Season(0, "auto").arguments({}, 5000) | ends
        return {
            f"after {validation_end}": {
                "table": str(table),
                **arguments,
                "evaluation_end": test_end,
            }
        }
    if options.data is None:
        from trading import invented

        options.data, options.years, options.columns = invented(scratch / "prices.csv"), [2024], ""
    table = options.data.resolve()
    columns = dict(pair.split("=", 1) for pair in options.columns.split(",") if pair)
    seasons = [Season(year, "auto") for year in options.years]
    return {
        str(each.year): {
            "table": str(table),
            **each.arguments(columns, 5000),
            "evaluation_end": each.end,
        }
        for each in seasons
    }


def _write_table(closes: Path, table: Path) -> None:
    """A price table whose every bar opens at its close, so that `next_open` fills at the next
    close."""
    with closes.open(newline="") as source, table.open("w", newline="") as target:
        header, *rows = csv.reader(source)
        writer = csv.writer(target)
        writer.writerow(("ticker", "time", "open", "high", "low", "close", "volume"))
        for day, *prices in rows:
            writer.writerows(
                (ticker, day, *[price] * 4, 1e9)
                for ticker, price in zip(header[1:], prices, strict=True)
            )


def train(
    variant: str,
    test: str,
    market: Mapping[str, Any],
    seeds: int,
    snapshots: Sequence[int],
    device: str,
) -> list[dict[str, Any]]:
    """What each snapshot did in validation and test, of all seeds."""
    hyperparameters, training = VARIANTS[variant]
    unseen = {**market, "evaluation_split": "test"}
    market = {name: value for name, value in market.items() if name != "evaluation_end"}
    cohort = CohortConfig(
        "sac", tuple(MemberConfig(f"seed-{s}", s) for s in range(seeds)), hyperparameters
    )
    environment = StockTrading(seeds, device, **{**market, **training})
    spaces = environment.observation_space, environment.action_space
    algorithm = algorithm_class("sac")(cohort, *spaces, device)
    collector = Collector(environment, algorithm.actor, torch.arange(seeds, device=device))
    actor = algorithm.make_actor(cohort, *spaces)
    splits = [StockTrading(seeds, evaluation=True, **arguments) for arguments in (market, unseen)]
    held = play_baseline("equal_weight_monthly", StockTrading(1, evaluation=True, **unseen))
    holding = np.diff(held.value) / held.value[:-1]
    looks = []
    for count in snapshots:
        while algorithm.gradient_steps < count:
            algorithm.update(collector.collect(algorithm.horizon, policy_version=algorithm.version))
        actor.load_state(algorithm.actor_state())
        (score, *_), (_, sharpe, invested) = (play(actor, split, holding) for split in splits)
        looks.append({"gradient_steps": count, "validation": score, "sharpe": sharpe, **invested})
        print(
            f"{variant}, {test}: {count:,} gradient steps, Sharpe ratio {spread(sharpe)}",
            flush=True,
        )
    return looks


def play(
    actor: Evaluated, environment: StockTrading, holding: Array
) -> tuple[list[float], list[float], dict[str, list[float]]]:
    """The score, the Sharpe ratio and the habits of each member's account, greedily.

    `holding` are the daily returns of the same days; habits of other days mean nothing.
    """
    decisions: list[Decision] = []
    environment.watch = decisions.append
    results = GreedyEvaluator(lambda _: environment, all_alike=True).evaluate(
        actor, [0], block_rows=1
    )
    environment.watch = None
    decisions = decisions[: len(environment.bars) - 1]
    bars = slice(environment.bars.start + 1, environment.bars.start + 1 + len(decisions))
    close = environment.market.close[bars].double().numpy()[:, None]
    value, cash = (
        np.stack([getattr(each, name).double().numpy() for each in decisions])
        for name in ("value", "cash")
    )
    part = np.stack([each.shares.double().numpy() for each in decisions]) * close / value[..., None]
    traded = np.stack(
        [(each.traded.abs() * each.price).sum(1).double().numpy() for each in decisions]
    )
    before = np.concatenate(
        [np.full((1, value.shape[1]), environment.config.initial_cash), value[:-1]]
    )
    returns = value / before - 1.0
    around = holding[: len(returns)] - holding[: len(returns)].mean()
    beta = (around[:, None] * returns[: len(around)]).mean(0) / around.var()
    habits = {
        "cash": (cash / value).mean(0),
        "concentration": ((part**2).sum(2) / np.maximum(part.sum(2) ** 2, 1e-9)).mean(0),
        "turnover": (traded / before).mean(0) * DAYS_A_YEAR,
        "beta": beta,
    }
    scores = [result.lower_bound for result in results]
    return (
        scores,
        _rounded(sharpe_ratio(returns.T)),
        {name: _rounded(each) for name, each in habits.items()},
    )


def _rounded(values: Array) -> list[float]:
    return [round(float(value), 4) for value in values]


def report(runs: Sequence[Mapping[str, Any]]) -> None:
    chosen_rows, look_rows, habit_rows = [], [], []
    figures: dict[str, Any] = {}
    for run in runs:
        looks, name = run["looks"], f"{run['variant']}, {run['test']}"
        best = np.argmax([look["validation"] for look in looks], axis=0)
        chosen = [looks[best[seed]]["sharpe"][seed] for seed in range(run["seeds"])]
        figures[name] = {"chosen": chosen, "last": looks[-1]["sharpe"]}
        steps = [looks[index]["gradient_steps"] for index in best]
        chosen_rows.append([name, spread(chosen), spread(looks[-1]["sharpe"]), spread(steps)])
        look_rows.append([name, *(round(float(np.median(look["sharpe"])), 2) for look in looks)])
        habits = [
            round(float(np.median(looks[-1][habit])), 2)
            for habit in ("cash", "concentration", "turnover", "beta")
        ]
        habit_rows.append([name, *habits])
    print_table(
        "Sharpe ratio of the test",
        ["variant, test", "chosen", "last", "gradient steps, chosen"],
        chosen_rows,
    )
    counts = [str(look["gradient_steps"]) for look in runs[0]["looks"]]
    print_table("Its median after so many gradient steps", ["variant, test", *counts], look_rows)
    print_table(
        "How the last policy is invested, medians",
        ["variant, test", "cash", "concentration", "turnover", "beta"],
        habit_rows,
    )
    finish("trading_sac", figures, {})


if __name__ == "__main__":
    main()

"""Trading agents beside other libraries' agents and beside simple baselines: return, Sharpe ratio
and largest fall in unseen years.

Each year is a season: everything before the year before it trains, the year before it selects, and
the year itself is played once, by the policy that was selected (before 2017 half a year trains, and
half a year selects). Fills at the next open, 0.1 % of purchases and 0.2 % of sales. Everybody has
the same market, the same wall time for training, snapshots as often, and the same selection: the
largest lower bound of the validation's Sharpe ratio, by a stationary bootstrap. Ours has
evaluations inside that time; the peers' clocks stand still while they are looked at.

    tournament   ours: PPO, SAC and TD3 compete (`podracer run`, then `podracer backtest` of the
                 best)
    ensemble     the four best of the same tournament, or as many as its leaderboard has, act
                 together (`podracer backtest --ensemble 4`)
    single       the paper's ablation: one PPO agent of ours with its default hyperparameters
    sb3_ppo, sb3_sac, rllib_ppo   with their own defaults
    buy_and_hold, equal_weight    without learning

Runs are kept in `--results`, a line each: an interrupted comparison continues. RLlib lives in a
virtual environment of its own, see trading_speed.py. Without `--data` an invented market is traded,
which says nothing of a real one."""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np
from lab.arguments import PEERS as PLACE
from lab.arguments import RESULTS, arguments
from lab.peers import found_peers, run_script
from lab.processes import PODRACER, run_job
from lab.report import versions
from lab.runs import Runs
from trading_report import ENSEMBLE, OURS, draw, report
from trading_seasons import Returns, Run, Season, TradingOrder, key_of

from podracer_trading.backtest import daily_returns, sharpe_ratio
from podracer_trading.backtesting import play_baseline
from podracer_trading.environment import StockTrading

SINGLE, RLLIB = "single", "rllib_ppo"
PLACES = 4
PEERS = {
    "sb3_ppo": ("trading_baselines.py", "ppo", 8),
    "sb3_sac": ("trading_baselines.py", "sac", 1),
    RLLIB: ("trading_rllib.py", "ppo", 8),
}
BASELINES = {"buy_and_hold": "buy_and_hold", "equal_weight": "equal_weight_monthly"}
METHODS = (OURS, ENSEMBLE, SINGLE, *PEERS, *BASELINES)
START_S, END_S = 120.0, 120.0


def main() -> None:
    parser = arguments(
        __doc__,
        "an invented market, one short season: under a minute",
        seeds=5,
        seconds=60.0,
        results=RESULTS / "trading.jsonl",
        peers=PLACE,
    )
    parser.add_argument("--data", type=Path, help="a price table; unset: an invented one")
    parser.add_argument("--columns", default="", help="names that differ: ticker=tic,time=date")
    # Of years and adjustments the first is the headline.
    parser.add_argument("--years", type=int, nargs="+", default=[2019, 2018, 2017])
    kinds = ["auto", "none"]
    parser.add_argument("--adjust", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--snapshots", type=int, default=12, help="in that time")
    parser.add_argument("--max-stock", type=int, default=5000, help="shares in one decision")
    parser.add_argument("--figure", type=Path, help="write the accounts of the headline as PNG")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trading-") as scratch:
        if options.quick:
            options.seeds, options.seconds, options.snapshots, options.data = 1, 10.0, 3, None
            options.methods = [OURS, ENSEMBLE, "sb3_ppo", *BASELINES]
            options.results = Path(scratch, "results.jsonl")
        if options.data is None:
            options.data = invented(Path(scratch, "prices.csv"))
            options.years, options.adjust, options.columns = [2024], ["auto"], ""
        if not options.data.is_file():
            parser.error(f"--data: there is no file {options.data}")
        options.data = options.data.resolve()
        there = found_peers(options, "ppo", ("ray", "gymnasium", "torch"))
        if "ray" not in there:
            options.methods = [name for name in options.methods if name != RLLIB]
        print(versions("torch", "stable-baselines3", "numpy"), f"· {options.seconds:g} s a run")
        seasons = [Season(year, adjust) for adjust in options.adjust for year in options.years]
        found = {season: gathered(season, options, Path(scratch)) for season in seasons}
    report(found, options.seconds)
    if options.figure:
        draw(found[seasons[0]], seasons[0], options.figure)


def gathered(season: Season, options: argparse.Namespace, scratch: Path) -> Returns:
    """All runs of a season, seed after seed; those that the results have already are not made
    again."""
    runs = Runs(Run, options.results)
    rows: dict[str, list[Sequence[float]]] = {name: [] for name in options.methods}
    market = {
        "data": hashlib.sha256(options.data.read_bytes()).hexdigest(),
        "columns": options.columns,
        "max_stock": options.max_stock,
        **asdict(season),
    }
    for seed in range(options.seeds):
        for name in options.methods:
            if name in BASELINES and seed:
                continue
            settings = {**market, "method": name, "seed": seed}
            if name not in BASELINES:
                settings |= {"seconds": options.seconds, "snapshots": options.snapshots}
            run = runs.get(key_of(settings))
            if run is None:
                made = _run(name, seed, season, options, scratch)
                found = [Run({**settings, "method": each}, made[each]) for each in made]
                runs.add(each for each in found if each.key not in runs)
                run = runs.get(key_of(settings))
            assert run is not None, "it was made"
            rows[name].append(run.returns)
            ratio = float(sharpe_ratio(np.array(run.returns)))
            print(f"{season.title}, {name}, seed {seed}: Sharpe {ratio:.2f}", flush=True)
    return {name: np.array(of_seeds) for name, of_seeds in rows.items()}


def _run(
    name: str, seed: int, season: Season, options: argparse.Namespace, scratch: Path
) -> dict[str, list[float]]:
    """Daily returns of the test year, by method: a tournament's of its best and of its ensemble."""
    columns = dict(pair.split("=", 1) for pair in options.columns.split(",") if pair)
    arguments = season.arguments(columns, options.max_stock)
    if name in BASELINES:
        last = {"evaluation_split": "test", "evaluation_end": season.end}
        market = StockTrading(1, evaluation=True, table=str(options.data), **arguments, **last)
        record = play_baseline(BASELINES[name], market)
        return {name: _floats(daily_returns(record.times, record.value))}
    if name in PEERS:
        script, algorithm, envs = PEERS[name]
        whole, threads = {**arguments, "table": str(options.data)}, os.cpu_count() or 1
        about = (options.seconds, whole, options.snapshots, season.end)
        order = TradingOrder(algorithm, envs, threads, seed, *about)
        timeout_s = START_S + 4 * order.seconds + END_S
        peers = options.peers if name == RLLIB else None
        log = scratch / f"{name}.log"
        told = run_script(
            f"trading/{script}", order, log, timeout_s, until=("season",), peers=peers
        )
        return {name: _floats(told.need("season")[1]["returns"])}
    method = SINGLE if name == SINGLE else OURS
    job = our_job(method, seed, arguments, options.data, options.seconds, options.snapshots)
    return _ours(job, season.end, options, scratch)


def _ours(
    job: dict[str, Any], test_end: str, options: argparse.Namespace, scratch: Path
) -> dict[str, list[float]]:
    """A job, and back-tests of its best policy and of a tournament's ensemble, by the commands that
    a user has."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    run = run_job(job, folder, START_S + 2 * options.seconds + END_S)
    progress = run.last("progress")
    if progress is None or not run.need("job_finished")[1]["checkpoint"]:
        raise SystemExit(f"{job['name']} has no policy\n{run.tail}")
    policies = {job["name"]: [progress[1]["job"]]}
    if job["name"] == OURS:
        policies[ENSEMBLE] = _ensemble(progress[1]["job"], folder / "runs")
    return {
        name: _back_tested(policy, test_end, folder / name, folder / "runs")
        for name, policy in policies.items()
    }


def _ensemble(job: str, state: Path) -> list[str]:
    """A job's best `PLACES` candidates for `podracer backtest`: a short job has fewer, and with
    fewer than two its best policy acts alone."""
    command = [*PODRACER, "leaderboard", job, "--json", "--dir", str(state)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    places = min(PLACES, len(listed.stdout.splitlines()))
    return [job, "--ensemble", str(places)] if places > 1 else [job]


def _back_tested(policy: Sequence[str], test_end: str, out: Path, state: Path) -> list[float]:
    command = [*PODRACER, "backtest", *policy, "--to", test_end, "--against", "cash"]
    command += ["-o", str(out), "--dir", str(state)]
    tested = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    if tested.returncode:
        raise SystemExit(f"{' '.join(command)}\n{tested.stderr[-3000:]}")
    with (out / "equity.csv").open() as file:
        rows = list(csv.DictReader(file))
    times = np.array([row["time"] for row in rows], "datetime64[us]")
    return _floats(daily_returns(times, np.array([float(row["value"]) for row in rows])))


def _floats(values: Any) -> list[float]:
    return [float(each) for each in values]


def our_job(
    name: str, seed: int, arguments: dict[str, Any], data: Path, seconds: float, snapshots: int
) -> dict[str, Any]:
    """The job file of the tournament or of the single agent."""
    job: dict[str, Any] = {
        "name": name,
        "environment": {"id": "StockTrading-v0", "kwargs": arguments},
        "data": {"table": str(data)},
        "objective": {"max_duration": f"{seconds:g}s"},
        "seed": seed,
    }
    if name == SINGLE:
        # not searched: all else keeps its default
        job["search"] = {"algorithms": ["ppo"], "space": {"gamma": 0.99}}
        # It is not replaced: the random generator only fills free places.
        job["evolution"] = {"population": 1, "leaderboard_size": 1, "generator": "random"}
        job["pod"] = {"count": 1, "layout": "fused", "members": 1}
    else:
        job["search"] = {"algorithms": ["ppo", "sac", "td3"]}
        job["evolution"] = {"population": 8, "leaderboard_size": PLACES}
    job["evolution"]["round"] = {"seconds": seconds / snapshots}
    return job


def invented(path: Path) -> Path:
    """A market with a little to learn; the same every time."""
    command = [*PODRACER, "data", "make", str(path), "--tickers", "8", "--bars", "1300"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return path


if __name__ == "__main__":
    main()

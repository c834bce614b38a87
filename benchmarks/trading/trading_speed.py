"""Training steps/s of PPO on StockTrading-v0 with 30 stocks, beside Stable-Baselines3 and RLlib.

Learning is included, looking at policies is not. Ours is the training session that a fused pod's
learner runs, with 1,024 accounts. The peers have accounts written in NumPy, with the same market
and rules, and their own default settings: with 8 accounts, as their users have them, and
Stable-Baselines3 with as many as ours, too. All have the same number of threads; each run is a
process of its own, and they take turns, repeat after repeat.

RLlib lives in a virtual environment of its own: `--setup` makes it, in `--peers` or $PODRACER_PEERS
or .venv-peers."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lab.arguments import PEERS, arguments
from lab.peers import found_peers, run_script
from lab.report import Target, finish, print_table, spread, versions
from lab.statistics import paired
from peers.stock_market import STOCKS, write_market
from trading_seasons import TradingOrder

LEAST_RATIO = 30.0
START_S = 120.0


@dataclass(frozen=True)
class System:
    """A peer, or ours: the script that trains, and its accounts."""

    title: str
    script: str
    num_envs: int
    in_peers: bool = False


SYSTEMS = {
    "ours": System("Podracer", "trading_podracer.py", 1024),
    "sb3": System("Stable-Baselines3", "trading_baselines.py", 8),
    "sb3_many": System("Stable-Baselines3", "trading_baselines.py", 1024),
    "rllib": System("RLlib", "trading_rllib.py", 8, in_peers=True),
}


def main() -> None:
    options = arguments(
        __doc__,
        "ours and Stable-Baselines3, once: under a minute",
        repeats=5,
        seconds=15.0,
        threads=os.cpu_count(),
        peers=PEERS,
    ).parse_args()
    names = list(SYSTEMS)
    there = found_peers(options, "ppo", ("ray", "gymnasium", "torch"))
    if options.quick:
        options.repeats, options.seconds, names = 1, 4.0, ["ours", "sb3"]
    elif "ray" not in there:
        names.remove("rllib")
    print(versions("torch", "stable-baselines3", "numpy"), f"· {options.threads} threads")
    speeds: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="trading-speed-") as scratch:
        table = write_market(Path(scratch, "prices.csv"))
        for repeat in range(options.repeats):
            for name in names:
                speeds[name].append(_measure(name, repeat, table, options))
                print(f"{name}: {speeds[name][-1]:,.0f} steps/s", flush=True)
    ratios = {name: paired(speeds["ours"], speeds[name]) for name in names[1:]}
    print_table(
        f"PPO on StockTrading-v0, {STOCKS} stocks: environment steps/s, learning included, median "
        "(least – greatest)",
        ["system", "accounts", "steps/s", "ours ÷ it"],
        [
            [SYSTEMS[n].title, SYSTEMS[n].num_envs, spread(speeds[n]), ratios.get(n, "")]
            for n in names
        ],
    )
    targets = {f"over_{name}": Target(ratios.get(name), LEAST_RATIO) for name in ("sb3", "rllib")}
    finish("trading_speed", {"steps_per_second": speeds, "ours_over": ratios}, targets)


def _measure(name: str, repeat: int, table: Path, options: argparse.Namespace) -> float:
    system, market = SYSTEMS[name], {"table": str(table)}
    order = TradingOrder("ppo", system.num_envs, options.threads, repeat, options.seconds, market)
    told = run_script(
        f"trading/{system.script}",
        order,
        table.with_name(f"{name}.log"),
        START_S + 4 * options.seconds,
        until=("speed",),
        peers=options.peers if system.in_peers else None,
    )
    return float(told.need("speed")[1]["env_steps_per_second"])


if __name__ == "__main__":
    main()

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
import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measured_process import run_measured
from peers.stock_market import STOCKS, write_market
from peers.virtual_environment import PLACE, installed, python_of, set_up
from report import Target, finish, print_table, spread, versions
from trading_order import TradingOrder

from podracer_core.native_settings import NATIVE_SETTINGS

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "benchmarks" / "trading"
CODE = ("libs/podracer_core", "libs/podracer_trading", "benchmarks")
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="ours and Stable-Baselines3, once: under a minute"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0, help="of a measurement")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch")
    parser.add_argument(
        "--setup", action="store_true", help="make the virtual environment of RLlib first"
    )
    parser.add_argument("--peers", type=Path, default=PLACE)
    options = parser.parse_args()
    if options.setup:
        set_up(options.peers, ROOT / "benchmarks" / "peers" / "requirements-ppo.txt")
    names = list(SYSTEMS)
    there = installed(options.peers, ("ray", "gymnasium", "torch"))
    if options.quick:
        options.repeats, options.seconds, names = 1, 4.0, ["ours", "sb3"]
    elif "ray" not in there:
        names.remove("rllib")
        print("RLlib is left out: it is not installed (--setup)")
    print(
        versions("torch", "stable-baselines3", "numpy"),
        there or "",
        f"· {options.threads} threads",
        flush=True,
    )
    speeds: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="trading-speed-") as scratch:
        table = write_market(Path(scratch, "prices.csv"))
        for repeat in range(options.repeats):
            for name in names:
                speeds[name].append(_measure(name, repeat, table, options))
                print(f"{name}: {speeds[name][-1]:,.0f} steps/s", flush=True)
    ratios = {
        name: statistics.median(
            ours / peer for ours, peer in zip(speeds["ours"], speeds[name], strict=True)
        )
        for name in names[1:]
    }
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
    system = SYSTEMS[name]
    order = TradingOrder(
        system.num_envs, options.threads, repeat, options.seconds, {"table": str(table)}
    )
    python = python_of(options.peers) if system.in_peers else Path(sys.executable)
    log = table.with_name(f"{name}.log")
    measured = run_measured(
        [str(python), str(SCRIPTS / system.script), json.dumps(asdict(order))],
        log,
        environment={"PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in CODE)}
        | (NATIVE_SETTINGS if name == "ours" else {}),
        timeout_s=START_S + 4 * options.seconds,
        until=("speed",),
    )
    told = measured.first("speed")
    if told is None:
        raise SystemExit(
            f"{name} has not told its speed\n{log.read_text(errors='replace')[-3000:]}"
        )
    return float(told[1]["env_steps_per_second"])


if __name__ == "__main__":
    main()

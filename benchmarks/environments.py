"""Environment steps/s beside Gymnasium's vector environments and, where it is installed, envpool.

Nothing learns here: actions are drawn beforehand, episodes end and start again as they do in
training. A step is one decision: the physics steps of a frame skip count as one, as Gymnasium
counts them. Each row is measured in a process of its own that holds every system ready and lets
them step in turn, a window of some seconds each, on the same cores; the ratios are those of windows
that follow one another.

Gymnasium's SyncVectorEnv and AsyncVectorEnv run as they come: a step that only resets an ended
episode counts as a step of theirs, where ours resets within the step. AsyncVectorEnv has a process
an environment, ours as many as cores."""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any

from lab.arguments import RECORDS, ROOT, arguments
from lab.processes import in_process
from lab.report import Target, finish, number_text, print_table, spread, versions
from lab.statistics import paired
from peers.environment_systems import Row, measure

TITLES = {
    "ours": "Podracer",
    "loop": "Gymnasium's, one after the other",
    "baselines": "Stable-Baselines3's DummyVecEnv, normalized",
    "sync": "SyncVectorEnv",
    "async": "AsyncVectorEnv",
    "envpool": "envpool",
    "vector": "Gymnasium's CartPoleVectorEnv",
    "python": "one environment in plain Python",
    "arrays": "one environment in NumPy",
}
PAGE = RECORDS / "environments.md"
BEGIN, END = "<!-- written by benchmarks/environments.py --write -->", "<!-- end -->"
COLUMNS = ("environment", "system", "N", "cores", "steps/s", "ours ÷ it")
PEERS = ("sync", "async", "envpool")
PAGE_COLUMNS = ("environment", "N", TITLES["ours"], *(TITLES[peer] for peer in PEERS), "another")


def _mujoco(name: str, quick: bool, **peer_kwargs: Any) -> Row:
    peers = ("loop", "sync", "async", "baselines", "envpool")
    return Row(name, "MuJoCo", name, 64, peers, 64, peer_kwargs=peer_kwargs, quick=quick)


def _processes(name: str, entry_point: str, limit: int, num_envs: int, quick: bool = False) -> Row:
    about = (f"{name} in processes, N = {num_envs}", "processes", entry_point, num_envs)
    peers = ("sync", "async")
    return Row(*about, peers, num_envs, max_episode_steps=limit, quick=quick)


def _classic(name: str, *more: str, quick: bool = False) -> Row:
    # One thread of torch: the tensors are too small to be shared out. The peers keep both cores.
    peers = ("sync", "async", "envpool", *more)
    return Row(name, "classic control", name, 16_384, peers, 64, threads=1, quick=quick)


_CLASSIC = "gymnasium.envs.classic_control:"
_CHEETAH = "gymnasium.envs.mujoco.half_cheetah_v5:HalfCheetahEnv"
# As ours: no contact forces among the observations (Gymnasium computes them all the same).
_NO_FORCES = {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0}
ROWS = (
    _mujoco("Ant-v5", quick=True, **_NO_FORCES),
    _mujoco("Humanoid-v5", quick=False, **_NO_FORCES),
    _mujoco("HalfCheetah-v5", quick=True),
    _processes("CartPole", f"{_CLASSIC}CartPoleEnv", 500, 8, quick=True),
    _processes("CartPole", f"{_CLASSIC}CartPoleEnv", 500, 64),
    _processes("MountainCarContinuous", f"{_CLASSIC}Continuous_MountainCarEnv", 999, 8),
    _processes("MountainCarContinuous", f"{_CLASSIC}Continuous_MountainCarEnv", 999, 64),
    _processes("HalfCheetah", _CHEETAH, 1000, 8, quick=True),
    _processes("HalfCheetah", _CHEETAH, 1000, 64),
    _classic("CartPole-v1", "vector", quick=True),
    *map(_classic, ("Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0")),
    Row("PointChasing-v0", "other", "PointChasing-v0", 16_384, threads=1),
    Row("PointChasingDiscrete-v0", "other", "PointChasingDiscrete-v0", 16_384, threads=1),
    Row(
        "StockTrading-v0",
        "other",
        "StockTrading-v0",
        2048,
        ("python", "arrays"),
        1,
        1,
        1,
        quick=True,
    ),
)

Speeds = dict[str, dict[str, list[float]]]  # row -> system -> steps/s of each window


def main() -> None:
    parser = arguments(
        __doc__,
        "a few rows, two short windows each: under a minute",
        repeats=5,
        seconds=1.0,
        worker="",
    )
    parser.add_argument("--only", nargs="+", default=[], help="rows whose names begin like this")
    parser.add_argument(
        "--write", action="store_true", help=f"put the figures into {PAGE.relative_to(ROOT)} too"
    )
    options = parser.parse_args()
    if options.worker:
        order = json.loads(options.worker)
        row = next(row for row in ROWS if row.name == order["row"])
        print(json.dumps(measure(row, order["repeats"], order["seconds"])))
        return
    if options.quick:
        options.repeats, options.seconds = 2, 0.3
    rows = [row for row in ROWS if not options.only or row.name.startswith(tuple(options.only))]
    if not rows:
        parser.error(f"there are only the rows {', '.join(row.name for row in ROWS)}")
    if options.quick and not options.only:
        rows = [row for row in rows if row.quick]
    more = [name for name in ("envpool",) if importlib.util.find_spec(name) is not None]
    setting = f"{options.repeats} windows of {options.seconds:g} s in turn"
    setting = f"{versions('torch', 'mujoco', 'gymnasium', 'numpy', *more)} · {setting}"
    print(setting, flush=True)
    speeds: Speeds = {}
    for group in dict.fromkeys(row.group for row in rows):
        of_group = [row for row in rows if row.group == group]
        for row in of_group:
            speeds[row.name] = _in_process(row, options)
        title = f"{group}: environment steps/s, median (least – greatest), and paired ratios"
        print_table(title, COLUMNS, _table(of_group, speeds))
        sys.stdout.flush()
    figures = {
        "steps_per_second": speeds,
        "ours_over": {
            name: {peer: _paired(found, peer) for peer in found} for name, found in speeds.items()
        },
    }
    targets = _targets(speeds)
    if options.write:
        _write_page(setting, rows, speeds)
    finish("environments", figures, targets)


def _table(rows: list[Row], speeds: Speeds) -> list[list[object]]:
    table: list[list[object]] = []
    for row in rows:
        for system, found in speeds[row.name].items():
            count = row.num_envs if system in ("ours", "vector") else row.peer_envs
            ratio = "" if system == "ours" else _paired(speeds[row.name], system)
            table.append([row.name, TITLES[system], count, row.cores, spread(found), ratio])
    return table


def _page_table(rows: list[Row], speeds: Speeds) -> list[list[object]]:
    """A line for each row: medians, with the ratio of ours to a peer's in brackets."""

    def figure(name: str, system: str) -> str:
        found = speeds[name]
        if system not in found:
            return ""
        ratio = f" ({number_text(_paired(found, system))})" if system != "ours" else ""
        return f"{number_text(statistics.median(found[system]))}{ratio}"

    table: list[list[object]] = []
    for row in rows:
        others = [peer for peer in speeds[row.name] if peer not in ("ours", *PEERS)]
        another = "; ".join(f"{TITLES[peer]}: {figure(row.name, peer)}" for peer in others)
        figures = [figure(row.name, system) for system in ("ours", *PEERS)]
        table.append([row.name, row.num_envs, *figures, another])
    return table


def _write_page(setting: str, rows: list[Row], speeds: Speeds) -> None:
    """Put the figures between the marks of the page."""
    lines = [f"{time.strftime('%Y-%m-%d')}, {setting}.", ""]
    table = [PAGE_COLUMNS, ["---"] * len(PAGE_COLUMNS), *_page_table(rows, speeds)]
    lines += [*(f"| {' | '.join(map(number_text, line))} |" for line in table), ""]
    before, rest = PAGE.read_text().split(f"{BEGIN}\n")
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n{chr(10).join(lines)}{END}{after}")


def _targets(speeds: Speeds) -> dict[str, Target]:
    """Those of the rows that were measured; None where a peer is not installed."""
    over_async = {"Ant-v5": 3, "Humanoid-v5": 3, "HalfCheetah-v5": 10}
    in_processes = [row.name for row in ROWS if row.group == "processes" and row.name in speeds]
    over_async |= {name: 3 for name in in_processes if not name.startswith("HalfCheetah")}
    wanted = {(name, "async"): least for name, least in over_async.items()}
    wanted |= {("Ant-v5", "envpool"): 1.1, ("Humanoid-v5", "envpool"): 1.1}
    targets = {
        f"{name}_over_{peer}": Target(_paired(speeds[name], peer), least)
        for (name, peer), least in wanted.items()
        if name in speeds
    }
    if in_processes:
        ratios = [_paired(speeds[name], "async") for name in in_processes]
        targets["least_in_processes_over_async"] = Target(min(filter(None, ratios)), 1)
    for name, least in (("CartPole-v1", 20e6), ("StockTrading-v0", 200e3)):
        if name in speeds:
            pace = statistics.median(speeds[name]["ours"])
            targets[f"{name}_steps_per_second"] = Target(pace, least)
    if found := speeds.get("StockTrading-v0"):
        ratios = [_paired(found, peer) for peer in ("python", "arrays")]
        slowest = min(filter(None, ratios), default=None)
        targets["StockTrading-v0_over_python"] = Target(slowest, 50)
    return targets


def _paired(found: Mapping[str, list[float]], peer: str) -> float | None:
    """Median of ours over the peer's, window by window; None where the peer was not measured."""
    return paired(found["ours"], found[peer]) if peer in found else None


def _in_process(row: Row, options: argparse.Namespace) -> dict[str, list[float]]:
    order = {"row": row.name, "repeats": options.repeats, "seconds": options.seconds}
    threads = {f"{library}_NUM_THREADS": str(row.threads) for library in ("OMP", "MKL", "OPENBLAS")}
    return in_process(__file__, order, **threads)


if __name__ == "__main__":
    main()

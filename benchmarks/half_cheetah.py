"""SAC and TD3 on HalfCheetah-v5: one seed each, 300,000 environment steps, greedy return of 10
episodes every 10,000.

The curves go to docs/benchmarks/half_cheetah_<algorithm>.csv and half_cheetah.png; SAC has to pass
5,000 and TD3 4,000. `--algorithm` runs one of them (two processes use two cores); `--plot` only
draws the picture from the tables."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from ant import FOLDER, Curve, make_training, plot, train
from report import Target, finish, print_table, versions

TARGETS = {"sac": 5000.0, "td3": 4000.0}
RECIPE = {
    "learning_rate": 1e-3,
    "batch_size": 128,
    "hidden_sizes": (256, 256),
    "horizon": 4,
    "updates_per_step": 1.0,
    "learning_starts": 10_000,
    "replay_capacity": 300_000,
}
TASK, NUM_ENVS, EVERY = "HalfCheetah-v5", 2, 10_000
TABLES = {name: FOLDER / f"half_cheetah_{name}.csv" for name in TARGETS}
PICTURE = FOLDER / "half_cheetah.png", "HalfCheetah-v5, one seed each", TABLES, TARGETS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="2,000 steps each: whether it runs, under a minute"
    )
    parser.add_argument(
        "--algorithm", choices=sorted(TARGETS), action="append", help="only this one"
    )
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--plot", action="store_true", help="draw the picture from the tables that are there"
    )
    options = parser.parse_args()
    names = options.algorithm or sorted(TARGETS)
    if options.plot:
        plot(*PICTURE)
        return
    print(versions("torch", "mujoco-core", "gymnasium"), "· 1 torch thread")
    torch.set_num_threads(1)
    curves = {}
    for name in names:
        if options.quick:
            with tempfile.TemporaryDirectory() as folder:
                table = Path(folder, "curve.csv")
                curves[name] = curve_of(
                    name, 2_000, options.seed, table, every=1_000, learning_starts=500
                )
        else:
            curves[name] = curve_of(name, options.steps, options.seed, TABLES[name])
    if not options.quick and not options.algorithm:
        plot(*PICTURE)
    print_table(
        "Greedy return of 10 episodes",
        ["algorithm", "best", "last", "environment steps", "seconds"],
        [
            [name, max(row[1] for row in curve), curve[-1][1], curve[-1][0], curve[-1][3]]
            for name, curve in curves.items()
        ],
    )
    finish(
        "half_cheetah",
        {name: [list(row) for row in curve] for name, curve in curves.items()},
        {
            name: Target(max(row[1] for row in curve), TARGETS[name])
            for name, curve in curves.items()
        },
    )


def curve_of(
    name: str, steps: int, seed: int, table: Path, every: int = EVERY, **changes: int
) -> Curve:
    return train(
        make_training(seed, TASK, name, NUM_ENVS, RECIPE | changes), TASK, steps, seed, table, every
    )


if __name__ == "__main__":
    main()

"""Agents of benchmarks/returns.py and benchmarks/ppo_details.py, trained by processes of their
own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peers.ppo_recipes import SAME, hyperparameters
from peers.returns_order import DEFAULT, EPISODES, ReturnsOrder
from peers.returns_runs import Run, digest

from podracer_core.catalogue import find_algorithm

PEERS = Path(__file__).resolve().parent
SCRIPTS = {"ours": "returns_podracer.py", "sb3": "returns_baselines.py"}
TITLES = {"ours": "Podracer", "sb3": "Stable-Baselines3"}


def settings_of(system: str, every: int) -> str:
    """Ours counts the catalogue's defaults in: with another default it is another run."""
    own = find_algorithm("ppo").defaults() if system == "ours" else {}
    return digest(
        own
        | hyperparameters(SAME)
        | {"num_envs": SAME.num_envs, "every": every, "episodes": EPISODES}
    )


def train(order: ReturnsOrder, system: str) -> list[Run]:
    """The runs of an order, trained in a process of its own. Raises SystemExit where it fails."""
    looks: list[dict[str, Any]] = []
    seeds = ", ".join(map(str, order.seeds))
    print(f"{order.environment}, {TITLES[system]}, {order.variant}, seeds {seeds}", flush=True)
    # MuJoCo writes its log where it stands
    with tempfile.TemporaryDirectory(prefix="returns-") as scratch:
        log = Path(scratch, "log")
        with log.open("w") as errors:
            command = [sys.executable, str(PEERS / SCRIPTS[system]), json.dumps(asdict(order))]
            with subprocess.Popen(
                command, cwd=scratch, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process:
                for line in process.stdout or ():
                    looks.append(json.loads(line))
                    print(f"  {_text(looks[-1])}", flush=True)
        if process.returncode:
            raise SystemExit(f"{system} has failed\n{log.read_text(errors='replace')[-3000:]}")
    settings = settings_of(system, order.every)
    name = system if order.variant == DEFAULT else order.variant
    return [
        Run(
            order.environment,
            name,
            seed,
            settings,
            order.steps,
            [(look["env_steps"], look["returns"][index]) for look in looks],
            looks[-1]["training_seconds"],
        )
        for index, seed in enumerate(order.seeds)
    ]


def _text(look: dict[str, Any]) -> str:
    returns: Sequence[float] = look["returns"]
    mean = sum(returns) / len(returns)
    return (
        f"{look['env_steps']:,} steps, return {mean:,.0f}, {look['training_seconds']:,.0f} s "
        "of training"
    )

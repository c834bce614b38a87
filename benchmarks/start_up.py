"""How soon something happens: `podracer run examples/cartpole.yaml` beside Stable-Baselines3's PPO,
and short commands.

Seconds from the start of a process to the first environment steps of training, to the end of the
first update and to its exit, and the peak memory of all its processes together (PSS). Ours is the
whole command, with services and a tournament of eight agents to its target; the peer is one script
with `PPO("MlpPolicy", "CartPole-v1").learn(8192)`, its imports included. Our moments are the ends
of the first `collect` and `update` in the traces of the run, the peer's are those of its callback.
Besides: seconds of `podracer --help` and `podracer jobs`, and from Ctrl-C to the exit of a run with
a split pod. The systems take turns."""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.arguments import ROOT, arguments
from lab.processes import PODRACER, Measured, run_measured
from lab.report import Target, finish, print_table, spread, versions
from lab.statistics import paired

EXAMPLE = ROOT / "examples" / "cartpole.yaml"
PEER = """
import json, time
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

def tell(event):
    print(json.dumps({"event": event}), flush=True)

class Moments(BaseCallback):
    rollouts = 0

    def _on_rollout_start(self):
        self.rollouts += 1
        if self.rollouts == 2:
            tell("update")

    def _on_step(self):
        if self.num_timesteps == 1:
            tell("step")
        return True

PPO("MlpPolicy", "CartPole-v1", device="cpu").learn(8192, callback=Moments())
"""


@dataclass(frozen=True)
class Run:
    """Seconds since the process was started."""

    first_step_s: float
    first_update_s: float
    exit_s: float
    memory_mb: float


def main() -> None:
    options = arguments(__doc__, "once instead of five times", repeats=5).parse_args()
    repeats = 1 if options.quick else options.repeats
    print(versions("torch", "gymnasium", "stable_baselines3"))
    ours, peers, stops = [], [], []
    shorts: dict[str, list[float]] = {"podracer --help": [], "podracer jobs": []}
    with tempfile.TemporaryDirectory(prefix="start-up-") as scratch:
        folder = Path(scratch)
        for number in range(repeats):
            ours.append(_run_ours(folder / f"runs-{number}"))
            peers.append(_run_peer(folder))
            for command, seconds in shorts.items():
                seconds.append(_seconds_of(command.split()[1:], folder))
            stops.append(_stop_s(folder / f"stop-{number}"))
            print(
                f"repeat {number + 1} of {repeats}: ours {ours[-1]}, peer {peers[-1]}", flush=True
            )
    _report(ours, peers, shorts, stops)


def _run_ours(folder: Path) -> Run:
    command = [*PODRACER, "run", str(EXAMPLE), "--json", "--dir", str(folder)]
    begun, found, exit_s = _timed(command, folder.with_suffix(".log"))
    last = found.last("job_finished")
    assert last is not None and last[1]["state"] == "SUCCEEDED", last
    ends = {name: _first_end_s(folder, name) - begun for name in ("collect", "update")}
    return Run(ends["collect"], ends["update"], exit_s, found.peak_bytes / 1e6)


def _run_peer(folder: Path) -> Run:
    _, found, exit_s = _timed([sys.executable, "-c", PEER], folder / "peer.log")
    step, update = found.first("step"), found.first("update")
    assert step is not None and update is not None, (folder / "peer.log").read_text()
    return Run(step[0], update[0], exit_s, found.peak_bytes / 1e6)


def _timed(command: Sequence[str], log: Path) -> tuple[float, Measured, float]:
    """When it was started, in seconds since the epoch; what was measured; seconds to its exit."""
    begun = time.time()
    found = run_measured(command, log, timeout_s=240.0)
    return begun, found, time.time() - begun


def _first_end_s(folder: Path, name: str) -> float:
    """When the first span of that name had ended, in seconds since the epoch."""
    spans = [
        json.loads(line)
        for file in (folder / "traces").iterdir()
        for line in file.read_text().splitlines()
    ]
    return min(span["end_ns"] for span in spans if span.get("name") == name) / 1e9


def _seconds_of(arguments: Sequence[str], folder: Path) -> float:
    begun = time.perf_counter()
    subprocess.run(
        [*PODRACER, *arguments], cwd=folder, capture_output=True, check=False, timeout=60
    )
    return time.perf_counter() - begun


def _stop_s(folder: Path) -> float:
    """From Ctrl-C to the exit of a run that trains in a split pod."""
    folder.mkdir()
    job = folder / "job.yaml"
    job.write_text(
        EXAMPLE.read_text()
        .replace("target_return: 475", "target_return: 501")
        .replace("fused", "split")
    )
    command = [*PODRACER, "run", str(job), "--json", "--dir", str(folder / "runs")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{") and json.loads(line).get("live_env_steps"):
                break
        begun = time.perf_counter()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        process.wait(60)
    shutil.rmtree(folder)
    return time.perf_counter() - begun


def _report(
    ours: Sequence[Run],
    peers: Sequence[Run],
    shorts: dict[str, list[float]],
    stops: Sequence[float],
) -> None:
    moments = {
        "first environment steps, s": "first_step_s",
        "end of the first update, s": "first_update_s",
        "exit, s": "exit_s",
        "peak memory, MB": "memory_mb",
    }
    print_table(
        "From the start of the process: median (least – greatest)",
        ["", "podracer run", "Stable-Baselines3"],
        [
            [name, *(spread(getattr(run, of) for run in runs) for runs in (ours, peers))]
            for name, of in moments.items()
        ],
    )
    print_table(
        "Commands", ["", "seconds"], [*([name, spread(found)] for name, found in shorts.items())]
    )
    print_table("Ctrl-C to exit, split pod", ["", "seconds"], [["podracer run", spread(stops)]])
    ratio = paired(*([run.first_step_s for run in runs] for runs in (ours, peers)))
    targets = {
        "first step, ours ÷ SB3": Target(ratio, 1.5, at_most=True),
        "podracer run examples/cartpole.yaml, s": Target(
            statistics.median(run.exit_s for run in ours), 5.0, at_most=True
        ),
        "Ctrl-C to exit, s": Target(statistics.median(stops), 5.0, at_most=True),
    }
    targets |= {
        f"{name}, s": Target(statistics.median(found), 0.4, at_most=True)
        for name, found in shorts.items()
    }
    figures = {
        "ours": [vars(run) for run in ours],
        "sb3": [vars(run) for run in peers],
        "stops_s": list(stops),
    }
    finish("start_up", figures | {"commands_s": shorts}, targets)


if __name__ == "__main__":
    main()

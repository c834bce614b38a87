"""Runs jobs of the zoo, and compares each with its card; ends with 1 if one misses its target.

    python scripts/zoo.py                    # the short ones, as every night (`make zoo`)
    python scripts/zoo.py hopper --write     # also writes the card and a video, and draws the
                                             curves of all cards

Afterwards copy the row that is printed into docs/zoo.md. The state folders stay in runs/zoo.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from podracer_client.command import TITLES, row
from podracer_client.display import columns
from podracer_client.zoo import Entry, Run, entries, find_entry

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images" / "zoo"
PODRACER = (sys.executable, "-m", "podracer_client")
VIDEO_STEPS = 200


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="the short ones unless given")
    parser.add_argument(
        "--machine",
        default=f"{platform.machine()}, {platform.system()}",
        help="in words, for the card",
    )
    parser.add_argument(
        "--write", action="store_true", help="write cards, videos and the picture of the curves"
    )
    options = parser.parse_args()
    missed = []
    for entry in (
        map(find_entry, options.names)
        if options.names
        else [each for each in entries() if each.is_short]
    ):
        folder = ROOT / "runs" / "zoo" / f"{entry.name}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        begin = time.monotonic()
        events = _podracer("zoo", "run", entry.name, "--json", "--dir", str(folder))
        run = describe(events, time.monotonic() - begin, folder, options.machine)
        print(compared(entry, run), flush=True)
        missed += [entry.name] if run.outcome != "TARGET_REACHED" else []
        if options.write:
            write(entry, run, str(events[-1]["checkpoint"]))
    if options.write:
        plot(entries())
    if missed:
        sys.exit(f"missed the target: {', '.join(missed)}")


def _podracer(*arguments: str) -> list[dict[str, Any]]:
    """The JSON lines of a command; raises SystemExit if it failed."""
    done = subprocess.run([*PODRACER, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 3):
        sys.exit(f"podracer {' '.join(arguments)} ended with {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def describe(events: list[dict[str, Any]], wall_s: float, folder: Path, machine: str) -> Run:
    """What a run's card says, from the output of `podracer zoo run --json`."""
    end = events[-1]
    (job,) = {event["job"].rpartition("/")[2] for event in events if event["event"] == "progress"}
    best = _podracer("leaderboard", job, "--json", "--dir", str(folder))[0]
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "gymnasium"))
    return Run(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        outcome=end["outcome"],
        mean=round(best["mean"], 2),
        lower=round(best["lower_bound"], 2),
        upper=round(best["upper_bound"], 2),
        episodes=best["episodes"],
        algorithm=best["algorithm"],
        env_steps=end["env_steps"],
        device_s=end["cost_seconds"],
        wall_s=round(wall_s, 1),
        machine=machine,
        versions=f"Python {platform.python_version()}, {packages}",
        curve=_curve(event for event in events if event["event"] == "progress"),
    )


def _curve(events: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Each time at which the best return changed."""
    points: list[tuple[float, float]] = []
    for event in events:
        best = event["best_return"]
        if best is not None and (not points or round(best, 2) != points[-1][1]):
            points.append((round(event["train_seconds"], 1), round(best, 2)))
    return points


def compared(entry: Entry, run: Run) -> str:
    """The card's row above the run's."""
    now = Entry(entry.name, entry.job_file, "", run)
    return (
        columns(("", *TITLES), [("card", *row(entry)), ("now", *row(now))])
        + f"\n| {' | '.join(row(now))} |"
    )


def write(entry: Entry, run: Run, checkpoint: str) -> None:
    """The card, and a video of the best policy."""
    text = json.dumps({"note": "", "run": asdict(run)}, indent=2)
    text = re.sub(r"\[\s+(\S+),\s+(\S+)\s+\]", r"[\1, \2]", text)  # a point a line
    entry.job_file.with_suffix(".json").write_text(text + "\n")
    IMAGES.mkdir(parents=True, exist_ok=True)
    video = [
        "video",
        checkpoint,
        "-o",
        str(IMAGES / f"{entry.name}.mp4"),
        "--steps",
        str(VIDEO_STEPS),
    ]
    subprocess.run([*PODRACER, *video], check=False)  # not every environment can be drawn


def plot(known: list[Entry]) -> None:
    """The curves of all cards, in one picture."""
    from matplotlib.figure import Figure

    shown = [(entry, entry.run) for entry in known if entry.run is not None]
    figure = Figure(figsize=(10, 2.4 * -(-len(shown) // 3)), layout="constrained")
    for index, (entry, run) in enumerate(shown):
        axes = figure.add_subplot(-(-len(shown) // 3), 3, index + 1)
        times, returns = zip(*run.curve, strict=True)
        axes.step(times, returns, where="post", marker=".")
        if entry.job.objective.target_return is not None:
            axes.axhline(
                entry.job.objective.target_return, color="grey", linewidth=0.8, linestyle="--"
            )
        axes.set_title(entry.name, fontsize=9)
        axes.set_xlabel("seconds of training", fontsize=8)
        axes.tick_params(labelsize=7)
    figure.savefig(IMAGES / "curves.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()

"""The command line of a benchmark: `--quick`, and the arguments that several benchmarks have."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "docs" / "benchmarks"
RESULTS = ROOT / "runs" / "benchmarks"
PEERS = Path(os.environ.get("PODRACER_PEERS") or ROOT / ".venv-peers")

COMMON: dict[str, tuple[type, str]] = {
    "seeds": (int, "of each system"),
    "repeats": (int, "of each measurement"),
    "seconds": (float, "of a measurement"),
    "limit": (float, "seconds that a run may take"),
    "steps": (int, "environment steps of each agent"),
    "threads": (int, "of torch, and of the peers' libraries"),
    "device": (str, "cpu or cuda"),
    "results": (Path, "ended runs, a JSON line each"),
    "peers": (Path, "virtual environment of the peers whose packages exclude ours"),
    "worker": (str, argparse.SUPPRESS),
}


def arguments(description: str | None, quick: str, **defaults: Any) -> argparse.ArgumentParser:
    """A parser with `--quick`, and with those arguments of COMMON that have a default here.

    With `peers` comes `--setup`, which makes the virtual environment.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=quick)
    for name, default in defaults.items():
        kind, text = COMMON[name]
        parser.add_argument(f"--{name}", type=kind, default=default, help=text)
    if "peers" in defaults:
        parser.add_argument("--setup", action="store_true", help="make that environment first")
    return parser


def quick_results() -> Path:
    """A new file for the results of a quick run, which nothing continues."""
    return Path(tempfile.mkdtemp(prefix="benchmark-"), "quick.jsonl")

"""The virtual environment of those peers whose packages exclude ours, and the scripts in
benchmarks/ that train a peer or us in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lab.arguments import ROOT
from lab.processes import Measured, run_measured
from podracer_core.native import NATIVE_SETTINGS

BENCHMARKS = ROOT / "benchmarks"
CODE = os.pathsep.join(
    str(ROOT / folder) for folder in ("libs/podracer_core", "libs/podracer_trading", "benchmarks")
)


def found_peers(
    options: argparse.Namespace, requirements: str, packages: Sequence[str]
) -> dict[str, str]:
    """Those of `packages` that the virtual environment `--peers` has, with their versions; with
    `--setup` it is made first."""
    if options.setup:
        set_up(options.peers, BENCHMARKS / "peers" / f"requirements-{requirements}.txt")
    there = installed(options.peers, packages)
    text = ", ".join(f"{name} {version}" for name, version in there.items())
    print(f"in {options.peers}: {text or 'nothing (--setup)'}")
    return there


def set_up(folder: Path, requirements: Path) -> None:
    """Make it, or add what `requirements` has: torch first, exactly pinned."""
    if not python_of(folder).exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python_of(folder)), "-m", "pip"]
    install = [*pip, "install", "--quiet", "--disable-pip-version-check"]
    torch = next(
        line for line in requirements.read_text().splitlines() if line.startswith("torch==")
    )
    subprocess.run([*install, torch], check=True)
    subprocess.run([*install, "--requirement", str(requirements)], check=True)


def python_of(folder: Path) -> Path:
    """Its interpreter."""
    return folder / "bin" / "python"


def installed(folder: Path, packages: Sequence[str]) -> dict[str, str]:
    """Those of `packages` that are there, with their versions."""
    if not python_of(folder).exists():
        return {}
    code = (
        "import importlib.metadata as m, sys\n"
        "found = {d.name.lower(): d.version for d in m.distributions()}\n"
        "[print(name, found[name]) for name in sys.argv[1:] if name in found]"
    )
    command = [str(python_of(folder)), "-c", code, *packages]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    return dict(line.split() for line in found.stdout.splitlines())


def run_script(
    script: str,
    order: Any,
    log: Path,
    timeout_s: float,
    *,
    until: Sequence[str] = (),
    peers: Path | None = None,
    threads: int = 0,
    as_ours: bool = False,
    **more: Any,
) -> Measured:
    """A script below benchmarks/ that takes its order, a dataclass, as JSON and tells events.

    peers    the virtual environment that runs it, where it is not ours
    threads  of JAX
    as_ours  with the settings that our pods have for native libraries, as ours always is
    more     arguments of `run_measured`
    """
    python = str(python_of(peers)) if peers else sys.executable
    path = CODE if peers else os.pathsep.join([CODE, os.environ.get("PYTHONPATH", "")])
    variables = {"PYTHONPATH": path} | ({"PJRT_NPROC": str(threads)} if threads else {})
    is_native = as_ours or script.endswith("_podracer.py")
    return run_measured(
        [python, str(BENCHMARKS / script), json.dumps(asdict(order))],
        log,
        environment=variables | (NATIVE_SETTINGS if is_native else {}),
        timeout_s=timeout_s,
        until=until,
        **more,
    )

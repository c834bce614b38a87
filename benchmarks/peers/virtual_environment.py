"""The virtual environment of those peers whose packages exclude ours: `.venv-peers`, or wherever it
is told to be."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PLACE = Path(
    os.environ.get("PODRACER_PEERS") or Path(__file__).resolve().parents[2] / ".venv-peers"
)


def set_up(folder: Path, requirements: Path) -> None:
    """Make it, or add what `requirements` has: torch first, exactly pinned."""
    if not python_of(folder).exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [
        str(python_of(folder)),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
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

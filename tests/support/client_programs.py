"""The small clients of examples/clients, built as their README says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.processes import EXAMPLES, ROOT

LANGUAGES = {"python": (), "go": ("go",), "typescript": ("node", "npm")}
"""What each needs on PATH."""


def missing_programs(language: str) -> Sequence[str]:
    return [name for name in LANGUAGES[language] if shutil.which(name) is None]


def copy_clients(folder: Path) -> Path:
    """The clients as a checkout has them, with what `make descriptors` writes."""
    ignored = shutil.ignore_patterns(
        "node_modules", "stubs", "build", "common", "leaderboard", "orchestrator", "validate"
    )
    clients = folder / "examples" / "clients"
    shutil.copytree(EXAMPLES / "clients", clients, ignore=ignored)
    (folder / "dist").mkdir()
    run("make", "descriptors", f"DESCRIPTORS={folder}/dist/podracer.binpb", cwd=ROOT)
    return clients


def build_client(language: str, clients: Path) -> Sequence[object]:
    """The command that starts it."""
    folder = clients / language
    if language == "go":
        run("buf", "generate", cwd=folder)
        run("go", "build", "-o", "client", ".", cwd=folder)
        return [folder / "client"]
    if language == "typescript":
        run(
            "npm",
            "ci",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--prefer-offline",
            cwd=folder,
        )
        run("npm", "run", "build", cwd=folder)
        return ["node", folder / "build" / "submit_job.js"]
    return [sys.executable, folder / "submit_job.py"]


def run(*command: object, cwd: Path, **variables: str) -> str:
    """What a command prints; it has to succeed."""
    ours = ("PODRACER_", "XDG_CONFIG_HOME")  # Go's settings are their user's
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | variables
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def check_output(output: str) -> str:
    """What a client prints of a job that succeeded; the job's name."""
    lines = output.splitlines()
    name = lines[0].removeprefix("submitted ")
    assert name.startswith("projects/default/jobs/cartpole")
    assert any("JOB_SUCCEEDED" in line for line in lines)
    assert any(line.startswith(f"1 {name}/agents/") for line in lines)
    return name

"""What a version before has left goes on after the upgrade.

The fixture is the state folder of `podracer run --dir state job.yaml` by commit 81e66284, killed after six rounds, and
its job file; without logs, tokens and locks. It is made anew only where a release says that old state may not go on.
"""

from __future__ import annotations

import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from support.processes import Command

FIXTURE = Path(__file__).parent / "fixtures" / "version_before.tar.xz"


def query(folder: Path, database: str, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "state" / f"{database}.sqlite")) as connection:
        return connection.execute(statement).fetchall()


def test_a_job_in_training_goes_on_to_its_end(run: Callable[..., Command], tmp_path: Path) -> None:
    """Through its last rounds, a challenge, the ensemble and the best trained once more."""
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    ((name, before),) = query(tmp_path, "orchestrator", "select job_id, env_steps from jobs")
    agents = set(query(tmp_path, "leaderboard", "select name from agents"))
    command = run("run", "job.yaml", "--dir", "state", "--plain")
    assert command.returncode == 3, command.stderr  # its target cannot be reached
    assert any(f"going on with projects/default/jobs/{name}" in line for line in command.errors)
    ((state, steps, retrained),) = query(tmp_path, "orchestrator", "select state, env_steps, retrained from jobs")
    assert state == "SUCCEEDED"
    assert steps >= 56_000 > before > 40_000
    assert retrained
    assert agents <= set(query(tmp_path, "leaderboard", "select name from agents"))

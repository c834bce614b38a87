"""What a version before has left goes on after the upgrade.

The fixture is the state folder of commit f35384e4, without logs, tokens and locks. In it
`podracer run` has ended the job `finished` (A2C, D3QN, discrete SAC), one of whose policies was
promoted, and `podracer up` has stored the data set `prices`. Then `podracer run job.yaml` (PPO, SAC
and TD3 with their transitions) was killed after six rounds. It is made anew only where a release
says that old state may not go on; tests/golden shows it too.
"""

from __future__ import annotations

import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.commands import one_evaluator, run_here
from support.golden import STATE


def query(folder: Path, database: str, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "state" / f"{database}.sqlite")) as connection:
        return connection.execute(statement).fetchall()


@pytest.fixture(autouse=True)
def _state(tmp_path: Path) -> None:
    with tarfile.open(STATE) as archive:
        archive.extractall(tmp_path, filter="data")


def test_a_job_in_training_goes_on_to_its_end(run, tmp_path):
    """A round of each algorithm, a challenge, the ensemble, the best trained once more."""
    ((name, before),) = query(
        tmp_path, "orchestrator", "select job_id, env_steps from jobs where job_id like 'f%r-%'"
    )
    of_job = f"where name like '%/jobs/{name}/%'"
    agents = dict(query(tmp_path, "leaderboard", f"select name, env_steps from agents {of_job}"))
    command = run("run", "job.yaml", "--dir", "state", "--plain")
    assert command.returncode == 3, command.stderr  # its target cannot be reached
    assert any(f"going on with projects/default/jobs/{name}" in line for line in command.errors)
    ((state, steps, retrained),) = query(
        tmp_path,
        "orchestrator",
        f"select state, env_steps, retrained from jobs where job_id = '{name}'",
    )
    assert state == "SUCCEEDED"
    assert steps >= 9_216 > before > 6_000
    assert retrained
    after = dict(query(tmp_path, "leaderboard", f"select name, env_steps from agents {of_job}"))
    assert all(after[agent] > steps for agent, steps in agents.items())


@pytest.mark.thorough
def test_every_checkpoint_can_be_evaluated(tmp_path):
    """Of six algorithms: on-policy and off-policy, for continuous and for discrete actions."""
    manifests = (tmp_path / "state").rglob("manifest.json")
    checkpoints = {path.parent.parent.parent: path.parent for path in manifests}
    assert len(checkpoints) == 10  # of the agents
    with one_evaluator():
        for checkpoint in checkpoints.values():
            result = run_here("evaluate", checkpoint, "--episodes", 2, "--json", cwd=tmp_path)
            assert result.returncode == 0, result.stderr

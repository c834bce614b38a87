"""The red team of tests/red_team as a job of an installation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from podracer_client import Client, Job
from support.processes import ROOT

SERVERS = (
    "orchestrator",
    "leaderboard",
    "worker",
    "evaluator",
    "minio",
    "podracer-orchestrator",
    "podracer-minio",
)
FIND = """
import os, pathlib, sys
victim = pathlib.Path(os.environ["PODRACER_CACHE_DIR"], f"podracer-{os.geteuid()}", "0" * 64 + "-code", "victim.py")
victim.parents[1].mkdir(0o700, exist_ok=True)
victim.parent.mkdir(exist_ok=True)
victim.write_text("SECRET")
for top in sys.argv[1:]:
    for folder, _, names in os.walk(top):
        print(folder + "/", *(os.path.join(folder, name) for name in names), sep="\\n")
"""
"""Run in a container of a pod, with its volumes: prints what they hold, with a slash after a
folder. Before, it lays there what another project's code would be."""


def attack(client: Client, folder: Path, found: str, pod: dict[str, Any]) -> Job:
    """A job of the red team on all that FIND has found; the file of the job is written into
    `folder`."""
    paths = sorted(set(found.split()))
    files = [path for path in paths if not path.endswith("/")]
    kwargs = {
        "secrets": files,
        "folders": [path.rstrip("/") for path in paths if path.endswith("/")],
        "addresses": [
            f"{host}:{port}" for host in ("127.0.0.1", *SERVERS) for port in (50051, 8081, 9000)
        ],
        "socket_path": next((path for path in files if path.endswith(".sock")), "none.sock"),
        "abstract": "none",
    }
    code = str(ROOT / "tests" / "red_team" / "code")
    (folder / "own.csv").write_text("a table")
    spec = {
        "name": "red-team",
        "environment": {"entry_point": "red_team:RedTeam", "code": code, "kwargs": kwargs},
        "data": {"own": str(folder / "own.csv")},
        "objective": {"max_env_steps": 1024},
        "search": {"algorithms": ["ppo"]},
        "evolution": {"population": 1, "leaderboard_size": 1, "round": {"env_steps": 1024}},
        "pod": pod,
    }
    file = folder / "red-team.json"
    file.write_text(json.dumps(spec))
    return client.submit(file)


def check_found_nothing(job: Job) -> None:
    problem = job.message.problem
    assert problem.message.endswith("raised ValueError: loot: []"), problem

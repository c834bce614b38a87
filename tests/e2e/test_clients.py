"""The small clients of examples/clients, in three languages: with a token on this machine, and with mutual TLS."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.deployment import Deployment
from support.processes import EXAMPLES, ROOT

pytestmark = [pytest.mark.thorough, pytest.mark.processes]
CLIENTS = EXAMPLES / "clients"
NEEDED = {"go": ("go",), "typescript": ("node", "npm")}


def run(*command: object, cwd: Path, **variables: str) -> str:
    """What a command prints; it has to succeed."""
    ours = ("PODRACER_", "XDG_CONFIG_HOME")  # Go's settings are their user's
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | variables
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The clients as a checkout has them, with what `make descriptors` writes."""
    folder = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("node_modules", "stubs", "build", "common", "leaderboard", "orchestrator")
    shutil.copytree(CLIENTS, folder / "examples" / "clients", ignore=ignored)
    (folder / "dist").mkdir()
    run("make", "descriptors", f"DESCRIPTORS={folder}/dist/podracer.binpb", cwd=ROOT)
    return folder / "examples" / "clients"


@pytest.fixture(scope="module", params=["python", "go", "typescript"])
def client(request: pytest.FixtureRequest, checkout: Path) -> list[object]:
    """The command that starts a client, built as its README says."""
    language: str = request.param
    if missing := [name for name in NEEDED.get(language, ()) if shutil.which(name) is None]:
        pytest.skip(f"the client in {language} needs {' and '.join(missing)} on PATH")
    folder = checkout / language
    if language == "go":
        run("buf", "generate", cwd=folder)
        run("go", "build", "-o", "client", ".", cwd=folder)
        return [folder / "client"]
    if language == "typescript":
        run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", cwd=folder)
        run("npm", "run", "build", cwd=folder)
        return ["node", folder / "build" / "submit_job.js"]
    return [sys.executable, folder / "submit_job.py"]


@pytest.fixture(scope="module", params=["token", "tls"])
def deployment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("deployment")
    deployment = Deployment(folder, (folder / "store").as_uri(), tls=request.param == "tls")
    try:
        deployment.start_leaderboard()
        deployment.start_orchestrator()
        deployment.start_learner("a")
        yield deployment
    finally:
        deployment.end_processes()


def test_a_client_submits_a_job_watches_it_and_prints_its_leaderboard(
    client: list[object], deployment: Deployment, tmp_path: Path
) -> None:
    variables = {f"PODRACER_{role.upper()}": deployment.addresses[role] for role in ("orchestrator", "leaderboard")}
    if deployment.has_tls:
        variables["PODRACER_TLS"] = str(deployment.secrets / "tls" / "client")
    token_file = str(deployment.secrets / "tokens" / "client")
    lines = run(*client, 30, cwd=tmp_path, PODRACER_TOKEN_FILE=token_file, **variables).splitlines()
    name = lines[0].removeprefix("submitted ")
    assert name.startswith("projects/default/jobs/cartpole")
    assert any("JOB_SUCCEEDED" in line for line in lines)
    assert any(line.startswith(f"1 {name}/agents/") for line in lines)

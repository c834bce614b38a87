"""The small clients of examples/clients, in three languages: with a token on this machine, and with
mutual TLS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support.client_programs import (
    LANGUAGES,
    build_client,
    check_output,
    copy_clients,
    missing_programs,
    run,
)
from support.deployment import Deployment

pytestmark = [pytest.mark.thorough, pytest.mark.processes]


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_clients(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module", params=LANGUAGES)
def client(request: pytest.FixtureRequest, clients: Path) -> Sequence[object]:
    """The command that starts a client."""
    if missing := missing_programs(request.param):
        pytest.skip(f"the client in {request.param} needs {' and '.join(missing)} on PATH")
    return build_client(request.param, clients)


@pytest.fixture(scope="module", params=["token", "tls"])
def deployment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("deployment")
    deployment = Deployment(folder, (folder / "store").as_uri(), tls=request.param == "tls")
    try:
        deployment.start_leaderboard()
        deployment.start_orchestrator()
        deployment.start_learner("a")
        yield deployment
    finally:
        deployment.end_processes()


def test_a_client_submits_a_job_watches_it_and_prints_its_leaderboard(client, deployment, tmp_path):
    variables = {
        f"PODRACER_{role.upper()}": deployment.addresses[role]
        for role in ("orchestrator", "leaderboard")
    }
    if deployment.has_tls:
        variables["PODRACER_TLS"] = str(deployment.secrets / "tls" / "client")
    token_file = str(deployment.secrets / "tokens" / "client")
    check_output(run(*client, 30, cwd=tmp_path, PODRACER_TOKEN_FILE=token_file, **variables))

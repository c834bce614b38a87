"""Failover of the control services on a real Kubernetes, with PostgreSQL: a part of `make
e2e-cluster`.

PODRACER_CLUSTER_POSTGRESQL   a PostgreSQL server that pods reach, whose user may make databases:
                              postgresql://user:password@host:port
PODRACER_CLUSTER_RESTART      a program that restarts that server
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster.installation import ALL, CONTROL_PLANE, Installation, Pulse
from cluster.kubectl import wait_until
from cluster.test_cluster import AWAY_S, FAULTS, PATIENCE_S, Scenarios, endless_job, power
from sqlalchemy import create_engine, text

from podracer_core.errors import PodracerError
from podracer_platform.kubernetes import LABEL

__all__ = ["power"]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

SERVER = os.environ.get("PODRACER_CLUSTER_POSTGRESQL", "")
RESTART = os.environ.get("PODRACER_CLUSTER_RESTART", "")
SERVICES = ("orchestrator", "leaderboard")
Power = Callable[[str, str], None]


class WithPostgresql(Installation):
    """Two Pods of each control service; MinIO is on the first node, they are wherever there is
    room."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "team-failover")
        names = {service: f"failover_{service}_{os.getpid()}" for service in SERVICES}
        self.urls = {service: f"{SERVER}/{name}?sslmode=prefer" for service, name in names.items()}

    def copy_databases(self) -> dict[str, str]:
        return self.urls

    def make_databases(self) -> None:
        for url in self.urls.values():
            self.ask(
                f"CREATE DATABASE {url.rpartition('/')[2].partition('?')[0]}", f"{SERVER}/postgres"
            )
        keys = [f"--from-literal={service}-url={url}" for service, url in self.urls.items()]
        self.kubectl("create", "secret", "generic", "podracer-postgresql", *keys)

    def ask(self, statement: str, url: str = "") -> list[tuple[object, ...]]:
        url = (url or self.urls["orchestrator"]).replace("postgresql:", "postgresql+psycopg:")
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            found = connection.execute(text(statement))
            rows = [tuple(row) for row in found] if found.returns_rows else []
        engine.dispose()
        return rows

    def leases_lost(self) -> int:
        """Leases that ended without a renewal, or because their pod was gone."""
        ((count,),) = self.ask("SELECT count(*) FROM leases WHERE state = 'EXPIRED'")
        return int(str(count))

    def active(self, service: str = "orchestrator") -> str:
        """The Pod to which the Service leads."""
        selector = f"app.kubernetes.io/component={service},{LABEL}=true"
        (pod,) = self.kubectl.get("pods", "--selector", selector)
        return str(pod["metadata"]["name"])

    def answers(self) -> bool:
        try:
            with self.client() as client:
                client.jobs()
        except PodracerError:
            return False
        return True


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithPostgresql]:
    if not SERVER:
        pytest.skip("PODRACER_CLUSTER_POSTGRESQL names no server")
    found = WithPostgresql(tmp_path_factory.mktemp("overlay"))
    found.make_namespace()
    found.make_databases()
    found.apply(components=["postgresql"], stays="podracer-minio")
    found.kubectl.wait_ready(*ALL)
    yield found
    found.kubectl("delete", "namespace", found.namespace, "--ignore-not-found", timeout_s=300)


@pytest.fixture(scope="module")
def scenarios(installation: WithPostgresql) -> Iterator[Scenarios]:
    found = Scenarios(installation)
    yield found
    found.print()


@pytest.fixture(scope="module")
def pulse(installation: WithPostgresql, scenarios: Scenarios) -> Iterator[Pulse]:
    with endless_job(installation) as pulse:
        scenarios.pulse = pulse
        yield pulse


def end_it(installation: WithPostgresql, pod: str, power: Power) -> None:
    installation.kubectl("delete", "pod", pod, "--wait=false")


def kill_it(installation: WithPostgresql, pod: str, power: Power) -> None:
    installation.kubectl.kill_process("orchestrator", "orchestrator", "podracer_orchestrator", pod)


def lose_its_node(installation: WithPostgresql, pod: str, power: Power) -> None:
    node = installation.kubectl.get("pod", pod)["spec"]["nodeName"]
    minio = installation.kubectl.pods("object-store")[0]["spec"]["nodeName"]
    if not FAULTS or node == minio:
        pytest.skip(
            "it is on the node of the object store, or PODRACER_CLUSTER_FAULTS names no program"
        )
    power("lose", node)


def lose_the_api_server(installation: WithPostgresql, pod: str, power: Power) -> None:
    if not FAULTS:
        pytest.skip("PODRACER_CLUSTER_FAULTS names no program")
    power("lose", "api")
    time.sleep(AWAY_S)
    power("start", "api")


def restart_the_server(installation: WithPostgresql, pod: str, power: Power) -> None:
    if not RESTART:
        pytest.skip("PODRACER_CLUSTER_RESTART names no program")
    subprocess.run([RESTART], check=True, timeout=180)


def restart_all(installation: WithPostgresql, pod: str, power: Power) -> None:
    installation.kubectl("rollout", "restart", *CONTROL_PLANE)
    installation.kubectl.wait_ready(*CONTROL_PLANE)


def take_all_away(installation: WithPostgresql, pod: str, power: Power) -> None:
    installation.kubectl("scale", "statefulset/podracer-orchestrator", "--replicas=0")
    installation.kubectl.wait_gone("pod", pod)
    time.sleep(AWAY_S)
    installation.kubectl("scale", "statefulset/podracer-orchestrator", "--replicas=2")


SCENARIOS = {
    "PostgreSQL: SIGTERM of the active orchestrator": end_it,
    "PostgreSQL: kill -9 of the active orchestrator": kill_it,
    f"PostgreSQL: the API server away for {AWAY_S:.0f} s": lose_the_api_server,
    "PostgreSQL: the server is restarted": restart_the_server,
    "PostgreSQL: kubectl rollout restart": restart_all,
    f"PostgreSQL: no orchestrator for {AWAY_S:.0f} s": take_all_away,
    "PostgreSQL: the node of the active orchestrator is lost": lose_its_node,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_training_goes_on(installation, scenarios, pulse, power, name):
    lost = installation.leases_lost()
    with scenarios.run(name) as notes:
        SCENARIOS[name](installation, installation.active(), power)
        begun = time.monotonic()
        wait_until(installation.answers, PATIENCE_S, "an answer of an orchestrator")
        notes += [f"answers after {time.monotonic() - begun:.0f} s"]
        pulse.wait_for_steps()
        notes += [
            f"{installation.active()} is active",
            f"{installation.leases_lost() - lost} leases lost",
        ]
    if "node" not in name:
        assert installation.leases_lost() == lost

"""Jobs trained by pods of a cluster: the orchestrator makes Jobs, a kubelet runs their containers
as processes."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.deployment import Deployment
from support.kubernetes_api import Api
from support.kubernetes_cluster import Cluster
from support.kubernetes_kubelet import Processes
from support.kubernetes_store import Store
from support.pod_template import apply
from support.processes import wait_until

pytestmark = pytest.mark.thorough
PATIENCE_S = 240.0
JOB = {
    "environment": {"id": "CartPole-v1"},
    "search": {
        "algorithms": ["ppo"],
        "space": {
            "horizon": 32,
            "minibatch_size": 256,
            "epochs": 4,
            "learning_rate": {"log_uniform": [1e-4, 1e-2]},
        },
    },
    "evolution": {"population": 2, "leaderboard_size": 2, "round": {"env_steps": 8192}},
    "evaluation": {"episodes": 8},
    "seed": 1,
}


class Site(Deployment):
    """The control plane as processes, outside of a cluster in which its pods are."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        super().__init__(folder, (folder / "store").as_uri())
        self._socket = f"unix://{folder}/orchestrator.sock"
        # a volume of each pod
        variables = self.common | {"orchestrator": self._socket, "shm_dir": "/dev/shm"}
        apply(cluster.store, **variables)
        self._kubernetes = {"kubeconfig": str(cluster.api.kubeconfig(folder / "kubeconfig"))}

    def start_control_plane(self) -> None:
        self.start_leaderboard()
        self.start(
            "orchestrator", listen=self._socket, database=self.databases["orchestrator"],
            leaderboard=self.addresses["leaderboard"], pool="kubernetes", **self._kubernetes,
        )  # fmt: skip


@pytest.fixture
def kubelet() -> Iterator[Processes]:
    kubelet = Processes()
    yield kubelet
    kubelet.close()


@pytest.fixture
def cluster(kubelet: Processes) -> Iterator[Cluster]:
    cluster = Cluster(Api(Store()), runner=kubelet).start()
    yield cluster
    cluster.stop()


@pytest.fixture
def site(cluster: Cluster) -> Iterator[Site]:
    # short: a unix socket's path has room for 107 bytes
    folder = Path(tempfile.mkdtemp(prefix="k8s-"))
    site = Site(folder, cluster)
    try:
        site.start_control_plane()
        yield site
    finally:
        site.end_processes()
        shutil.rmtree(folder, ignore_errors=True)


def submit(site: Site, client: Any, name: str, **parts: Any) -> Any:
    path = site.folder / f"{name}.json"
    path.write_text(json.dumps({"name": name, **JOB, **parts}))
    return client.submit(path)


def test_a_team_of_pods_trains_on_while_the_orchestrator_is_killed_and_comes_again(
    site: Site, cluster: Cluster, kubelet: Processes
) -> None:
    with site.client() as client:
        job = submit(
            site, client, "team", objective={"max_env_steps": 98_304},
            pod={"count": 1, "learners": 2, "layout": "fused", "members": 2, "envs_per_member": 16},
        )  # fmt: skip
        wait_until(lambda: job.refresh().progress.env_steps > 0, PATIENCE_S, "the first steps")
        made = {name: each["metadata"]["uid"] for name, each in cluster.jobs().items()}
        site.kill("orchestrator")
        site.processes["orchestrator"].wait(60)
        site.restart("orchestrator")
    with site.client() as client:
        job = client.job(job.name)
        wait_until(
            lambda: job.refresh().state in ("SUCCEEDED", "FAILED"), PATIENCE_S, "the end of the job"
        )
        assert job.state == "SUCCEEDED", kubelet.logs()
        assert cluster.api.calls.count(("create", "jobs")) == 2
        # they have reached each other
        assert "FOLLOW_ENDED" in {event.kind for event in client.events(job.name)}
        assert (
            made.items()
            <= {name: each["metadata"]["uid"] for name, each in cluster.jobs().items()}.items()
        )
        wait_until(lambda: not cluster.jobs(), 60, "its pods to end")
    assert "Traceback" not in site.log("orchestrator")


def test_a_split_pod_trains_with_its_sidecars(
    site: Site, cluster: Cluster, kubelet: Processes
) -> None:
    with site.client() as client:
        job = submit(
            site, client, "split", objective={"max_env_steps": 16_384},
            pod={"count": 1, "layout": "split", "workers": 1, "members": 2, "envs_per_member": 16},
        )  # fmt: skip
        wait_until(
            lambda: job.refresh().state in ("SUCCEEDED", "FAILED"), PATIENCE_S, "the end of the job"
        )
        assert job.state == "SUCCEEDED", kubelet.logs()
        assert job.leaderboard()
        wait_until(lambda: not cluster.pods(), 60, "its pod to end")

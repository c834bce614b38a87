"""The overlay for one node, run as far as it goes without a cluster: what its manifests say is what
processes get."""

from __future__ import annotations

import json
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from podracer_platform.rpc import probe
from support.live_page import enter, is_live
from support.manifests import pod_specs
from support.overlay_site import OverlaySite
from support.processes import wait_until

pytestmark = pytest.mark.thorough
PATIENCE_S = 240.0
JOB = {
    "name": "overlay",
    "environment": {"id": "CartPole-v1"},
    "objective": {"max_env_steps": 16_384},
    "search": {"algorithms": ["ppo"], "space": {"horizon": 32, "minibatch_size": 256, "epochs": 4}},
    "evolution": {"population": 2, "leaderboard_size": 2, "round": {"env_steps": 8192}},
    "pod": {"count": 1, "layout": "split", "workers": 1, "members": 2, "envs_per_member": 16},
    "evaluation": {"episodes": 8},
    "seed": 1,
}


@pytest.fixture
def site() -> Iterator[OverlaySite]:
    # short: a unix socket's path has room for 107 bytes
    folder = Path(tempfile.mkdtemp(prefix="k8s-"))
    site = OverlaySite(folder, "web")
    try:
        site.start()
        yield site
    finally:
        site.end()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_job_is_trained_by_what_the_manifests_say(site):
    """TLS and tokens from the Secrets, the store's keys from files, digests for sidecars, the Role,
    probes, metrics."""
    for role in ("leaderboard", "orchestrator"):
        for service in ([], ["liveness"]):
            asked = [f"{site.host(role)}:8081", *service]
            wait_until(
                lambda asked=asked: probe.main(asked) == 0, PATIENCE_S, f"the {role} to be ready"
            )
        with urllib.request.urlopen(f"http://{site.host(role)}:9464/metrics", timeout=30) as answer:
            assert b"# TYPE podracer_" in answer.read()
    look_at_the_page(site)
    (site.folder / "job.json").write_text(json.dumps(JOB))
    with site.client() as client:
        job = client.submit(site.folder / "job.json")
        wait_until(
            lambda: job.refresh().state in ("SUCCEEDED", "FAILED"), PATIENCE_S, "the end of the job"
        )
        assert job.state == "SUCCEEDED", site.log("orchestrator") + site.kubelet.logs()
        assert job.leaderboard()
        job.download_best(site.folder / "best")
    assert (site.folder / "best" / "manifest.json").exists()
    assert any((site.folder / "s3" / "podracer").rglob("manifest.json"))
    wait_until(lambda: not site.cluster.jobs(), PATIENCE_S, "its pod to end")
    for role in ("leaderboard", "orchestrator", "web"):
        assert "Traceback" not in site.log(role)


def look_at_the_page(site: OverlaySite) -> None:
    """Its probes need no key, all else does; with the key it has heard of the orchestrator, over
    TLS."""
    url = site.start_page().removesuffix("/")
    assert url == f"http://{site.host('web')}:8080"
    (pod,) = [pod for pod in pod_specs(site.objects) if pod.owner == "podracer-web"]
    for probe_of in ("startupProbe", "livenessProbe", "readinessProbe"):
        get = pod.containers["web"][probe_of]["httpGet"]
        headers = {each["name"]: each["value"] for each in get["httpHeaders"]}
        assert requests.get(url + get["path"], headers=headers, timeout=60).status_code == 200
    with requests.Session() as session:
        assert session.get(f"{url}/api/news", timeout=60).status_code == 401
        assert enter(session, url, site.secret("podracer-web", "key")) == 204
        assert is_live(session, url)

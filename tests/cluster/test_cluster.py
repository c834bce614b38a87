"""What users and clusters do, on a real Kubernetes: `make e2e-cluster` with KUBECONFIG.

The tests are scenarios of one installation and run in their order. A job without an end trains
through all faults; then it is given a budget, which it meets exactly. The variables:

KUBECONFIG                      the cluster; two nodes or more
PODRACER_CLUSTER_TAG            tag of the images, where it is not that of `.env`
PODRACER_CLUSTER_FORMER         tag of the images of the version before, for the upgrade
PODRACER_CLUSTER_PRIVATE_IMAGE  an image that the nodes find, in a registry that asks for a password
PODRACER_CLUSTER_FAULTS         a program that takes power away: `PROGRAM lose NODE`, `PROGRAM start
                                NODE` (or `api`)
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from cluster.installation import ALL, CONTROL_PLANE, Installation, Pulse, json_patch
from cluster.kubectl import Kubectl, wait_until
from rich.console import Console
from rich.table import Table

from podracer_client import Job
from podracer_orchestrator.pool import PodPlan
from podracer_orchestrator.pool.kubernetes import JobMaker
from podracer_platform.jobs import parse_job
from support.endless_job import end_after
from support.live_page import enter, is_live
from support.processes import EXAMPLES, ROOT
from support.red_team import FIND, attack, check_found_nothing
from support.render_manifests import FUSED, OWNER, SPLIT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NAMESPACE = "team-rl"
FAULTS = os.environ.get("PODRACER_CLUSTER_FAULTS", "")
PRIVATE_IMAGE = os.environ.get("PODRACER_CLUSTER_PRIVATE_IMAGE", "")
FORMER = os.environ.get("PODRACER_CLUSTER_FORMER", "")
needs_faults = pytest.mark.skipif(
    not FAULTS, reason="PODRACER_CLUSTER_FAULTS names no program that cuts the power"
)
PATIENCE_S = 300.0
POWER_S = 75.0
AWAY_S = 60.0
ENDLESS = """
name: endless
environment: {id: CartPole-v1}
objective: {max_env_steps: 1_000_000_000_000}
search: {algorithms: [ppo], space: {horizon: 32, minibatch_size: 256, epochs: 2}}
evolution: {population: 4, leaderboard_size: 2, round: {env_steps: 262_144}}
pod: {count: 2, members: 2, envs_per_member: 32, layout: split, resources: {cpu: 0.2, memory: 1Gi}}
evaluation: {episodes: 8}
"""


class Scenarios:
    """Times every scenario and audits the counters after it."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.pulse: Pulse | None = None
        self._rows: list[tuple[str, str, str, str]] = []

    @contextmanager
    def run(
        self, name: str, installation: Installation | None = None, pulse: Pulse | None = None
    ) -> Iterator[list[str]]:
        """What is appended to the list stands beside the figures. Another installation has a pulse
        of its own."""
        notes: list[str] = []
        if installation is None:
            installation, pulse = self.installation, self.pulse
        if pulse is not None:
            pulse.reset()
        begun = time.monotonic()
        yield notes
        took_s = time.monotonic() - begun
        gap = "" if pulse is None else f"{pulse.longest_gap_s:.0f}"
        self._rows.append((name, f"{took_s:.0f}", gap, ", ".join(notes)))
        assert installation.audit() == []
        assert pulse is None or pulse.went_back == []

    def print(self) -> None:
        table = Table("scenario", "seconds", "without training, s", "seen", title="a real cluster")
        for row in self._rows:
            table.add_row(*row)
        Console(width=160).print(table)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    if not os.environ.get("KUBECONFIG"):
        pytest.fail(
            "KUBECONFIG is not set: it names the cluster that these tests install into",
            pytrace=False,
        )
    installation = Installation(tmp_path_factory.mktemp("overlay"), NAMESPACE)
    yield installation
    if not os.environ.get("PODRACER_CLUSTER_KEEP"):
        installation.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout_s=300)


@pytest.fixture(scope="module")
def scenarios(installation: Installation) -> Iterator[Scenarios]:
    scenarios = Scenarios(installation)
    yield scenarios
    scenarios.print()


@contextmanager
def endless_job(installation: Installation) -> Iterator[Pulse]:
    """Trains already."""
    with installation.client() as client:
        name = client.submit(parse_job(ENDLESS)).name
    with Pulse(installation, name) as pulse:
        pulse.wait_for_steps()
        yield pulse


@pytest.fixture(scope="module")
def pulse(installation: Installation, scenarios: Scenarios) -> Iterator[Pulse]:
    """Of the endless job, which begins with the first test that asks for it."""
    with endless_job(installation) as pulse:
        scenarios.pulse = pulse
        yield pulse
        scenarios.pulse = None


def finish(installation: Installation, job: Job, limit_s: float = PATIENCE_S) -> Job:
    wait_until(lambda: job.refresh().ended, limit_s, f"{job.name} to end")
    assert job.state == "SUCCEEDED", (job.message.problem, installation.kubectl("get", "pods"))
    return job


def test_an_empty_cluster_trains_within_a_minute(installation, scenarios):
    with scenarios.run("apply -k; CartPole, fused, to 475") as notes:
        installation.make_namespace()
        begun = time.monotonic()
        installation.apply()
        installation.kubectl.wait_ready(*ALL)
        notes += [f"ready after {time.monotonic() - begun:.0f} s"]
        with installation.client() as client:
            finish(installation, client.submit(EXAMPLES / "cartpole.yaml"))
        notes += [f"the first job after {time.monotonic() - begun:.0f} s"]


@contextmanager
def small_installation(folder: Path, overlay: str) -> Iterator[Installation]:
    """Of another overlay, in a namespace of its own."""
    other = Installation(folder, f"{NAMESPACE}-{overlay}")
    try:
        other.make_namespace()
        other.apply(f"overlays/{overlay}")
        other.kubectl.wait_ready(*ALL)
        yield other
    finally:
        other.kubectl("delete", "namespace", other.namespace, "--ignore-not-found", timeout_s=300)


def test_the_gpu_overlay(scenarios, tmp_path):
    """The GPU is pretended by a node's status, and the learner's image is the one without CUDA."""
    spec = yaml.safe_load((EXAMPLES / "cartpole.yaml").read_text())
    spec["pod"]["resources"] = {"gpu": 1}
    node = free_gpu(scenarios.installation)
    begun = time.monotonic()
    with small_installation(tmp_path, "gpu") as other, scenarios.run("overlay gpu", other) as notes:
        with other.client() as client:
            job = client.submit(parse_job(yaml.safe_dump(spec)))
            (pod,) = wait_until(lambda: other.kubectl.pods("pod"), PATIENCE_S, "the training pod")
            assert pod["spec"]["nodeName"] == node
            assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
            finish(other, job)
        notes += [f"the first job after {time.monotonic() - begun:.0f} s"]


def free_gpu(installation: Installation) -> str:
    """The node that is said to have one."""
    node = str(installation.kubectl.get("nodes")[-1]["metadata"]["name"])
    gpus = {"nvidia.com/gpu": "1"}
    patch = {"status": {"capacity": gpus, "allocatable": gpus}}
    installation.kubectl(
        "patch", "node", node, "--subresource=status", "--type=merge", "--patch", json.dumps(patch)
    )
    return node


def test_the_serving_overlay(scenarios, tmp_path):
    begun = time.monotonic()
    with (
        small_installation(tmp_path, "serving") as other,
        scenarios.run("overlay serving", other) as notes,
    ):
        with other.client() as client:
            job = finish(other, client.submit(EXAMPLES / "cartpole.yaml"))
            notes += [f"the first job after {time.monotonic() - begun:.0f} s"]
            client.promote(job.name)
        what = {
            "op": "replace",
            "path": "/data/PODRACER_POLICIES",
            "value": f"live={job.name}@champion",
        }
        other.apply("overlays/serving", patches=[json_patch("ConfigMap", "podracer-policy", what)])
        other.kubectl("rollout", "restart", "deployment/podracer-policy")
        other.kubectl.wait_ready("deployment/podracer-policy")
        with other.policies() as policies:
            # towards where the pole falls
            assert int(policies.act([0.0, 0.0, 0.2, 0.0], policy="live")) == 1


def test_the_web_overlay(scenarios, tmp_path):
    """The page is shown with the key of its Secret, also after its pod has gone, and to nothing
    without it."""
    name = "localhost:8080"
    with (
        small_installation(tmp_path, "web") as other,
        scenarios.run("overlay web", other),
        requests.Session() as browser,
    ):
        for _ in range(2):
            other.kubectl.wait_ready("deployment/podracer-web")
            with other.kubectl.forward("service/podracer-web", 8080) as address:
                page = f"http://{address}"
                assert requests.get(page, headers={"host": name}, timeout=60).status_code == 401
                assert requests.get(page, timeout=60).status_code == 421, "an unknown host name"
                if not browser.cookies:
                    key = (
                        base64.b64decode(other.kubectl.get("secret", "podracer-web")["data"]["key"])
                        .decode()
                        .strip()
                    )
                    assert enter(browser, page, key, name) == 204
                assert browser.get(page, timeout=60).status_code == 200
                assert is_live(browser, page)
            assert key not in other.kubectl("logs", "deployment/podracer-web")
            other.kubectl("delete", "pod", "--selector", "app.kubernetes.io/component=web")


def test_a_split_tournament_reaches_its_target(installation, scenarios):
    with scenarios.run("Pendulum, split, to -200") as notes, installation.client() as client:
        job = client.submit(EXAMPLES / "pendulum.yaml")
        finish(installation, job)
        kinds = {event.kind for event in job.latest_events(200)}
        assert "CHALLENGE_PASSED" in kinds, kinds
        notes += [f"{job.progress.env_steps:,} steps"]


ROUNDS = {
    "LunarLander, one round": """
name: lander
environment: {id: LunarLander-v3}
objective: {max_env_steps: 32_768}
search: {algorithms: [ppo]}
evolution: {population: 2, round: {env_steps: 16_384}}
pod: {count: 1, members: 2, envs_per_member: 16, layout: split, resources: {cpu: 0.5}}
evaluation: {episodes: 8}
""",
    "a team of two learners": """
name: team
environment: {id: CartPole-v1}
objective: {max_env_steps: 98_304}
search: {algorithms: [ppo], space: {horizon: 32, minibatch_size: 256}}
evolution: {population: 2, leaderboard_size: 2, round: {env_steps: 16_384}}
pod: {count: 1, learners: 2, layout: fused, members: 2, envs_per_member: 16, resources: {cpu: 0.5}}
evaluation: {episodes: 8}
""",
}


@pytest.mark.parametrize("name", ROUNDS)
def test_other_jobs(installation, scenarios, name):
    with scenarios.run(name), installation.client() as client:
        finish(installation, client.submit(parse_job(ROUNDS[name])))


@pytest.mark.skipif(
    not FORMER, reason="PODRACER_CLUSTER_FORMER names no images of the version before"
)
def test_an_upgrade_and_its_rollback(scenarios, tmp_path):
    """In a namespace of its own. A rollback goes back to a backup, too, as a database may have been
    migrated."""
    other = Installation(tmp_path / "overlay", f"{NAMESPACE}-former")
    backup = tmp_path / "former.tar"
    try:
        other.make_namespace()
        other.apply_former(FORMER)
        other.kubectl.wait_ready(*ALL)
        name = "upgrade from the version before, a job trains"
        with endless_job(other) as pulse, scenarios.run(name, other, pulse) as notes:
            other.back_up("save", backup)
            pulse.wait_for_steps()
            other.apply()
            other.kubectl.wait_ready(*ALL)
            pulse.wait_for_steps()
            other.kubectl("delete", "jobs", "--all", "--wait=false")  # pods of the version that was
            pulse.wait_for_steps()
            notes += [f"{pulse.steps:,} steps"]
        with scenarios.run("rollback to it, with its backup", other) as notes:
            other.apply_former(FORMER)
            other.back_up("restore", backup)
            with Pulse(other, pulse.job) as again:
                again.wait_for_steps()
                notes += [f"{again.steps:,} steps"]
    finally:
        other.kubectl("delete", "namespace", other.namespace, "--ignore-not-found", timeout_s=300)


@pytest.mark.parametrize(
    ("component", "container", "module"),
    [
        ("pod", "learner", "podracer_learner"),
        ("pod", "worker-0", "podracer_worker"),
        ("orchestrator", "orchestrator", "podracer_orchestrator"),
    ],
)
def test_kill_9(installation, scenarios, pulse, component, container, module):
    with scenarios.run(f"kill -9 of the {container}"):
        installation.kubectl.kill_process(component, container, module)
        pulse.wait_for_steps()


def test_a_pod_is_deleted(installation, scenarios, pulse):
    with scenarios.run("kubectl delete pod of a training pod"):
        pod = installation.kubectl.pods("pod")[0]["metadata"]["name"]
        installation.kubectl("delete", "pod", pod, timeout_s=180)
        pulse.wait_for_steps()
        wait_until(
            lambda: len(installation.kubectl.pods("pod")) == 2, PATIENCE_S, "two training pods"
        )


def test_nothing_changes_by_a_second_apply(installation, scenarios, pulse):
    with scenarios.run("apply -k again, with --server-side, and diff -k"):
        before = identities(installation)
        assert "configured" not in installation.apply() + installation.apply(
            "overlays/dev", "--server-side", "--force-conflicts"
        )
        changes = installation.kubectl.attempt("diff", "-k", str(installation.overlay()))
        assert changes.returncode == 0, changes.stdout.decode()
        pulse.wait_for_steps()
        assert identities(installation) == before


@pytest.mark.parametrize("layout", ["split", "fused"])
def test_the_red_team_finds_nothing(installation, scenarios, pulse, tmp_path, layout):
    """It knows every file of a split pod, the learner's too, which a fused pod has at the same
    places."""
    kubectl, allowed = installation.kubectl, {"name": "PODRACER_ALLOW_USER_CODE", "value": "true"}
    allow = {"op": "add", "path": "/template/spec/containers/0/env/-", "value": allowed}
    with scenarios.run(f"hostile code in a {layout} pod"), installation.client() as client:
        pod = kubectl.pods("pod")[0]["metadata"]["name"]
        tops = (
            "/etc/podracer",
            "/run/podracer",
            "/var/cache/podracer",
            "/var/spool/podracer",
            "/var/run/secrets",
        )
        found = [
            kubectl.python(pod, each, FIND, *tops).decode()
            for each in ("learner", "worker-0", "evaluator")
        ]
        try:
            installation.apply(patches=[json_patch(*TEMPLATE, allow)] if layout == "fused" else [])
            job = attack(
                client, tmp_path, "".join(found), {"layout": layout, "resources": {"cpu": 0.2}}
            )
            wait_until(lambda: job.refresh().ended, PATIENCE_S, f"{job.name} to end")
        finally:
            installation.apply()
        check_found_nothing(job)
        wait_until(lambda: len(kubectl.pods("pod")) == 2, PATIENCE_S, "its pod to end")
        pulse.wait_for_steps()


def identities(installation: Installation) -> set[str]:
    """Of the pods of the control plane."""
    return {
        pod["metadata"]["uid"]
        for role in ("orchestrator", "leaderboard")
        for pod in installation.kubectl.pods(role)
    }


def test_suspend_and_resume(installation, scenarios, pulse):
    with scenarios.run("suspend, resume"), installation.client() as client:
        job = client.job(pulse.job).suspend()
        wait_until(
            lambda: job.refresh().state == "SUSPENDED", PATIENCE_S, "the job to be suspended"
        )
        wait_until(lambda: not installation.kubectl.pods("pod"), PATIENCE_S, "its pods to end")
        job.resume()
        pulse.wait_for_steps()


def test_a_drained_node(installation, scenarios, pulse):
    with scenarios.run("drain a node, uncordon it") as notes:
        node = free_node(installation)
        begun = time.monotonic()
        words = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=180s")
        installation.kubectl("drain", node, *words, timeout_s=200)
        notes += [f"drained in {time.monotonic() - begun:.0f} s"]
        pulse.wait_for_steps()
        installation.kubectl("uncordon", node)
        wait_until(
            lambda: len(installation.kubectl.pods("pod")) == 2, PATIENCE_S, "two training pods"
        )


def free_node(installation: Installation) -> str:
    """A node without the control plane, to which a training pod is moved where none is."""
    kubectl = installation.kubectl
    (home,) = {
        pod["spec"]["nodeName"]
        for role in ("orchestrator", "leaderboard", "object-store")
        for pod in kubectl.pods(role)
    }

    def found() -> str:
        return next(
            (node for pod in kubectl.pods("pod") if (node := pod["spec"]["nodeName"]) != home), ""
        )

    if not found():
        kubectl("cordon", home)
        kubectl("delete", "pod", kubectl.pods("pod")[0]["metadata"]["name"], timeout_s=180)
    node = wait_until(found, PATIENCE_S, f"a training pod on another node than {home}")
    kubectl("uncordon", home)
    return str(node)


@pytest.fixture
def power() -> Iterator[Callable[[str, str], None]]:
    """Takes it away and gives it back; whatever is still off at the end comes back."""
    off: set[str] = set()

    def switch(verb: str, what: str) -> None:
        subprocess.run([FAULTS, verb, what], check=True, timeout=180, stdout=subprocess.DEVNULL)
        (off.add if verb == "lose" else off.discard)(what)

    yield switch
    for what in tuple(off):
        switch("start", what)


@needs_faults
def test_a_node_without_power(installation, scenarios, pulse, power):
    node = free_node(installation)
    with scenarios.run(f"a node without power for {POWER_S:.0f} s"):
        power("lose", node)
        pulse.wait_for_steps()
        time.sleep(POWER_S)
        power("start", node)
        wait_until(
            lambda: len(installation.kubectl.pods("pod")) == 2, PATIENCE_S, "two training pods"
        )


@needs_faults
@pytest.mark.parametrize("end", ["its taint out-of-service", "the deletion of the Node"])
def test_a_node_that_is_lost(installation, scenarios, pulse, power, end):
    node, kubectl = free_node(installation), installation.kubectl
    taint = "node.kubernetes.io/out-of-service=nodeshutdown"
    with scenarios.run(f"a node lost for good, ended by {end}"):
        power("lose", node)
        wait_until(lambda: not is_ready(installation, node), PATIENCE_S, f"{node} to be NotReady")
        if "taint" in end:
            kubectl("taint", "node", node, f"{taint}:NoExecute")
        else:
            kubectl("delete", "node", node)
        wait_until(
            lambda: not pods_on(installation, node), PATIENCE_S, f"no pod to be left on {node}"
        )
        wait_until(lambda: len(kubectl.pods("pod")) == 2, PATIENCE_S, "two training pods")
        pulse.wait_for_steps()
    power("start", node)
    kubectl.attempt("taint", "node", node, f"{taint}:NoExecute-")


@needs_faults
def test_a_lost_node_is_not_ended(installation, scenarios, pulse, power):
    node = free_node(installation)
    with scenarios.run("a node lost, and nothing done about it"):
        power("lose", node)
        wait_until(lambda: not is_ready(installation, node), PATIENCE_S, f"{node} to be NotReady")
        wait_until(
            lambda: count_elsewhere(installation, node) == 2,
            PATIENCE_S,
            "two training pods on other nodes",
        )
        pulse.wait_for_steps()
    power("start", node)


def count_elsewhere(installation: Installation, node: str) -> int:
    """Training pods that are on other nodes."""
    return sum(pod["spec"]["nodeName"] != node for pod in installation.kubectl.pods("pod"))


def is_ready(installation: Installation, node: str) -> bool:
    conditions = installation.kubectl.get("node", node)["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def pods_on(installation: Installation, node: str) -> list[str]:
    pods = installation.kubectl.get("pods", "--field-selector", f"spec.nodeName={node}")
    return [pod["metadata"]["name"] for pod in pods]


@needs_faults
def test_the_api_server_is_away(installation, scenarios, pulse, power):
    with scenarios.run(f"the API server away for {AWAY_S:.0f} s") as notes:
        power("lose", "api")
        before = pulse.live_steps
        time.sleep(AWAY_S)
        power("start", "api")
        wait_until(lambda: pulse.live_steps != before, PATIENCE_S, "the first look after it")
        # What looks at the job comes by way of the API server, so its gap is the outage.
        notes += [f"{pulse.live_steps - before:,} steps meanwhile"]
        pulse.wait_for_steps()


def test_the_object_store_is_away(installation, scenarios, pulse):
    kubectl = installation.kubectl
    restarts = restart_count(installation)
    with scenarios.run(f"MinIO away for {AWAY_S:.0f} s"):
        kubectl("scale", "statefulset/podracer-minio", "--replicas=0")
        time.sleep(AWAY_S)
        kubectl("scale", "statefulset/podracer-minio", "--replicas=1")
        kubectl.wait_ready("statefulset/podracer-minio")
        pulse.wait_for_steps()
    assert restart_count(installation) == restarts


def restart_count(installation: Installation) -> int:
    pods = [pod for role in ("orchestrator", "pod") for pod in installation.kubectl.pods(role)]
    return sum(each["restartCount"] for pod in pods for each in pod["status"]["containerStatuses"])


def test_a_quota(installation, scenarios, pulse):
    with scenarios.run("the quota of the namespace is used up"):
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "no-more"},
            "spec": {"hard": {"count/jobs.batch": "2"}},
        }
        installation.kubectl.apply(quota)
        with installation.client() as client:
            job = client.job(pulse.job).scale(most=3)
            wait_until(
                lambda: "POD_QUOTA" in installation.events(job.name),
                PATIENCE_S,
                "an event of the quota",
            )
            installation.kubectl("delete", "resourcequota", "no-more")
            wait_until(
                lambda: len(installation.kubectl.pods("pod")) == 3, PATIENCE_S, "the third pod"
            )
            job.scale(most=2)
        wait_until(lambda: len(installation.kubectl.pods("pod")) == 2, PATIENCE_S, "two pods")
        pulse.wait_for_steps()


TEMPLATE = ("PodTemplate", "podracer-pod-template")
IMAGE = "/template/spec/containers/0/image"
BAD_DEPLOYMENTS = {
    "an image that does not exist": (
        TEMPLATE,
        {"op": "replace", "path": IMAGE, "value": "localhost:1/no/such:image"},
        ("POD_IMAGE", "no/such:image"),
    ),
    "an image whose pull secret is missing": (
        TEMPLATE,
        {"op": "replace", "path": IMAGE, "value": PRIVATE_IMAGE},
        ("POD_IMAGE", "authorization failed"),
    ),
    "a template of another version": (
        TEMPLATE,
        {"op": "replace", "path": "/metadata/annotations/podracer.dev~1version", "value": "9.9.9"},
        ("POD_TEMPLATE", "9.9.9"),
    ),
    "a template that admission refuses": (
        TEMPLATE,
        {"op": "add", "path": "/template/spec/hostNetwork", "value": True},
        ("POD_REFUSED", "PodSecurity"),
    ),
    "a Role that may not create Jobs": (
        ("Role", "podracer-orchestrator"),
        {"op": "replace", "path": "/rules/0/verbs", "value": ["get", "list", "watch", "delete"]},
        ("POD_FORBIDDEN", "not permitted to create jobs"),
    ),
}


@pytest.mark.parametrize("name", BAD_DEPLOYMENTS)
def test_a_bad_deployment(installation, scenarios, pulse, name):
    """The training pods that run go on; the new one's trouble is an event, and the orchestrator
    stays Ready."""
    what, operation, (kind, words) = BAD_DEPLOYMENTS[name]
    if not operation["value"]:
        pytest.skip("PODRACER_CLUSTER_PRIVATE_IMAGE names no image that asks for a password")
    kubectl = installation.kubectl

    def told() -> str:
        events = [event.message for event in job.latest_events(200) if event.kind == kind]
        return next((message for message in events if words in message), "")

    with scenarios.run(name) as notes, installation.client() as client:
        installation.apply(patches=[json_patch(*what, operation)])
        before = restart_count(installation)
        job = client.job(pulse.job).scale(most=3)
        try:
            notes += [wait_until(told, PATIENCE_S, f"the event {kind}: {words}")]
            assert len(kubectl.pods("orchestrator")) == 1
            kubectl.wait_ready(*CONTROL_PLANE)
            assert restart_count(installation) == before
            installation.apply()
            wait_until(
                lambda: len(kubectl.pods("pod")) == 3,
                PATIENCE_S,
                "the third pod, now that it can start",
            )
        finally:
            installation.apply()
            job.scale(most=2)
        wait_until(lambda: len(kubectl.pods("pod")) == 2, PATIENCE_S, "two pods")
        pulse.wait_for_steps()


SECRET = {"name": "key", "secret": {"secretName": "podracer-authority"}}
TOKEN = {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
OF_SECRET = {
    "name": "KEY",
    "valueFrom": {"secretKeyRef": {"name": "podracer-authority", "key": "tls.key"}},
}
CHANGES: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
    ("a volume is not", lambda pod: pod["volumes"].append(SECRET)),
    (
        "a volume is not",
        lambda pod: pod["volumes"].append({"name": "node", "hostPath": {"path": "/"}}),
    ),
    ("a volume is not", lambda pod: pod["volumes"].append(TOKEN)),
    (
        "a volume is not",
        lambda pod: pod["volumes"][-1]["secret"].update(secretName="podracer-authority", items=[]),
    ),
    ("the service account", lambda pod: pod.update(serviceAccountName="podracer-secrets")),
    ("the service account", lambda pod: pod.update(automountServiceAccountToken=True)),
    (
        "an image is not",
        lambda pod: pod["initContainers"][0].update(image="docker.io/library/busybox"),
    ),
    ("a variable is", lambda pod: pod["containers"][0]["env"].append(OF_SECRET)),
    (
        "a variable is",
        lambda pod: pod["containers"][0]["envFrom"].append({"secretRef": {"name": "podracer-s3"}}),
    ),
    ("a security context", lambda pod: pod["containers"][0]["securityContext"].update(runAsUser=0)),
    ("a security context", lambda pod: pod["initContainers"][0].pop("securityContext")),
    ("a security context", lambda pod: pod["securityContext"].update(runAsNonRoot=False)),
    ("shares a namespace", lambda pod: pod.update(hostIPC=True)),
]
"""To a Job of the pool, and what the policy of deploy/k8s/cluster says of them."""


def refusal(
    kubectl: Kubectl, plan: PodPlan, change: Callable[[dict[str, Any]], object] = lambda pod: None
) -> str:
    """Why the orchestrator's service account may not make a Job of the pod template, once changed;
    empty if it may."""
    template = kubectl.get("podtemplate", "podracer-pod-template")["template"]
    job = JobMaker("policy").make(plan, template, OWNER)
    change(job["spec"]["template"]["spec"])
    account = f"--as=system:serviceaccount:{kubectl.namespace}:podracer-orchestrator"
    done = kubectl.attempt("create", "--dry-run=server", account, "-f", "-", data=json.dumps(job))
    return done.stderr.decode() if done.returncode else ""


def test_jobs_are_restricted(installation, scenarios, pulse):
    kubectl, policies = installation.kubectl, str(ROOT / "deploy" / "k8s" / "cluster")
    with scenarios.run("the admission policy for Jobs"):
        kubectl("apply", "-k", policies)
        try:
            kubectl("label", "namespace", NAMESPACE, "podracer.dev/restrict-jobs=true")
            check_policy(kubectl)
            with installation.client() as client:  # what the pool itself makes
                job = client.job(pulse.job).scale(most=3)
                wait_until(lambda: len(kubectl.pods("pod")) == 3, PATIENCE_S, "the third pod")
                job.scale(most=2)
        finally:
            kubectl("label", "namespace", NAMESPACE, "podracer.dev/restrict-jobs-")
            kubectl("delete", "-k", policies)
        wait_until(lambda: len(kubectl.pods("pod")) == 2, PATIENCE_S, "two pods")
        pulse.wait_for_steps()


def check_policy(kubectl: Kubectl) -> None:
    """It takes the API server a moment to know a policy."""
    wait_until(
        lambda: "podracer-jobs" in refusal(kubectl, SPLIT, CHANGES[0][1]), 60, "the policy to hold"
    )
    for words, change in CHANGES:
        assert words in refusal(kubectl, SPLIT, change)
    assert [refusal(kubectl, plan) for plan in (SPLIT, FUSED)] == ["", ""]


def test_no_storage_class(installation, scenarios, tmp_path):
    """In a namespace of its own, where nothing starts: the claim says why."""
    other = Installation(tmp_path / "overlay", f"{NAMESPACE}-no-storage")
    claim = "/spec/volumeClaimTemplates/0/spec/storageClassName"
    patch = [{"op": "add", "path": claim, "value": "no-such-class"}]
    try:
        other.make_namespace()
        other.apply(patches=[{"target": {"kind": "StatefulSet"}, "patch": json.dumps(patch)}])
        wait_until(
            lambda: '"no-such-class" not found' in other.kubectl("get", "events"),
            PATIENCE_S,
            "an event that names the class",
        )
    finally:
        other.kubectl("delete", "namespace", other.namespace, timeout_s=300)


def test_a_secret_that_is_missing(installation, scenarios, pulse):
    """A token is for life: one that is deleted is another one afterwards, and its pods have to
    begin anew."""
    kubectl = installation.kubectl
    with scenarios.run("a Secret is deleted"):
        kubectl("delete", "secret", "podracer-tls-leaderboard")
        wait_until(
            lambda: kubectl.attempt("get", "secret", "podracer-tls-leaderboard").returncode == 0,
            PATIENCE_S,
            "the Secret to be made again",
        )
        kubectl("delete", "pod", "podracer-leaderboard-0")
        kubectl.wait_ready("statefulset/podracer-leaderboard")
        pulse.wait_for_steps()


def test_certificates_and_tokens_are_renewed(installation, scenarios, pulse):
    kubectl = installation.kubectl
    with scenarios.run("new certificates and a second token while a job trains"):
        kubectl(
            "exec",
            "deployment/podracer-secrets",
            "--",
            "podracer",
            "secrets",
            "--kubernetes",
            "--once",
            "--renew",
        )
        pulse.wait_for_steps()
        for component in ("orchestrator", "leaderboard"):
            kubectl("delete", "pod", f"podracer-{component}-0")
        kubectl.wait_ready(*CONTROL_PLANE)
        pulse.wait_for_steps()


def test_delete_and_apply_again(installation, scenarios, pulse):
    kubectl = installation.kubectl
    with scenarios.run("delete -k, apply -k again"):
        tokens = kubectl.get("secret", "podracer-tokens-orchestrator")["data"]
        installation.delete()
        wait_until(lambda: not kubectl.get("pods"), PATIENCE_S, "every pod to go")
        assert kubectl.get("jobs") == []
        installation.apply()
        kubectl.wait_ready(*ALL)
        pulse.wait_for_steps()
        assert kubectl.get("secret", "podracer-tokens-orchestrator")["data"] == tokens


def test_the_job_ends_exactly_at_its_budget(installation, scenarios, pulse):
    with scenarios.run("the job is given a budget and ends"), installation.client() as client:
        job = client.job(pulse.job)
        limit = end_after(job, 8)
        finish(installation, job)
        assert job.progress.env_steps >= limit
    scenarios.pulse = None
    assert installation.audit(at_rest=True) == []


def test_a_backup_is_restored_into_a_new_namespace(installation, scenarios, tmp_path):
    with scenarios.run("a backup, restored into a new namespace"):
        with installation.client() as client:
            names = sorted(job.name for job in client.jobs())
            best = client.job(names[0]).leaderboard().candidates[0].agent.name
        other = Installation(tmp_path / "restored", f"{NAMESPACE}-restored")
        try:
            installation.back_up("save", tmp_path / "backup.tar")
            other.make_namespace()
            other.apply()
            other.kubectl.wait_ready(*ALL)
            other.back_up("restore", tmp_path / "backup.tar")
            with other.client() as client:
                assert sorted(job.name for job in client.jobs()) == names
                job = client.job(names[0])
                assert job.leaderboard().candidates[0].agent.name == best
                job.download_best(tmp_path / "best")
        finally:
            other.kubectl(
                "delete", "namespace", other.namespace, "--ignore-not-found", timeout_s=300
            )

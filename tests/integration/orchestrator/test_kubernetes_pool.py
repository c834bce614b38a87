"""The Kubernetes pool against an API server: what it makes, adopts, gives up and says, whatever the
cluster does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer_client.secrets import create_secrets
from podracer_core.errors import InvalidInput, PermissionRefused
from podracer_orchestrator.pool import reconciler
from podracer_orchestrator.pool.kubernetes import JobMaker, pool, status
from support.errors import raises
from support.kubernetes_api import NAMESPACE, Api, delete
from support.kubernetes_cluster import Cluster, Node, Play
from support.kubernetes_store import ApiError, Store
from support.pod_template import apply, pod_template, template_object
from support.processes import until

ROOT = Path(__file__).parents[3]
PATIENCE_S = 120.0
TEMPLATE = "podracer-pod-template"


@pytest.fixture(scope="module")
def tls(tmp_path_factory) -> Path:
    """Certificates for an API server here."""
    folder = tmp_path_factory.mktemp("authority")
    create_secrets(folder, ["127.0.0.1"])
    return folder / "tls" / "orchestrator"


@pytest.fixture
def cluster(tls) -> Iterator[Cluster]:
    found = Cluster(Api(Store(), tls=tls))
    found.start()
    yield found
    found.stop()


@pytest.fixture
async def site(site, cluster, tmp_path, monkeypatch) -> Any:
    """The site with the pool of that cluster; what takes minutes otherwise is over soon."""
    monkeypatch.setattr(reconciler, "_TICK_S", 0.1)
    monkeypatch.setattr(pool, "_LOOK_S", 0.5)
    monkeypatch.setattr(pool, "_PAUSE_S", 0.02)
    monkeypatch.setattr(pool, "DRAIN_S", 0.5)
    monkeypatch.setattr(status, "SLOW_S", 0.2)
    apply(cluster.store, tokens="/etc/podracer/tokens")
    await site.stop()
    site.settings = {
        "pool": "kubernetes",
        "kubeconfig": cluster.api.kubeconfig(tmp_path / "kubeconfig"),
        "lease_term": 60.0,
    }
    await site.start()
    yield site
    await site.stop()


def shape(most: int = 1, **more: Any) -> job_pb2.PodShape:
    return job_pb2.PodShape(max_count=most, min_count=min(most, more.pop("least", 1)), **more)


async def events(site: Any, job: Any, kind: str) -> list[str]:
    return [event.message for event in await site.events(job, kind)]


async def until_event(site: Any, job: Any, kind: str) -> str:
    return (await until(lambda: events(site, job, kind), kind))[-1]


async def pods(site: Any) -> dict[str, Any]:
    found = (await site.jobs.ListPods(page_size=500)).pods
    return {pod.name.rpartition("/")[2]: pod for pod in found}


async def limit(site: Any) -> str:
    return (await site.jobs.GetCapacity()).limit


async def scale(site: Any, job: Any, most: int) -> None:
    request = service_pb2.UpdateJobRequest(
        name=job.name, spec=job_pb2.JobSpec(pod=job_pb2.PodShape(max_count=most))
    )
    request.update_mask.paths.append("pod.max_count")
    await site.client.jobs.UpdateJob(request)


def uids(cluster: Cluster) -> dict[str, str]:
    return {name: job["metadata"]["uid"] for name, job in cluster.jobs().items()}


async def test_jobs_come_and_go_with_what_is_wanted_and_one_config_map_owns_them(site, cluster):
    job = await site.create(pod=shape(3))
    await until(lambda: len(cluster.pods("Running")) == 3, "three pods")
    assert set(cluster.jobs()) == {"fused-0", "fused-1", "fused-2"} == set(await pods(site))
    (owner,) = cluster.store.find("configmaps")
    owners = {each["metadata"]["ownerReferences"][0]["uid"] for each in cluster.jobs().values()}
    assert owners == {owner["metadata"]["uid"]}
    capacity = await site.jobs.GetCapacity()
    assert (capacity.backend, capacity.pod_count, capacity.HasField("total")) == (
        "kubernetes",
        3,
        False,
    )
    await scale(site, job, 1)
    await until(lambda: set(cluster.jobs()) == {"fused-0"}, "the older one alone")
    await site.jobs.CancelJob(name=job.name)
    await until(lambda: not cluster.jobs(), "no pod")
    while await pods(site):
        await asyncio.sleep(0.02)


async def test_the_next_orchestrator_adopts_what_runs_and_doubles_nothing(site, cluster):
    await site.create(pod=shape(4))
    await until(lambda: len(cluster.pods("Running")) == 4, "four pods")
    before, made = uids(cluster), cluster.api.calls.count(("create", "jobs"))
    await site.stop()
    stray = JobMaker("podracer").make(
        plan("fused-99"), pod_template(), cluster.store.find("configmaps")[0]
    )
    cluster.store.create("jobs", NAMESPACE, stray)
    assert len(cluster.jobs()) == 5  # nothing ends with the orchestrator
    await site.start()
    await until(lambda: "fused-99" not in cluster.jobs(), "the end of the one without a row")
    assert uids(cluster) == before
    assert cluster.api.calls.count(("create", "jobs")) == made
    assert set(await pods(site)) == set(before)


@pytest.mark.thorough
async def test_what_went_away_meanwhile_is_made_again_or_forgotten(site, cluster):
    job = await site.create(pod=shape(2))
    await until(lambda: len(cluster.pods("Running")) == 2, "two pods")
    before = uids(cluster)
    await site.stop()
    delete(cluster.store, "jobs", "fused-1", {"propagationPolicy": "Background"})
    await until(lambda: len(cluster.pods()) == 1, "its end")
    await site.start()
    await until(lambda: len(cluster.pods("Running")) == 2, "two pods again")
    after = uids(cluster)
    assert after["fused-0"] == before["fused-0"]
    assert after["fused-1"] != before["fused-1"]
    await site.jobs.CancelJob(name=job.name)
    await site.stop()
    for name in list(cluster.jobs()):
        delete(cluster.store, "jobs", name, {"propagationPolicy": "Background"})
    await site.start()
    while await pods(site):
        await asyncio.sleep(0.02)


def plan(name: str) -> Any:
    from podracer_orchestrator.jobs import PodKind
    from podracer_orchestrator.pool import PodPlan

    return PodPlan(f"projects/default/pods/{name}", PodKind(), 1)


@pytest.mark.thorough
async def test_a_job_whose_making_was_not_heard_of_is_adopted(site, cluster):
    watched = {("watch", "jobs"), ("watch", "pods"), ("watch", "podtemplates")}
    await until(lambda: watched <= set(cluster.api.calls), "the first copy of everything")
    away = ApiError(500, "InternalError", "not now")
    cluster.api.faults["list", "jobs"] = [away] * 100  # the copy does not tell either
    cluster.api.lost["create", "jobs"] = [away]
    lists = len(cluster.api.faults["list", "jobs"])
    cluster.store.forget_history()
    await until(lambda: len(cluster.api.faults["list", "jobs"]) < lists, "the end of the watch")
    await site.create(pod=shape(2))
    await until(
        lambda: ("get", "jobs") in cluster.api.calls, "a look at the one that was there (409)"
    )
    cluster.api.faults.clear()
    await until(lambda: len(cluster.pods("Running")) == 2, "two pods")
    assert set(cluster.jobs()) == {"fused-0", "fused-1"} == set(await pods(site))
    assert ("delete", "jobs") not in cluster.api.calls


@pytest.mark.thorough
async def test_a_name_that_somebody_else_has_is_told(site, cluster):
    body = JobMaker("another").make(
        plan("fused-0"), pod_template(), cluster.store.get("configmaps", "podracer-pool")
    )
    cluster.store.create("jobs", NAMESPACE, body)
    job = await site.create()
    said = await until_event(site, job, "POD_NAME_TAKEN")
    assert (
        "the namespace podracer already has a Job fused-0, which belongs to the pool another"
        in said
    )
    assert set(cluster.jobs()) == {"fused-0"}


@pytest.mark.thorough
async def test_a_forgotten_resource_version_is_listed_anew(site, cluster):
    await site.create(pod=shape(2))
    await until(lambda: len(cluster.pods("Running")) == 2, "two pods")
    lists = cluster.api.calls.count(("list", "jobs"))
    cluster.store.forget_history()
    delete(cluster.store, "jobs", "fused-0", {"propagationPolicy": "Background"})
    await until(lambda: cluster.api.calls.count(("list", "jobs")) > lists, "another list")
    await until(lambda: len(cluster.pods("Running")) == 2, "two pods again")


@pytest.mark.thorough
async def test_an_api_server_that_is_away_ends_nothing(site, cluster):
    job = await site.create(pod=shape(2))
    await until(lambda: len(cluster.pods("Running")) == 2, "two pods")
    before = uids(cluster)
    cluster.api.stop()
    await scale(site, job, 3)
    await asyncio.sleep(1.0)
    assert set(before) <= set(await pods(site))
    assert (await site.job(job.name)).state != job_pb2.JOB_STATE_FAILED
    # this is not a matter of how it is deployed
    await site.server.orchestrator.pool_reconciler.check()
    cluster.api.start()
    await until(lambda: len(cluster.pods("Running")) == 3, "the third pod")
    assert before.items() <= uids(cluster).items()


@pytest.mark.parametrize("what", ["count/jobs.batch", "pods"])
async def test_a_quota_that_is_used_up_is_told_once_and_limits_growth(site, cluster, what):
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {what: "2"}}}
    cluster.store.create("resourcequotas", NAMESPACE, quota)
    job = await site.create(pod=shape(6))
    said = await until_event(site, job, "POD_QUOTA")
    assert "exceeded quota: small" in said
    await until(lambda: len(cluster.pods("Running")) == 2, "the two that it has room for")
    while len(await pods(site)) != 6:  # the others wait for room
        await asyncio.sleep(0.05)
    assert "exceeded quota" in await limit(site)
    assert len(await events(site, job, "POD_QUOTA")) == 1


@pytest.mark.thorough
async def test_without_leave_it_says_which_verb_lacks_and_is_not_ready(site, cluster):
    granted = {
        "apiGroups": ["batch"],
        "resources": ["jobs"],
        "verbs": ["get", "list", "watch", "delete"],
    }
    core = {
        "apiGroups": [""],
        "resources": ["pods", "podtemplates", "configmaps", "events"],
        "verbs": ["get", "list", "watch", "create"],
    }
    cluster.api.role = {"rules": [granted, core]}
    job = await site.create()
    said = await until_event(site, job, "POD_FORBIDDEN")
    assert 'cannot create resource "jobs" in API group "batch" in the namespace "podracer"' in said
    with pytest.raises(PermissionRefused, match="create jobs"):
        await site.server.orchestrator.pool_reconciler.check()
    granted["verbs"].append("create")
    await until(lambda: cluster.pods("Running"), "the pod, now that it may be made")
    assert await until_checked(site, "") == ""
    await site.stop()
    cluster.api.role = {"rules": [core]}
    await site.start()
    assert "not permitted to list jobs.batch in the namespace podracer" in await until_checked(
        site, "not permitted"
    )


async def until_checked(site: Any, expected: str) -> str:
    """What readiness says of the pool, once it says what is expected; "" where nothing is wrong."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        said = ""
        try:
            await site.server.orchestrator.pool_reconciler.check()
        except PermissionRefused as refusal:
            said = refusal.message
        if expected in said and bool(expected) == bool(said):
            return said
        await asyncio.sleep(0.05)
    raise AssertionError(f"waited for {expected!r}, it says {said!r}")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("play", "kind", "expected"),
    [
        (
            Play("image"),
            "POD_IMAGE",
            "cannot pull the image of the learner (ImagePullBackOff): Back-off pulling",
        ),
        (
            Play("config"),
            "POD_CONFIG",
            '(CreateContainerConfigError): secret "podracer-s3" not found',
        ),
        (
            Play("crash", 1, "it says: no GPU here"),
            "POD_CRASHES",
            "exit code 1; its log ends:\nit says: no GPU here",
        ),
        (
            Play("crash", 2, "PODRACER_X: wrong"),
            "POD_CRASHES",
            "exit code 2; its log ends:\nPODRACER_X: wrong",
        ),
        (Play("crash", 137, ""), "POD_CRASHES", "the learner was killed by SIGKILL"),
    ],
)
async def test_what_keeps_a_pod_from_working_is_told_to_its_job(
    site, cluster, play, kind, expected
):
    cluster.play = lambda pod: play
    job = await site.create()
    assert expected in await until_event(site, job, kind)
    await asyncio.sleep(0.5)
    assert len(await events(site, job, kind)) == 1


async def test_a_sidecar_that_keeps_crashing_is_told_and_ends_the_job_in_the_end(
    site, cluster, monkeypatch
):
    monkeypatch.setattr(reconciler, "MAX_DEATHS", 1)
    cluster.play = lambda pod: Play("sidecar", 1, "no such environment")
    job = await site.create(pod=job_pb2.PodShape(layout=job_pb2.POD_LAYOUT_SPLIT))
    said = await until_event(site, job, "POD_CRASHES")
    assert said.startswith(
        "the worker-0 ended with exit code 1, repeatedly; its log ends:\nno such environment"
    )
    failed = await until_event(site, job, "JOB_FAILED")
    assert "died 1 times in a row without progress" in failed
    await until(lambda: not cluster.jobs(), "the end of its Job")


@pytest.mark.thorough
async def test_a_learner_that_keeps_dying_ends_the_job_with_its_log(site, cluster, monkeypatch):
    monkeypatch.setattr(reconciler, "MAX_DEATHS", 3)
    cluster.play = lambda pod: Play("crash", 1, "the learner crashes on purpose")
    job = await site.create()
    await until_event(site, job, "JOB_FAILED")
    found = await site.job(job.name)
    assert found.problem.reason == "POD_KEEPS_DYING"
    assert "the learner crashes on purpose" in found.problem.detail
    assert len(await events(site, job, "POD_RESTARTED")) == 3
    await until(lambda: not cluster.jobs(), "the end of its Job")


@pytest.mark.thorough
async def test_a_disrupted_pod_comes_again_and_nothing_is_held_against_anybody(site, cluster):
    job = await site.create()
    (pod,) = await until(lambda: cluster.pods("Running"), "the pod")
    learner = site.learner("projects/default/pods/fused-0")
    lease = await learner.ask()
    before = uids(cluster)
    cluster.disrupt(pod["metadata"]["name"])
    await until(lambda: len(cluster.pods("Running")) == 1, "its successor")
    again = site.learner("projects/default/pods/fused-0")
    taken = await again.ask(wait_s=20)  # though the term of the first one is a minute
    assert taken.fence > lease.fence
    assert uids(cluster) == before
    assert not await events(site, job, "POD_RESTARTED")
    assert not await events(site, job, "POD_CRASHES")


@pytest.mark.thorough
async def test_a_job_that_has_ended_though_its_pod_is_wanted_is_made_again(site, cluster):
    seen: list[str] = []

    def play(pod: Any) -> Play:
        seen.append(pod["metadata"]["ownerReferences"][0]["uid"])
        return Play("done" if seen[-1] == seen[0] else "run")

    cluster.play = play
    await site.create()
    await until(
        lambda: cluster.pods("Running") and uids(cluster).get("fused-0") not in (None, seen[0]),
        "another one",
    )


async def test_a_node_autoscaler_is_asked_for_all_nodes_at_once(site, cluster):
    """It brings a node for each pod that has no place, minutes later: pods one by one would take
    hours."""
    cluster.nodes[:] = [Node("node-0", cpu=3.0)]
    job = await site.create(pod=shape(16, resources={"cpu": 1.0}))
    said = await until_event(site, job, "POD_UNSCHEDULABLE")
    assert said == "no node has room for a pod: 0/1 nodes are available: 1 Insufficient cpu."
    waves, made = [], {}
    while len(cluster.pods("Running")) < 16:
        waiting = await until(
            lambda: (
                16 - len(cluster.pods("Running")) == len(unplaced(cluster)) and unplaced(cluster)
            ),
            "all",
        )
        made = made or uids(cluster)
        waves.append(len(waiting))
        assert "0/1 nodes are available" in await limit(site)
        while [pod.message for pod in (await pods(site)).values() if pod.message] != [said] * 13:
            await asyncio.sleep(0.05)
        cluster.nodes += [Node(f"late-{name}", cpu=1.0) for name in waiting]
        await until(lambda: not unplaced(cluster), "places for all that waited")
        await until(lambda: len(cluster.pods("Running")) >= 3 + sum(waves), "all of them")
    assert waves == [13]
    assert uids(cluster) == made  # none was given up meanwhile
    assert ("delete", "jobs") not in cluster.api.calls
    assert len(await events(site, job, "POD_UNSCHEDULABLE")) == 1


def unplaced(cluster: Cluster) -> list[str]:
    """What a node autoscaler looks for: the pods that the scheduler has no place for."""
    return [
        pod["metadata"]["name"]
        for pod in cluster.pods("Pending")
        if any(
            each.get("reason") == "Unschedulable" for each in pod["status"].get("conditions", ())
        )
    ]


async def test_no_more_pods_wait_than_the_operator_allows(site, cluster):
    await site.stop()
    site.settings["pool_max_pending"] = 2
    cluster.nodes[:] = [Node("node-0", cpu=3.0)]
    await site.start()
    await site.create(pod=shape(9, resources={"cpu": 1.0}))
    await until(
        lambda: len(cluster.pods("Running")) == 3 and len(unplaced(cluster)) == 2, "two that wait"
    )
    cluster.nodes.append(Node("node-1"))
    await until(lambda: len(cluster.pods("Running")) == 9, "all")


async def test_a_job_chooses_where_its_pods_run(site, cluster, tmp_path):
    file = tmp_path / "profiles.json"
    file.write_text('{"spot": {"tolerations": [{"key": "spot", "operator": "Exists"}]}}')
    await site.restart(pod_profiles=file)
    with raises(InvalidInput, field="pod.profile"):
        await site.create(pod=shape(profile="on-demand"))
    file.write_text(
        '{"spot": {"priorityClassName": "spot"}, "on-demand": {"priorityClassName": "dear"}}'
    )
    await site.create(pod=shape(2, profile="on-demand"))
    await site.create(pod=shape(profile="spot"))
    await until(lambda: len(cluster.pods("Running")) == 3, "three pods")
    classes = {
        name: job["spec"]["template"]["spec"]["priorityClassName"]
        for name, job in cluster.jobs().items()
    }
    assert classes == {
        "fused-on-on-demand-0": "dear",
        "fused-on-on-demand-1": "dear",
        "fused-on-spot-0": "spot",
    }
    assert set(await pods(site)) == set(classes)


@pytest.mark.thorough
async def test_a_gpu_where_no_node_has_one_is_told_and_others_grow(site, cluster):
    greedy = await site.create(pod=shape(4, resources={"cpu": 0.1, "gpu": 1}))
    said = await until_event(site, greedy, "POD_UNSCHEDULABLE")
    assert said == (
        "no node has room for a pod with 1 GPU: 0/1 nodes are available: 1 Insufficient "
        "nvidia.com/gpu."
    )
    modest = await site.create(pod=shape(5, resources={"cpu": 0.1}))
    await until(lambda: len(cluster.pods("Running")) == 5, "five pods without")
    assert not await events(site, modest, "POD_UNSCHEDULABLE")
    await until(lambda: len(cluster.jobs()) == 9, "four that wait for a GPU")


@pytest.mark.thorough
async def test_a_pod_with_less_memory_than_a_job_asks_for_is_replaced(site, cluster):
    await site.create(pod=shape(1, resources={"memory_bytes": 1 << 30}))
    await until(lambda: cluster.pods("Running"), "the pod")
    first = uids(cluster)["fused-0"]
    await site.create(pod=shape(1, resources={"memory_bytes": 2 << 30}))

    def memory() -> set[str]:
        found = [
            pod["spec"]["containers"][0]["resources"]["limits"]["memory"]
            for pod in cluster.pods("Running")
        ]
        return set(found) if first not in uids(cluster).values() else set()

    await until(lambda: memory() == {str(2 << 30)}, "pods with more")


async def test_with_kueue_pods_wait_for_their_turn(site, cluster):
    await site.stop()
    # which Kueue has no need of
    site.settings |= {"kueue_queue": "research", "pool_max_pending": 1}
    await site.start()
    job = await site.create(pod=shape(3))
    await until(lambda: len(cluster.jobs()) == 3, "the Jobs")
    deadline = time.monotonic() + PATIENCE_S
    while (await pods(site))["fused-0"].message != "waits for its turn in the queue research":
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert not cluster.pods()
    # as Kueue does
    cluster.store.change("jobs", "fused-0", lambda each: each["spec"].update(suspend=False))
    await until(lambda: cluster.pods("Running"), "the pod")
    while (await pods(site))["fused-0"].message:
        assert time.monotonic() < deadline + PATIENCE_S
        await asyncio.sleep(0.05)
    uid = uids(cluster)
    # it is preempted
    cluster.store.change("jobs", "fused-0", lambda each: each["spec"].update(suspend=True))
    await until(lambda: not cluster.pods(), "the end of the pod")
    await asyncio.sleep(0.5)
    assert uids(cluster) == uid
    assert not [kind for kind in await site.kinds(job) if kind.startswith("POD_")]


@pytest.mark.thorough
async def test_without_their_owner_no_pods_are_made_until_it_is_applied_again(site, cluster):
    job = await site.create(pod=shape(3))
    await until(lambda: len(cluster.pods("Running")) == 3, "three pods")
    delete(cluster.store, "configmaps", "podracer-pool", {})
    said = await until_event(site, job, "POD_OWNER")
    assert "the ConfigMap podracer-pool in the namespace podracer is missing" in said
    assert not cluster.jobs()
    assert not cluster.store.find("configmaps")
    await site.server.orchestrator.pool_reconciler.check()
    cluster.store.create("configmaps", NAMESPACE, {"metadata": {"name": "podracer-pool"}})
    await until(lambda: len(cluster.pods("Running")) == 3, "three others")


async def test_pods_are_made_of_a_template_of_its_own_version_only(site, cluster, caplog):
    cluster.store.change("podtemplates", TEMPLATE, lambda each: each["metadata"].pop("annotations"))
    cluster.store.create(
        "podtemplates", NAMESPACE, template_object() | {"metadata": {"name": "another"}}
    )
    job = await site.create(pod=shape(2))
    said = await until_event(site, job, "POD_TEMPLATE")
    assert (
        f"the pod template {TEMPLATE} (PODRACER_POD_TEMPLATE) is unusable: it is of the version "
        "unknown" in said
    )
    await site.server.orchestrator.pool_reconciler.check()  # it is Ready
    assert not cluster.jobs()
    cluster.store.remove("podtemplates", TEMPLATE)
    await until(
        lambda: "there is no PodTemplate of that name" in caplog.text, "the end of the template"
    )
    cluster.store.create("podtemplates", NAMESPACE, template_object(tokens="/another"))
    await until(lambda: len(cluster.pods("Running")) == 2, "two pods of the new template")
    variables = {
        entry["name"]: entry.get("value")
        for entry in cluster.pods()[0]["spec"]["containers"][0]["env"]
    }
    assert variables["PODRACER_TOKENS"] == "/another"
    # in the log: the events are in the database
    assert caplog.text.count("it is of the version unknown") == 1


def known_as_running(site: Any) -> list[Any]:
    """The pods that run by the pool's own copy of the cluster, which may lag behind it."""
    copy = site.server.orchestrator.pool_reconciler._backend._cluster
    return [pod for pods in copy.pods().values() for pod in pods if status.is_running(pod)]


async def test_a_pod_that_cannot_start_is_made_again_once_its_template_is_mended(site, cluster):
    cluster.play = lambda pod: Play("image" if "/broken" in str(pod["spec"]) else "run")
    job = await site.create(pod=shape(2))
    await until(lambda: len(known_as_running(site)) == 2, "two pods")
    running = uids(cluster)
    cluster.store.change(
        "podtemplates", TEMPLATE, lambda each: each.update(template=pod_template(tokens="/broken"))
    )
    await scale(site, job, 3)
    await until_event(site, job, "POD_IMAGE")
    cluster.store.change(
        "podtemplates", TEMPLATE, lambda each: each.update(template=pod_template(tokens="/mended"))
    )
    await until(lambda: len(cluster.pods("Running")) == 3, "the third pod")
    # those that run go on, though of the first template
    assert running.items() <= uids(cluster).items()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (403, 'admission webhook "validate.kyverno.svc-fail" denied the request: no label "team"'),
        (
            422,
            'jobs.batch "fused-0" is forbidden: ValidatingAdmissionPolicy "cost" denied request: '
            "too much memory",
        ),
        (
            500,
            'Internal error occurred: failed calling webhook "x.example.org": connection refused',
        ),
    ],
)
async def test_what_admission_refuses_is_told_in_its_words(site, cluster, code, said):
    cluster.api.faults["create", "jobs"] = [ApiError(code, "Forbidden", said)]
    job = await site.create()
    found = await until_event(site, job, "POD_REFUSED")
    assert found.endswith(said)
    assert "may not" not in found
    await site.server.orchestrator.pool_reconciler.check()
    await until(lambda: cluster.pods("Running"), "the pod, now that it is let in")


async def test_a_pod_on_a_dead_node_is_left_behind(site, cluster, monkeypatch):
    """Its Job would wait for its end for ever, and so would the deletion of its Job."""
    monkeypatch.setattr(status, "MARGIN_S", 0.3)
    monkeypatch.setattr(pool, "_SEEN_S", 0.3)
    cluster.store.change(
        "podtemplates",
        TEMPLATE,
        lambda each: each["template"]["spec"].update(terminationGracePeriodSeconds=0),
    )
    cluster.nodes[:] = [dead, node] = [Node("node-0", cpu=1.0), Node("node-1", cpu=2.0)]
    job = await site.create(pod=shape(2, resources={"cpu": 1.0}))
    await until(lambda: len(cluster.pods("Running")) == 2, "two pods")
    (lost,) = cluster.store.find("pods", "", f"spec.nodeName={dead.name}")
    left = lost["metadata"]["labels"]["podracer.dev/pod"]
    cluster.lose(dead)
    await until(
        lambda: len(cluster.store.find("pods", "", f"spec.nodeName={node.name}")) == 2,
        "another pod",
    )
    assert left not in cluster.jobs()
    while left in await pods(site):
        await asyncio.sleep(0.02)
    cluster.nodes.append(Node("node-2"))
    cluster.lose(node)
    await site.jobs.CancelJob(name=job.name)
    await until(lambda: not cluster.jobs(), "the end of Jobs whose pods never end")
    assert len(cluster.pods()) == 3


@pytest.mark.thorough
async def test_a_learner_that_is_lost_for_long_is_started_again(site, cluster, monkeypatch):
    monkeypatch.setattr(reconciler, "FROZEN_S", 0.3)
    monkeypatch.setattr(pool, "FRESH_S", 0.3)
    await site.create()
    await until(lambda: cluster.pods("Running"), "the pod")
    await site.learner("projects/default/pods/fused-0").ask()
    first = uids(cluster)["fused-0"]
    keeper = site.server.orchestrator.lease_operations
    await keeper.lose_pod("projects/default/pods/fused-0", None, "it is frozen")
    await until(
        lambda: cluster.pods("Running") and uids(cluster).get("fused-0") not in (None, first),
        "another one",
    )


async def test_the_role_grants_exactly_what_the_pool_does(site, cluster):
    """Every call that it ever makes, under the Role of the deployment."""
    path = ROOT / "deploy" / "k8s" / "base" / "roles.yaml"
    documents = list(yaml.safe_load_all(path.read_text()))
    name = ("Role", "podracer-orchestrator")
    role = next(each for each in documents if (each["kind"], each["metadata"]["name"]) == name)
    cluster.api.role = role
    cluster.api.calls.clear()
    await site.stop()
    owner = cluster.store.get("configmaps", "podracer-pool")
    cluster.store.create(
        "jobs", NAMESPACE, JobMaker("other").make(plan("fused-0"), pod_template(), owner)
    )
    cluster.store.create(
        "resourcequotas", NAMESPACE, {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}}
    )
    await site.start()
    job = await site.create(pod=shape(3))
    await until_event(site, job, "POD_NAME_TAKEN")
    await until_event(site, job, "POD_QUOTA")
    await site.jobs.CancelJob(name=job.name)
    await until(lambda: ("delete", "jobs") in cluster.api.calls, "a deletion")
    granted = {
        (verb, resource)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert set(cluster.api.calls) == granted

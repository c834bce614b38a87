"""The Job of a pod: what is filled into the operator's template. Each is valid by the schema of its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from podracer_core.errors import InvalidInput
from podracer_orchestrator.pod_kind import PodKind
from podracer_orchestrator.pool.backend import PodPlan
from podracer_orchestrator.pool.kubernetes.access import in_cluster, read_kubeconfig
from podracer_orchestrator.pool.kubernetes.job import JobMaker
from podracer_orchestrator.pool.kubernetes.template import read_template
from podracer_orchestrator.settings_file import SettingsFile
from support.kubernetes_store import validate
from support.pod_template import RUN_DIR, pod_template, write_template

OWNER = {"metadata": {"name": "podracer-pool", "uid": "0f6c-1"}}
FUSED = PodPlan("projects/default/pods/fused-0", PodKind(), 2)
SPLIT = PodPlan("projects/default/pods/split2-3", PodKind(False, 2), 1)


def make(plan: PodPlan, queue: str = "", template: dict[str, Any] | None = None) -> dict[str, Any]:
    job = JobMaker("podracer", queue).make(plan, template or pod_template(tokens="/tokens", layout="x"), OWNER)
    validate(job)
    return job


def spec_of(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


def variables(container: dict[str, Any]) -> dict[str, Any]:
    names = [entry["name"] for entry in container["env"]]
    assert len(names) == len(set(names))
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def test_a_fused_pod_is_one_container() -> None:
    job = make(FUSED)
    assert job["metadata"]["name"] == "fused-0"
    assert job["metadata"]["ownerReferences"][0]["uid"] == "0f6c-1"
    labels = {"podracer.dev/pool": "podracer", "podracer.dev/pod": "fused-0", "podracer.dev/kind": "fused"}
    assert labels.items() <= job["metadata"]["labels"].items()
    metadata = job["spec"]["template"]["metadata"]
    assert labels.items() <= metadata["labels"].items()
    assert metadata["annotations"]["podracer.dev/pod-name"] == "projects/default/pods/fused-0"
    assert metadata["annotations"]["example.org/team"] == "research"
    spec = spec_of(job)
    assert "initContainers" not in spec
    (learner,) = spec["containers"]
    found = variables(learner)
    assert found["PODRACER_POD"] == "projects/default/pods/fused-0"
    assert (found["PODRACER_LAYOUT"], found["PODRACER_THREADS"]) == ("fused", "2")  # in place of the template's
    assert (found["PODRACER_WORKERS"], found["PODRACER_EVALUATORS"]) == ("", "")
    assert found["PODRACER_TOKENS"] == "/tokens"
    assert found["PODRACER_ADVERTISE"] == "[$(PODRACER_POD_IP)]:50051"
    order = list(found)
    assert order.index("PODRACER_POD_IP") < order.index("PODRACER_ADVERTISE")  # or the cluster would not fill it in


def test_its_job_ignores_disruptions_and_ends_with_wrong_settings() -> None:
    spec = make(FUSED)["spec"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert (spec["podReplacementPolicy"], spec["completions"], spec["parallelism"]) == ("Failed", 1, 1)
    assert [rule["action"] for rule in spec["podFailurePolicy"]["rules"]] == ["Ignore", "FailJob"]
    assert spec["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"] == [2]
    assert spec["ttlSecondsAfterFinished"] > 0
    assert "suspend" not in spec


def test_a_split_pod_has_its_workers_and_its_evaluator_beside_the_learner() -> None:
    spec = spec_of(make(SPLIT))
    assert [each["name"] for each in spec["initContainers"]] == ["worker-0", "worker-1", "evaluator"]
    assert {each["restartPolicy"] for each in spec["initContainers"]} == {"Always"}
    listening = [variables(each)["PODRACER_LISTEN"] for each in spec["initContainers"]]
    assert listening == [f"unix://{RUN_DIR}/{name}.sock" for name in ("worker-0", "worker-1", "evaluator")]
    learner = variables(spec["containers"][0])
    assert learner["PODRACER_LAYOUT"] == "split"
    assert learner["PODRACER_WORKERS"].split(",") == listening[:2]
    assert learner["PODRACER_EVALUATORS"] == listening[2]


def test_other_init_containers_of_the_template_stay_first() -> None:
    template = pod_template()
    template["spec"]["initContainers"].append({"name": "download", "image": "x"})
    assert spec_of(make(SPLIT, template=template))["initContainers"][0]["name"] == "download"
    assert [each["name"] for each in spec_of(make(FUSED, template=template))["initContainers"]] == ["download"]


def test_the_containers_share_what_the_jobs_ask_for_and_the_template_is_as_before() -> None:
    template = pod_template()
    template["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "1"
    plan = PodPlan("projects/default/pods/split1-0", PodKind(False, 1, 0, 4), 4, 4.0, 4 << 30)
    spec = spec_of(make(plan, template=template))
    everything = [*spec["containers"], *spec["initContainers"]]
    requested = [each["resources"]["requests"] for each in everything]
    assert [each["cpu"] for each in requested] == ["1800m", "1800m", "400m"]
    assert sum(int(each["memory"]) for each in requested) == 4 << 30
    assert requested[0]["memory"] == str(2 << 30)
    assert {each["resources"]["limits"]["memory"] for each in everything} == {str(4 << 30)}
    assert everything[0]["resources"]["limits"]["cpu"] == "4000m"
    assert "cpu" not in everything[1]["resources"]["limits"]
    assert template["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "500m", "memory": "512Mi"}
    as_before = spec_of(make(SPLIT, template=template))["containers"][0]["resources"]
    assert as_before == template["spec"]["containers"][0]["resources"]


def test_only_the_learner_asks_for_gpus() -> None:
    for kind in (PodKind(gpus=2), PodKind(False, 1, 2)):
        spec = spec_of(make(PodPlan(f"projects/default/pods/{kind.name}-0", kind, 1)))
        resources = spec["containers"][0]["resources"]
        assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == "2"
        assert not any("nvidia.com/gpu" in str(each) for each in spec.get("initContainers", []))


@pytest.mark.parametrize(("cpu", "threads"), [("500m", "1"), ("4", "4"), ("3500m", "3"), ("2.5", "2")])
def test_where_the_jobs_say_nothing_threads_follow_the_template(cpu: str, threads: str) -> None:
    template = pod_template()
    template["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu
    spec = spec_of(make(PodPlan("projects/default/pods/split1-0", PodKind(False, 1), 0), template=template))
    assert {variables(each)["PODRACER_THREADS"] for each in [*spec["containers"], *spec["initContainers"]]} == {threads}


def test_with_kueue_a_job_waits_for_its_turn() -> None:
    job = make(FUSED, "research")
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert job["spec"]["suspend"] is True


def _without(path: str, template: dict[str, Any]) -> None:
    """Take something out of a template: `spec.containers.0.env`."""
    *way, last = path.split(".")
    place: Any = template
    for word in way:
        place = place[int(word) if word.isdecimal() else word]
    del place[int(last) if last.isdecimal() else last]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("spec", "expected one object with metadata and spec"),
        ("spec.containers", "expected one that is named learner, found none"),
        ("spec.initContainers.1", "expected one that is named evaluator, found worker"),
        ("spec.initContainers.0.restartPolicy", "worker needs restartPolicy: Always"),
        ("spec.containers.0.env", "PODRACER_RUN_DIR is '', expected an absolute path"),
        ("spec.initContainers.1.volumeMounts", "evaluator mounts nothing at /run/podracer"),
    ],
)
def test_a_template_that_lacks_something_is_refused(tmp_path: Path, path: str, expected: str) -> None:
    template = pod_template(tokens="/tokens")
    _without(path, template)
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(template))
    with pytest.raises(InvalidInput, match=r"t\.yaml") as refusal:
        read_template(tmp_path / "t.yaml")
    assert expected in refusal.value.message


@pytest.mark.parametrize(
    "text", ["", "[1, 2]", "a: [", "spec: 3", "spec: {containers: 3}", "spec: {containers: [{name: learner, env: 3}]}"]
)
def test_a_file_that_is_no_template_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(InvalidInput, match="PODRACER_POD_TEMPLATE"):
        read_template(tmp_path / "t.yaml")


def test_a_template_may_be_the_api_object_and_is_read_again_when_it_changes(tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "PodTemplate", "template": pod_template(tokens="/a")}))
    template = SettingsFile(path, read_template)
    assert variables(template.read()["spec"]["containers"][0])["PODRACER_TOKENS"] == "/a"
    path.unlink()
    assert template.read()["spec"]["containers"]  # as it was
    write_template(path, tokens="/another")
    assert variables(template.read()["spec"]["containers"][0])["PODRACER_TOKENS"] == "/another"
    path.write_text("nonsense")
    assert variables(template.read()["spec"]["containers"][0])["PODRACER_TOKENS"] == "/another"
    assert f"{path} stays as it was: pod template {path}" in caplog.text


def test_outside_of_a_cluster_it_is_told_what_lacks(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="in no cluster"):
        in_cluster(tmp_path, {})
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(InvalidInput, match=r"lacks token, ca\.crt, namespace: this pod needs a service account"):
        in_cluster(tmp_path, inside)
    for name in ("token", "ca.crt", "namespace"):
        (tmp_path / name).write_text(name)
    with pytest.raises(InvalidInput, match="certificates of the authority cannot be used"):
        in_cluster(tmp_path, inside)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"current-context": None}, "no kubeconfig with a current-context"),
        ({"contexts": []}, "has no context 'c'"),
        ({"clusters": [{"name": "c", "cluster": {"server": "ftp://x"}}]}, "expected https://host:port"),
        (
            {"users": [{"name": "u", "user": {"exec": {}}}]},
            "the user has exec, expected a token or a client certificate",
        ),
        ({"users": [{"name": "u", "user": {"client-certificate": "none.pem"}}]}, "No such file"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_told(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config))
    assert read_kubeconfig(path).namespace == "default"
    path.write_text(yaml.safe_dump(config | change))
    with pytest.raises(InvalidInput, match="PODRACER_POOL=kubernetes") as refusal:
        read_kubeconfig(path)
    assert expected in refusal.value.message

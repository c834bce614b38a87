"""The Job of a pod: what is filled into the operator's template. Each is valid by the schema of its
kind."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
import yaml

from podracer_core.errors import InvalidInput, Unavailable
from podracer_orchestrator.jobs import PodKind
from podracer_orchestrator.pool import PodPlan
from podracer_orchestrator.pool.kubernetes import JobMaker, place, read_profiles, read_template
from podracer_platform.kubernetes import ClusterAccess, in_cluster, read_kubeconfig
from support.errors import raises
from support.kubernetes_store import validate
from support.pod_template import RUN_DIR, pod_template, template_object

OWNER = {"metadata": {"name": "podracer-pool", "uid": "0f6c-1"}}
FUSED = PodPlan("projects/default/pods/fused-0", PodKind(), 2)
SPLIT = PodPlan("projects/default/pods/split2-3", PodKind(False, 2), 1)


def make(plan: PodPlan, queue: str = "", template: dict[str, Any] | None = None) -> dict[str, Any]:
    job = JobMaker("podracer", queue).make(
        plan, template or pod_template(tokens="/tokens", layout="x"), OWNER
    )
    validate(job)
    return job


def spec_of(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


def variables(container: dict[str, Any]) -> dict[str, Any]:
    names = [entry["name"] for entry in container["env"]]
    assert len(names) == len(set(names))
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def test_a_fused_pod_is_one_container():
    job = make(FUSED)
    assert job["metadata"]["name"] == "fused-0"
    assert job["metadata"]["ownerReferences"][0]["uid"] == "0f6c-1"
    labels = {
        "podracer.dev/pool": "podracer",
        "podracer.dev/pod": "fused-0",
        "podracer.dev/kind": "fused",
    }
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
    # in place of the template's
    assert (found["PODRACER_LAYOUT"], found["PODRACER_THREADS"]) == ("fused", "2")
    assert (found["PODRACER_WORKERS"], found["PODRACER_EVALUATORS"]) == ("", "")
    assert found["PODRACER_TOKENS"] == "/tokens"
    assert found["PODRACER_ADVERTISE"] == "[$(PODRACER_POD_IP)]:50051"
    order = list(found)
    # or the cluster would not fill it in
    assert order.index("PODRACER_POD_IP") < order.index("PODRACER_ADVERTISE")


def test_its_job_ignores_disruptions_and_ends_with_wrong_settings():
    spec = make(FUSED)["spec"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert (spec["podReplacementPolicy"], spec["completions"], spec["parallelism"]) == (
        "Failed",
        1,
        1,
    )
    assert [rule["action"] for rule in spec["podFailurePolicy"]["rules"]] == ["Ignore", "FailJob"]
    assert spec["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"] == [2]
    assert spec["ttlSecondsAfterFinished"] > 0
    assert "suspend" not in spec


def test_a_split_pod_has_its_workers_and_its_evaluator_beside_the_learner():
    spec = spec_of(make(SPLIT))
    assert [each["name"] for each in spec["initContainers"]] == [
        "worker-0",
        "worker-1",
        "evaluator",
    ]
    assert {each["restartPolicy"] for each in spec["initContainers"]} == {"Always"}
    listening = [variables(each)["PODRACER_LISTEN"] for each in spec["initContainers"]]
    assert listening == [
        f"unix://{RUN_DIR}/{name}.sock" for name in ("worker-0", "worker-1", "evaluator")
    ]
    learner = variables(spec["containers"][0])
    assert learner["PODRACER_LAYOUT"] == "split"
    assert learner["PODRACER_WORKERS"].split(",") == listening[:2]
    assert learner["PODRACER_EVALUATORS"] == listening[2]


def test_other_init_containers_of_the_template_stay_first():
    template = pod_template()
    template["spec"]["initContainers"].append({"name": "download", "image": "x"})
    assert spec_of(make(SPLIT, template=template))["initContainers"][0]["name"] == "download"
    assert [each["name"] for each in spec_of(make(FUSED, template=template))["initContainers"]] == [
        "download"
    ]


def test_the_containers_share_what_the_jobs_ask_for_and_the_template_is_as_before():
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
    assert template["spec"]["containers"][0]["resources"]["requests"] == {
        "cpu": "500m",
        "memory": "512Mi",
    }
    as_before = spec_of(make(SPLIT, template=template))["containers"][0]["resources"]
    assert as_before == template["spec"]["containers"][0]["resources"]


def test_only_the_learner_asks_for_gpus():
    for kind in (PodKind(gpus=2), PodKind(False, 1, 2)):
        spec = spec_of(make(PodPlan(f"projects/default/pods/{kind.name}-0", kind, 1)))
        resources = spec["containers"][0]["resources"]
        assert (
            resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == "2"
        )
        assert not any("nvidia.com/gpu" in str(each) for each in spec.get("initContainers", []))


@pytest.mark.parametrize(
    ("cpu", "threads"), [("500m", "1"), ("4", "4"), ("3500m", "3"), ("2.5", "2")]
)
def test_where_the_jobs_say_nothing_threads_follow_the_template(cpu, threads):
    template = pod_template()
    template["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu
    spec = spec_of(
        make(PodPlan("projects/default/pods/split1-0", PodKind(False, 1), 0), template=template)
    )
    assert {
        variables(each)["PODRACER_THREADS"]
        for each in [*spec["containers"], *spec["initContainers"]]
    } == {threads}


def test_with_kueue_a_job_waits_for_its_turn():
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
        ("template.spec", "spec.containers: expected one that is named learner, found none"),
        ("template.spec.containers", "expected one that is named learner, found none"),
        ("template.spec.initContainers.1", "expected one that is named evaluator, found worker"),
        ("template.spec.initContainers.0.restartPolicy", "worker needs restartPolicy: Always"),
        ("template.spec.containers.0.env", "PODRACER_RUN_DIR is '', expected an absolute path"),
        (
            "template.spec.initContainers.1.volumeMounts",
            "evaluator mounts nothing at /run/podracer",
        ),
        (
            "metadata.annotations",
            "it is of the version unknown (podracer.dev/version), this orchestrator is ",
        ),
    ],
)
def test_a_template_that_lacks_something_is_refused(path, expected):
    template = template_object(tokens="/tokens")
    assert read_template("mine", template) == template["template"]
    _without(path, template)
    with raises(InvalidInput, "INVALID_POD_TEMPLATE", match="template mine") as refusal:
        read_template("mine", template)
    assert expected in refusal.value.message


def test_a_gpu_has_the_name_that_the_cluster_gives_it():
    plan = PodPlan("projects/default/pods/gpu-0", PodKind(gpus=1), 1)
    job = JobMaker("podracer", gpu="amd.com/gpu").make(plan, pod_template(), OWNER)
    assert spec_of(job)["containers"][0]["resources"]["limits"]["amd.com/gpu"] == "1"
    assert "nvidia" not in str(job)


def test_no_call_goes_out_without_the_token(tmp_path):
    """Two threads make the first calls; the token is read by one of them, which takes its time."""
    file = tmp_path / "token"
    os.mkfifo(file)
    access = ClusterAccess("https://10.0.0.1", "podracer", token_file=file)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(access.headers)
        with file.open("w") as writer:  # which is open once the other end is
            second = threads.submit(access.headers)
            assert not wait([second], 0.1).done
            writer.write("t\n")
        assert first.result(60) == second.result(60) == {"Authorization": "Bearer t"}


def test_an_empty_token_is_none(tmp_path):
    (tmp_path / "token").write_text("\n")
    access = ClusterAccess("https://10.0.0.1", "podracer", token_file=tmp_path / "token")
    with pytest.raises(Unavailable, match="is empty"):
        access.headers()
    (tmp_path / "token").write_text("t\n")
    assert access.headers() == {"Authorization": "Bearer t"}


def test_outside_of_a_cluster_it_is_told_what_lacks(tmp_path):
    with raises(InvalidInput, "NO_CLUSTER", match="cluster"):
        in_cluster(tmp_path, {})
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with raises(InvalidInput, "NO_CLUSTER", match=r"ca\.crt, namespace"):
        in_cluster(tmp_path, inside)
    for name in ("token", "ca.crt", "namespace"):
        (tmp_path / name).write_text(name)
    with raises(InvalidInput, "NO_CLUSTER", match="certificates"):
        in_cluster(tmp_path, inside)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"current-context": None}, "no kubeconfig with a current-context"),
        ({"contexts": []}, "has no context 'c'"),
        (
            {"clusters": [{"name": "c", "cluster": {"server": "ftp://x"}}]},
            "expected https://host:port",
        ),
        (
            {"users": [{"name": "u", "user": {"exec": {}}}]},
            "the user has exec, expected a token or a client certificate",
        ),
        ({"users": [{"name": "u", "user": {"client-certificate": "none.pem"}}]}, "No such file"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_told(tmp_path, change, expected):
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
    with pytest.raises(InvalidInput, match="no cluster") as refusal:
        read_kubeconfig(path)
    assert expected in refusal.value.message


def test_a_profile_says_where_a_pod_runs(tmp_path):
    toleration = {"key": "a100", "operator": "Exists"}
    profiles = {
        "a100": {
            "nodeSelector": {"accelerator": "a100"},
            "tolerations": [toleration],
            "priorityClassName": "research",
            "runtimeClassName": "gvisor",
            "gpuResource": "nvidia.com/mig-1g.10gb",
        },
        "any": {},
    }
    (tmp_path / "profiles.json").write_text(json.dumps(profiles))
    listed = read_profiles(tmp_path / "profiles.json").entries
    template = pod_template()
    template["spec"] |= {
        "nodeSelector": {"zone": "b"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
    }
    plan = PodPlan("projects/default/pods/gpu-0", PodKind(gpus=1, profile="a100"), 1)
    spec = spec_of(make(plan, template=place(template, listed, "a100")))
    assert spec["nodeSelector"] == {"zone": "b", "accelerator": "a100"}
    assert spec["tolerations"] == [{"key": "spot", "operator": "Exists"}, toleration]
    assert (spec["priorityClassName"], spec["runtimeClassName"]) == ("research", "gvisor")
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/mig-1g.10gb"] == "1"
    assert spec_of(make(FUSED, template=place(template, listed, "any"))) == spec_of(
        make(FUSED, template=template)
    )
    with raises(InvalidInput, "INVALID_POD_TEMPLATE", match="pod profile t4"):
        place(template, listed, "t4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"A100": {}}', "'A100' is no name: expected lower-case letters"),
        (
            '{"a100": {"affinity": {}}}',
            "a100: 'affinity' is unknown, expected nodeSelector, tolerations, priority",
        ),
        ('{"a100": {"tolerations": {}}}', "a100: tolerations is {}, expected a list"),
    ],
)
def test_what_is_wrong_with_profiles_is_said(tmp_path, text, message):
    path = tmp_path / "profiles.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message) as caught:
        read_profiles(path)
    assert str(path) in caught.value.message

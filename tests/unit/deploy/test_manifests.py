"""What holds for every object of every overlay: schemas, pod security, probes, resources,
versions."""

from __future__ import annotations

import copy
import importlib.metadata
import json
import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest

from podracer_platform.kubernetes import LABEL, REPLICAS
from support.manifests import (
    K8S,
    NAMESPACE,
    OVERLAYS,
    WITH_NAMESPACE,
    kustomize,
    of_kind,
    pod_specs,
    pod_template,
    quantity,
    rendered,
)
from support.processes import ROOT

OLDEST, NEWEST = "1.31", "1.37"
SPEC_OF_CUSTOM = {
    ("cert-manager.io/v1", "Issuer"): [{"selfSigned"}, {"ca"}],
    ("cert-manager.io/v1", "Certificate"): [
        {"secretName", "issuerRef", "privateKey", "commonName", "duration"}
    ],
    ("kueue.x-k8s.io/v1beta2", "ResourceFlavor"): [set()],
    ("kueue.x-k8s.io/v1beta2", "ClusterQueue"): [{"namespaceSelector", "resourceGroups"}],
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"): [{"clusterQueue"}],
}
"""Kinds that a cluster knows by an operator's own definition, and what each must have at the
least."""

CALLERS = ("podracer-orchestrator", "podracer-secrets")
"""Those that speak to the API server; with PostgreSQL the leaderboard does, too."""
CONTROL_SERVICES = ("podracer-orchestrator", "podracer-leaderboard")

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def _containers(overlay: str) -> Iterator[tuple[str, Any]]:
    """(owner/name, container) of each container of an overlay."""
    for pod in pod_specs(rendered(overlay)):
        for name, container in pod.containers.items():
            yield f"{pod.owner}/{name}", container


def test_the_overlays_are_those_of_the_documentation():
    assert OVERLAYS == ["dev", "gpu", "kueue", "production", "serving", "web"]


@pytest.mark.parametrize(
    ("version", "overlays"), [(OLDEST, ["dev"]), (NEWEST, OVERLAYS)], ids=["oldest", "newest"]
)
def test_every_object_is_valid(version, overlays):
    objects = [one for overlay in overlays for one in rendered(overlay)]
    objects += [one for folder in ("cluster", "cluster/kueue") for one in kustomize(K8S / folder)]
    different = {json.dumps(one, sort_keys=True): one for one in objects}
    for one in different.values():
        if (needed := SPEC_OF_CUSTOM.get((one["apiVersion"], one["kind"]))) is not None:
            assert any(keys <= set(one.get("spec", {})) for keys in needed), one
        else:
            kubernetes_validate.validate(one, version, strict=True)


@each_overlay
def test_every_object_is_there_once_and_in_the_namespace(overlay):
    objects = rendered(overlay)
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(names) == len(set(names))
    namespace = NAMESPACE if overlay in WITH_NAMESPACE else None
    for one in objects:
        assert one["metadata"].get("namespace") == (
            None if one["kind"] == "Namespace" else namespace
        ), one["metadata"]
    namespaces = of_kind(objects, "Namespace")
    assert list(namespaces) == ([NAMESPACE] if namespace else [])
    for one in namespaces.values():
        assert one["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@each_overlay
def test_pods_keep_to_the_restricted_standard(overlay):
    volumes = {"emptyDir", "secret", "configMap", "persistentVolumeClaim"}
    for pod in pod_specs(rendered(overlay)):
        context = pod.spec["securityContext"]
        assert context["runAsNonRoot"] is True, pod.owner
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, pod.owner
        assert {context[name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {10001}, (
            pod.owner
        )
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod.spec), pod.owner
        assert all(volumes & set(volume) for volume in pod.spec["volumes"]), pod.owner
        assert pod.spec["enableServiceLinks"] is False, pod.owner
        labels_itself = overlay == "production" and pod.owner == "podracer-leaderboard"
        assert pod.spec["automountServiceAccountToken"] is (
            pod.owner in CALLERS or labels_itself
        ), pod.owner
        assert {one["key"]: one["tolerationSeconds"] for one in pod.spec["tolerations"][:2]} == {
            "node.kubernetes.io/not-ready": 30,
            "node.kubernetes.io/unreachable": 30,
        }
    for name, container in _containers(overlay):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError", name
        assert all("hostPort" not in port for port in container.get("ports", ())), name


@each_overlay
def test_containers_say_what_they_need_and_may_have(overlay):
    for name, container in _containers(overlay):
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert set(requests) == set(limits) == {"cpu", "memory", "ephemeral-storage"}, name
        assert all(quantity(requests[what]) <= quantity(limits[what]) for what in requests), name


@each_overlay
def test_what_is_kept_in_a_pod_has_a_bound(overlay):
    for pod in pod_specs(rendered(overlay)):
        folders = [volume["emptyDir"] for volume in pod.spec["volumes"] if "emptyDir" in volume]
        assert all("sizeLimit" in folder for folder in folders), pod.owner
        on_disk = sum(quantity(folder["sizeLimit"]) for folder in folders if "medium" not in folder)
        limits = [
            one["resources"]["limits"]["ephemeral-storage"] for one in pod.containers.values()
        ]
        assert on_disk < max(map(quantity, limits)), pod.owner


@each_overlay
def test_who_listens_is_probed(overlay):
    for name, container in _containers(overlay):
        probes = {"startupProbe", "livenessProbe", "readinessProbe"} & set(container)
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        # it serves nothing, but has to be done
        assert len(probes) == (3 if ports else name.endswith("/user")), name
        if "grpc" in ports:
            assert ports == {"grpc": 50051, "health": 8081, "metrics": 9464}, name
            ready = {"service": "liveness"} if name.partition("/")[0] in CONTROL_SERVICES else {}
            assert container["readinessProbe"]["grpc"] == {"port": 8081, **ready}, name
            for probe in ("startupProbe", "livenessProbe"):
                assert container[probe]["grpc"] == {"port": 8081, "service": "liveness"}, name
        assert ("http" in ports) is name.endswith("/web")


@each_overlay
def test_images_are_those_of_this_version_in_our_registry(overlay):
    settings = dict(
        line.split("=", 1)
        for line in (ROOT / ".env").read_text().splitlines()
        if re.match(r"\w+=", line)
    )
    assert settings["PODRACER_TAG"] == importlib.metadata.version("podracer-core")
    ours = f"{settings['PODRACER_REGISTRY']}/podracer-"
    for name, container in _containers(overlay):
        role, tag = name.rpartition("/")[2], settings["PODRACER_TAG"]
        if overlay == "gpu" and role == "learner":
            tag += "-cuda"
        assert (
            container["image"]
            == f"{ours}{'orchestrator' if role in ('secrets', 'user', 'web') else role}:{tag}"
        )
    version = of_kind(rendered(overlay), "PodTemplate")["podracer-pod-template"]["metadata"][
        "annotations"
    ]
    assert version == {"podracer.dev/version": settings["PODRACER_TAG"]}


@each_overlay
def test_control_services_are_alone_or_one_of_two_is_active(overlay):
    objects = rendered(overlay)
    has_standbys = overlay == "production"
    assert of_kind(objects, "Deployment")["podracer-secrets"]["spec"]["strategy"] == {
        "type": "Recreate"
    }
    for name in CONTROL_SERVICES:
        spec = of_kind(objects, "StatefulSet")[name]["spec"]
        assert spec["replicas"] == (REPLICAS if has_standbys else 1)
        assert "updateStrategy" not in spec  # one after the other, each once it is Ready
        service = of_kind(objects, "Service")[name]["spec"]
        assert "publishNotReadyAddresses" not in service
        assert service["selector"].get(LABEL) == ("true" if has_standbys else None)
        assert LABEL not in spec["template"]["metadata"]["labels"]
    # of one Pod it would only keep nodes from being drained
    budgets = of_kind(objects, "PodDisruptionBudget")
    assert set(budgets) == (set(CONTROL_SERVICES) if has_standbys else set())
    for name, budget in budgets.items():
        assert budget["spec"]["maxUnavailable"] == 1
        labels = of_kind(objects, "StatefulSet")[name]["spec"]["template"]["metadata"]["labels"]
        assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_an_active_pod_may_label_itself_and_the_other_one_alone():
    objects = rendered("production")
    for name in CONTROL_SERVICES:
        *_, rule = of_kind(objects, "Role")[name]["rules"]
        assert rule["resourceNames"] == [f"{name}-{ordinal}" for ordinal in range(REPLICAS)]
        assert (rule["resources"], rule["verbs"]) == (["pods"], ["patch"])
        (subject,) = of_kind(objects, "RoleBinding")[name]["subjects"]
        assert subject["name"] == name
        (container,) = of_kind(objects, "StatefulSet")[name]["spec"]["template"]["spec"][
            "containers"
        ]
        source = {"fieldRef": {"fieldPath": "metadata.name"}}
        assert {"name": "PODRACER_INSTANCE", "valueFrom": source} in container["env"]


@each_overlay
def test_volumes_outlive_what_is_deleted(overlay):
    """A claim of a template is not applied, so `kubectl delete -k` leaves it."""
    objects = rendered(overlay)
    assert not of_kind(objects, "PersistentVolumeClaim")
    names = {
        "podracer-orchestrator": "database",
        "podracer-leaderboard": "database",
        "podracer-minio": "objects",
    }
    stateful = of_kind(objects, "StatefulSet")
    if overlay == "production":
        assert not any("volumeClaimTemplates" in one["spec"] for one in stateful.values())
        return
    assert set(stateful) == set(names)
    for name, one in stateful.items():
        (claim,) = one["spec"]["volumeClaimTemplates"]
        assert claim["metadata"]["name"] == names[name]
        assert set(one["spec"]["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
        assert one["spec"]["serviceName"] in of_kind(objects, "Service")


def test_policy_servers_take_over_from_one_another():
    objects = rendered("serving")
    deployment = of_kind(objects, "Deployment")["podracer-policy"]
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert "publishNotReadyAddresses" not in of_kind(objects, "Service")["podracer-policy"]["spec"]


def test_the_template_has_the_containers_that_the_pool_knows():
    (pod,) = [pod for pod in pod_specs(rendered("dev")) if pod.owner == "podracer-pod"]
    assert [one["name"] for one in pod.spec["containers"]] == ["learner"]
    assert [one["name"] for one in pod.spec["initContainers"]] == ["worker", "evaluator"]
    assert {one["restartPolicy"] for one in pod.spec["initContainers"]} == {"Always"}
    assert pod.spec["restartPolicy"] == "Never"


def test_who_has_to_go_when_the_cluster_is_full():
    """Where the classes of the cluster are used (components/priorities); no overlay needs them."""
    classes = of_kind(kustomize(K8S / "cluster"), "PriorityClass")
    assert classes["podracer-control"]["value"] > 0 > classes["podracer-pods"]["value"] > -10
    assert not any(
        "priorityClassName" in pod.spec
        for overlay in OVERLAYS
        for pod in pod_specs(rendered(overlay))
    )


def test_the_template_for_gpus_is_the_plain_one_but_for_an_image_and_tolerations():
    plain, gpu = (copy.deepcopy(pod_template(rendered(overlay))) for overlay in ("dev", "gpu"))
    added = [
        one["key"]
        for one in gpu["spec"].pop("tolerations")
        if one not in plain["spec"]["tolerations"]
    ]
    assert added == ["nvidia.com/gpu", "amd.com/gpu"]
    del plain["spec"]["tolerations"]
    (learner,) = gpu["spec"]["containers"]
    learner["image"] = learner["image"].removesuffix("-cuda")
    assert gpu == plain


def test_production_keeps_nothing_on_disk_and_is_spread():
    for pod in pod_specs(rendered("production")):
        assert (
            pod.owner in ("podracer-secrets", "podracer-pod")
            or pod.spec["topologySpreadConstraints"]
        )
        assert not any("persistentVolumeClaim" in volume for volume in pod.spec["volumes"])


def test_certificates_bear_the_names_of_roles():
    certificates = of_kind(rendered("production"), "Certificate")
    issuers = of_kind(rendered("production"), "Issuer")
    for role in ("orchestrator", "leaderboard", "learner", "policy", "client"):
        spec = certificates[f"podracer-{role}"]["spec"]
        assert spec["dnsNames"] == [f"{role}.podracer"]
        assert spec["secretName"] == f"podracer-tls-{role}"
        assert {"server auth", "client auth"} <= set(spec["usages"])
        assert issuers[spec["issuerRef"]["name"]]["spec"] == {
            "ca": {"secretName": "podracer-authority"}
        }
    authority = certificates["podracer-authority"]["spec"]
    assert authority["isCA"] is True
    assert authority["secretName"] == "podracer-authority"
    assert issuers[authority["issuerRef"]["name"]]["spec"] == {"selfSigned": {}}


def test_the_queue_covers_all_that_pods_ask_for():
    objects = (*rendered("kueue"), *kustomize(K8S / "cluster" / "kueue"))
    (group,) = of_kind(objects, "ClusterQueue")["podracer"]["spec"]["resourceGroups"]
    asked = {what for _, one in _containers("kueue") for what in one["resources"]["requests"]}
    assert asked | {"nvidia.com/gpu"} == set(group["coveredResources"])
    for flavor in group["flavors"]:
        assert flavor["name"] in of_kind(objects, "ResourceFlavor")
        assert [one["name"] for one in flavor["resources"]] == group["coveredResources"]
    queues = of_kind(objects, "LocalQueue")
    assert queues["podracer"]["spec"]["clusterQueue"] in of_kind(objects, "ClusterQueue")
    orchestrator = dict(_containers("kueue"))["podracer-orchestrator/orchestrator"]
    assert {"name": "PODRACER_KUEUE_QUEUE", "value": "podracer"} in orchestrator["env"]

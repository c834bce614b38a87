"""What holds for every object of every overlay: schemas, pod security, probes, resources, versions."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest

from support.manifests import NAMESPACE, OVERLAYS, of_kind, pod_specs, pod_template, quantity, rendered

OLDEST, NEWEST = "1.31", "1.37"
CLUSTER_WIDE = {"Namespace", "PriorityClass", "ClusterQueue", "ResourceFlavor"}
SPEC_OF_CUSTOM = {
    ("cert-manager.io/v1", "Issuer"): [{"selfSigned"}, {"ca"}],
    ("cert-manager.io/v1", "Certificate"): [{"secretName", "issuerRef", "privateKey", "commonName", "duration"}],
    ("kueue.x-k8s.io/v1beta2", "ResourceFlavor"): [set()],
    ("kueue.x-k8s.io/v1beta2", "ClusterQueue"): [{"namespaceSelector", "resourceGroups"}],
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"): [{"clusterQueue"}],
}
"""Kinds that a cluster knows by an operator's own definition, and what each must have at the least."""

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def _containers(overlay: str) -> Iterator[tuple[str, Any]]:
    """(owner/name, container) of each container of an overlay."""
    for pod in pod_specs(rendered(overlay)):
        for name, container in pod.containers.items():
            yield f"{pod.owner}/{name}", container


def _added(overlay: str, prefix: str = "") -> set[str]:
    """Names of what an overlay has besides the base and an object store."""
    return {f"{prefix}policy"} if overlay == "serving" else set()


def test_the_overlays_are_those_of_the_documentation() -> None:
    assert OVERLAYS == ["dev", "gpu", "kueue", "production", "serving"]


@pytest.mark.parametrize(("version", "overlays"), [(OLDEST, ["dev"]), (NEWEST, OVERLAYS)], ids=["oldest", "newest"])
def test_every_object_is_valid(version: str, overlays: list[str]) -> None:
    different = {json.dumps(one, sort_keys=True): one for overlay in overlays for one in rendered(overlay)}
    for one in different.values():
        if (needed := SPEC_OF_CUSTOM.get((one["apiVersion"], one["kind"]))) is not None:
            assert any(keys <= set(one.get("spec", {})) for keys in needed), one
        else:
            kubernetes_validate.validate(one, version, strict=True)
    for overlay in {"dev", "gpu"} & set(overlays):
        as_object = {"apiVersion": "v1", "kind": "PodTemplate", "template": pod_template(rendered(overlay))}
        kubernetes_validate.validate(as_object, version, strict=True)


@each_overlay
def test_every_object_is_there_once_and_in_the_namespace(overlay: str) -> None:
    objects = rendered(overlay)
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(names) == len(set(names))
    for one in objects:
        expected = None if one["kind"] in CLUSTER_WIDE else NAMESPACE
        assert one["metadata"].get("namespace") == expected, one["metadata"]
    labels = of_kind(objects, "Namespace")[NAMESPACE]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


@each_overlay
def test_pods_keep_to_the_restricted_standard(overlay: str) -> None:
    volumes = {"emptyDir", "secret", "configMap", "persistentVolumeClaim"}
    for pod in pod_specs(rendered(overlay)):
        context = pod.spec["securityContext"]
        assert context["runAsNonRoot"] is True, pod.owner
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, pod.owner
        assert {context[name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {10001}, pod.owner
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod.spec), pod.owner
        assert all(volumes & set(volume) for volume in pod.spec["volumes"]), pod.owner
        assert pod.spec["enableServiceLinks"] is False, pod.owner
        assert pod.spec["automountServiceAccountToken"] is (pod.owner == "podracer-orchestrator"), pod.owner
    for name, container in _containers(overlay):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError", name
        assert all("hostPort" not in port for port in container.get("ports", ())), name


@each_overlay
def test_containers_say_what_they_need_and_may_have(overlay: str) -> None:
    for name, container in _containers(overlay):
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert set(requests) == set(limits) == {"cpu", "memory", "ephemeral-storage"}, name
        assert all(quantity(requests[what]) <= quantity(limits[what]) for what in requests), name


@each_overlay
def test_what_is_kept_in_a_pod_has_a_bound(overlay: str) -> None:
    for pod in pod_specs(rendered(overlay)):
        folders = [volume["emptyDir"] for volume in pod.spec["volumes"] if "emptyDir" in volume]
        assert all("sizeLimit" in folder for folder in folders), pod.owner
        on_disk = sum(quantity(folder["sizeLimit"]) for folder in folders if "medium" not in folder)
        limits = [one["resources"]["limits"]["ephemeral-storage"] for one in pod.containers.values()]
        assert on_disk < max(map(quantity, limits)), pod.owner


@each_overlay
def test_who_listens_is_probed(overlay: str) -> None:
    for name, container in _containers(overlay):
        probes = {"startupProbe", "livenessProbe", "readinessProbe"} & set(container)
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        assert len(probes) == (3 if ports else 0), name
        if "grpc" in ports:
            assert ports == {"grpc": 50051, "health": 8081, "metrics": 9464}, name
            assert container["readinessProbe"]["grpc"] == {"port": 8081}, name
            for probe in ("startupProbe", "livenessProbe"):
                assert container[probe]["grpc"] == {"port": 8081, "service": "liveness"}, name


@each_overlay
def test_images_are_all_of_this_version(overlay: str) -> None:
    version = importlib.metadata.version("podracer-core")
    images = {one["image"] for _, one in _containers(overlay)}
    ours = {image.rpartition(":")[0]: image.rpartition(":")[2] for image in images if image.startswith("podracer/")}
    roles = {"orchestrator", "leaderboard", "learner", "worker", "evaluator"} | _added(overlay)
    assert set(ours) == {f"podracer/{role}" for role in roles}
    cuda = {"learner"} if overlay == "gpu" else set()
    for image, tag in ours.items():
        assert tag == (f"{version}-cuda" if image.removeprefix("podracer/") in cuda else version)
    for image in images:
        assert re.fullmatch(r"[a-z]+/[a-z]+:(?!latest)[\w.-]+", image), image


@each_overlay
def test_control_services_are_alone_and_never_two_at_a_time(overlay: str) -> None:
    objects = rendered(overlay)
    deployments = of_kind(objects, "Deployment")
    assert set(deployments) - _added(overlay, "podracer-") == {"podracer-orchestrator", "podracer-leaderboard"}
    for name in ("podracer-orchestrator", "podracer-leaderboard"):
        deployment = deployments[name]
        assert deployment["spec"]["replicas"] == 1
        assert deployment["spec"]["strategy"] == {"type": "Recreate"}
        assert of_kind(objects, "Service")[name]["spec"]["publishNotReadyAddresses"] is True
    assert not of_kind(objects, "PodDisruptionBudget")  # it would only keep nodes from being drained


def test_policy_servers_take_over_from_one_another() -> None:
    objects = rendered("serving")
    deployment = of_kind(objects, "Deployment")["podracer-policy"]
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert "publishNotReadyAddresses" not in of_kind(objects, "Service")["podracer-policy"]["spec"]


def test_the_template_has_the_containers_that_the_pool_knows() -> None:
    (pod,) = [pod for pod in pod_specs(rendered("dev")) if pod.owner == "podracer-pod"]
    assert [one["name"] for one in pod.spec["containers"]] == ["learner"]
    assert [one["name"] for one in pod.spec["initContainers"]] == ["worker", "evaluator"]
    assert {one["restartPolicy"] for one in pod.spec["initContainers"]} == {"Always"}
    assert pod.spec["restartPolicy"] == "Never"


@each_overlay
def test_who_has_to_go_when_the_cluster_is_full(overlay: str) -> None:
    objects = rendered(overlay)
    classes = of_kind(objects, "PriorityClass")
    assert classes["podracer-control"]["value"] > 0 > classes["podracer-pods"]["value"] > -10
    for pod in pod_specs(objects):
        if pod.labels["app.kubernetes.io/name"] == NAMESPACE:
            expected = "podracer-pods" if pod.owner == "podracer-pod" else "podracer-control"
            assert pod.spec["priorityClassName"] == expected


def test_the_template_for_gpus_is_the_plain_one_but_for_an_image_and_a_toleration() -> None:
    plain, gpu = pod_template(rendered("dev")), pod_template(rendered("gpu"))
    assert gpu["spec"].pop("tolerations") == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    for template in (plain, gpu):
        for container in (*template["spec"]["initContainers"], *template["spec"]["containers"]):
            container["image"] = container["image"].removesuffix("-cuda")
    assert gpu == plain


def test_production_keeps_nothing_on_disk_and_is_spread() -> None:
    objects = rendered("production")
    assert all(pod.spec["topologySpreadConstraints"] for pod in pod_specs(objects))
    assert not of_kind(objects, "PersistentVolumeClaim")
    assert not of_kind(objects, "StatefulSet")


def test_certificates_bear_the_names_of_roles() -> None:
    certificates = of_kind(rendered("production"), "Certificate")
    issuers = of_kind(rendered("production"), "Issuer")
    for role in ("orchestrator", "leaderboard", "learner", "policy", "client"):
        spec = certificates[f"podracer-{role}"]["spec"]
        assert spec["dnsNames"] == [f"{role}.podracer"]
        assert spec["secretName"] == f"podracer-tls-{role}"
        assert {"server auth", "client auth"} <= set(spec["usages"])
        assert issuers[spec["issuerRef"]["name"]]["spec"] == {"ca": {"secretName": "podracer-authority"}}
    authority = certificates["podracer-authority"]["spec"]
    assert authority["isCA"] is True
    assert authority["secretName"] == "podracer-authority"
    assert issuers[authority["issuerRef"]["name"]]["spec"] == {"selfSigned": {}}


def test_the_queue_covers_all_that_pods_ask_for() -> None:
    objects = rendered("kueue")
    (group,) = of_kind(objects, "ClusterQueue")[NAMESPACE]["spec"]["resourceGroups"]
    asked = {what for _, one in _containers("kueue") for what in one["resources"]["requests"]}
    assert asked | {"nvidia.com/gpu"} == set(group["coveredResources"])
    for flavor in group["flavors"]:
        assert flavor["name"] in of_kind(objects, "ResourceFlavor")
        assert [one["name"] for one in flavor["resources"]] == group["coveredResources"]
    queues = of_kind(objects, "LocalQueue")
    assert queues[NAMESPACE]["spec"]["clusterQueue"] in of_kind(objects, "ClusterQueue")
    orchestrator = dict(_containers("kueue"))["podracer-orchestrator/orchestrator"]
    assert {"name": "PODRACER_KUEUE_QUEUE", "value": NAMESPACE} in orchestrator["env"]

"""Components go together in any combination that an operator may want, and each does what its head
says."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from support.manifests import (
    COMPONENTS,
    K8S,
    Object,
    environment,
    kustomize,
    mounted,
    of_kind,
    pod_specs,
    rendered,
)

STORES = ["minio", "external-s3"]
"""Two that say the same thing differently."""
CHANGE_ALL = ["dual-stack", "image-pull-secret", "openshift", "priorities"]
"""They change what the others bring, so they come after them."""
SETTINGS = [
    {
        "name": "podracer-settings",
        "literals": ["storage-class=fast"],
        "options": {"annotations": {"config.kubernetes.io/local-config": "true"}},
    },
    {"name": "podracer-gpu", "literals": ["PODRACER_GPU_RESOURCE=amd.com/gpu"]},
]


def _render(folder: Path, **content: object) -> tuple[Object, ...]:
    """The objects of a user's own kustomization, in `folder`."""
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return kustomize(folder)


def _here(folder: Path, *parts: str) -> str:
    return os.path.relpath(K8S.joinpath(*parts), folder)


@pytest.fixture(scope="module", params=STORES)
def everything(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Object, ...]:
    """All components together, with one of the two stores."""
    folder = tmp_path_factory.mktemp("everything")
    names = [request.param, "storage-class"]  # before postgresql
    names += [name for name in COMPONENTS if name not in STORES + CHANGE_ALL + names] + CHANGE_ALL
    return _render(
        folder,
        resources=[_here(folder, "base")],
        components=[_here(folder, "components", name) for name in names],
        generatorOptions={"disableNameSuffixHash": True},
        configMapGenerator=SETTINGS,
    )


def test_all_components_go_together(everything):
    names = [(one["kind"], one["metadata"]["name"]) for one in everything]
    assert len(names) == len(set(names))
    for one in everything:
        if not one["apiVersion"].startswith(("cert-manager.io/", "cilium.io/", "kueue.x-k8s.io/")):
            kubernetes_validate.validate(one, "1.37", strict=True)
    services = of_kind(everything, "Service")
    assert {service["spec"]["ipFamilyPolicy"] for service in services.values()} == {
        "PreferDualStack"
    }
    for account in of_kind(everything, "ServiceAccount").values():
        assert account["imagePullSecrets"] == [{"name": "podracer-registry"}]
    for pod in pod_specs(everything):
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(pod.spec["securityContext"])
        assert (
            pod.spec["priorityClassName"]
            == f"podracer-{'pods' if pod.owner == 'podracer-pod' else 'control'}"
        )
        for name, container in pod.containers.items():
            variables = environment(container, everything)
            if name not in ("minio", "user", "secrets", "web"):
                assert (
                    variables["OTEL_EXPORTER_OTLP_ENDPOINT"]
                    == "http://otel-collector.observability:4317"
                )
            listening = [value for key, value in variables.items() if key.endswith("LISTEN")]
            assert {value for value in listening if not value.startswith("[::]:")} <= {
                "0.0.0.0:9464"
            }, name
    (web,) = [pod.containers["web"] for pod in pod_specs(everything) if pod.owner == "podracer-web"]
    assert web["command"][2] == "--listen=[::]:8080"


def test_settings_of_components(everything):
    assert "podracer-settings" not in json.dumps(everything)
    for stateful in of_kind(everything, "StatefulSet").values():
        for claim in stateful["spec"].get("volumeClaimTemplates", ()):
            assert claim["spec"]["storageClassName"] == "fast"
    (orchestrator,) = [pod for pod in pod_specs(everything) if pod.owner == "podracer-orchestrator"]
    variables = environment(orchestrator.containers["orchestrator"], everything)
    assert variables["PODRACER_GPU_RESOURCE"] == "amd.com/gpu"
    assert variables["PODRACER_KUEUE_QUEUE"] in of_kind(everything, "LocalQueue")
    policies = [
        of_kind(everything, kind)["podracer-to-api-server"]["spec"]
        for kind in ("NetworkPolicy", "CiliumNetworkPolicy")
    ]
    assert policies[0]["podSelector"] == policies[1]["endpointSelector"]


def test_an_identity_of_aws_is_the_orchestrators_alone(everything):
    for pod in pod_specs(everything):
        for name, container in pod.containers.items():
            volumes = mounted(container, pod)
            variables = environment(container, everything)
            has_token = any("projected" in volume for volume in volumes.values())
            assert has_token is (name == "orchestrator"), name
            if has_token:
                assert Path(variables["AWS_WEB_IDENTITY_TOKEN_FILE"]).parent.as_posix() in volumes
                assert not any(
                    key.startswith("PODRACER_S3_") and key.endswith("_KEY_FILE")
                    for key in variables
                )


def test_the_cluster_is_asked_for_nothing_by_an_installation(tmp_path):
    """Two of them, side by side: what both need is applied once."""
    shared = [*kustomize(K8S / "cluster"), *kustomize(K8S / "cluster" / "kueue")]
    policy = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    assert {one["kind"] for one in shared} == {
        "PriorityClass",
        "ClusterQueue",
        "ResourceFlavor",
    } | policy
    # tests/cluster evaluates it
    binding = of_kind(shared, "ValidatingAdmissionPolicyBinding")["podracer-jobs"]["spec"]
    assert binding["policyName"] in of_kind(shared, "ValidatingAdmissionPolicy")
    assert binding["paramRef"]["name"] in of_kind(rendered("dev"), "PodTemplate")
    assert binding["matchResources"]["namespaceSelector"]["matchLabels"] == {
        "podracer.dev/restrict-jobs": "true"
    }
    names = ("kueue", "cert-manager", "policy")
    objects = _render(
        tmp_path,
        namespace="team-rl",
        resources=[_here(tmp_path, "overlays", "dev")],
        components=[_here(tmp_path, "components", name) for name in names],
    )
    assert [
        one["metadata"]["name"] for one in objects if one["metadata"].get("namespace") != "team-rl"
    ] == ["team-rl"]
    assert set(re.findall(r'"namespace": "([^"]*)"', json.dumps(objects))) == {"team-rl"}
    for binding in of_kind(objects, "RoleBinding").values():
        assert [subject["namespace"] for subject in binding["subjects"]] == ["team-rl"]


@pytest.mark.parametrize("way", ["timeSlicing", "mps"])
def test_the_ways_to_share_a_gpu(way):
    name = {"timeSlicing": "time-slicing", "mps": "mps"}[way]
    document = yaml.safe_load((K8S / "components" / "gpu" / "sharing" / f"{name}.yaml").read_text())
    (resource,) = document["sharing"][way]["resources"]
    assert document["version"] == "v1"
    assert resource["name"] == "nvidia.com/gpu"
    assert resource["replicas"] > 1

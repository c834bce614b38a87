"""Whatever an overlay names is there: volumes, Secrets, ConfigMaps, Services, ports, settings."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import fields
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from podracer_evaluator.server import EvaluatorConfig
from podracer_leaderboard.server import LeaderboardConfig
from podracer_learner.config import LearnerConfig
from podracer_orchestrator.config import OrchestratorConfig
from podracer_platform.kubernetes import LABEL
from podracer_platform.rpc import FileToken, TokenFiles
from podracer_platform.service import PodSettings
from podracer_platform.settings import load_settings
from podracer_platform.storage import S3Settings
from podracer_policy.server import PolicyConfig
from podracer_worker.server import WorkerConfig
from support.kubernetes_store import Store
from support.manifests import (
    OVERLAYS,
    PodSpec,
    environment,
    mounted,
    of_kind,
    pod_specs,
    quantity,
    rendered,
)
from support.overlay_site import make_secrets

SETTINGS: Mapping[str, type[Any]] = {
    "orchestrator": OrchestratorConfig,
    "leaderboard": LeaderboardConfig,
    "learner": LearnerConfig,
    "worker": WorkerConfig,
    "evaluator": EvaluatorConfig,
    "policy": PolicyConfig,
}
OTHERS = {
    "orchestrator": {"PODRACER_ORCHESTRATOR", "PODRACER_TOKEN_FILE"},  # of the `podracer` command
    "learner": {"PODRACER_RUN_DIR"},  # of the orchestrator, which fills the template in
}
BY_OPERATORS = {"podracer-postgresql": {"orchestrator-url", "leaderboard-url", "ca.crt"}}
"""Secrets that people make by hand; the component that needs one says how."""

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What podracer-secrets makes, held to its Role, by name."""
    return make_secrets(rendered("dev"), Store(), tmp_path_factory.mktemp("k8s"))


def _containers(overlay: str) -> Iterator[tuple[PodSpec, Any]]:
    for pod in pod_specs(rendered(overlay)):
        for container in pod.containers.values():
            yield pod, container


@each_overlay
def test_every_volume_is_there_and_mounted(overlay):
    for pod in pod_specs(rendered(overlay)):
        there = {volume["name"] for volume in pod.spec["volumes"]} | set(pod.claims)
        used = {mount["name"] for one in pod.containers.values() for mount in one["volumeMounts"]}
        assert there == used, pod.owner


@each_overlay
def test_whatever_a_pod_needs_is_there(overlay, secrets):
    objects = rendered(overlay)
    made = {name: set(secret["data"]) for name, secret in secrets.items()} | BY_OPERATORS
    maps = of_kind(objects, "ConfigMap")
    for pod in pod_specs(objects):
        assert pod.spec["serviceAccountName"] in of_kind(objects, "ServiceAccount")
        for volume in pod.spec["volumes"]:
            if secret := volume.get("secret"):
                keys = {item["key"] for item in secret.get("items", ())}
                assert keys <= made[secret["secretName"]], secret
                assert secret["defaultMode"] == 0o440
            assert "persistentVolumeClaim" not in volume  # they are of templates
            if config := volume.get("configMap"):
                assert config["name"] in maps
    for _, container in _containers(overlay):
        for variable in container.get("env", ()):
            if source := variable.get("valueFrom", {}).get("secretKeyRef"):
                assert source["key"] in made[source["name"]]


def test_no_unneeded_secret_is_made(secrets):
    named = {
        volume["secret"]["secretName"]
        for overlay in OVERLAYS
        for pod in pod_specs(rendered(overlay))
        for volume in pod.spec["volumes"]
        if "secret" in volume
    }
    by_itself = {"podracer-tokens", "podracer-authority"}  # of which the others are made
    assert set(secrets) == named - set(BY_OPERATORS) | by_itself


def test_what_others_make_is_left_to_them():
    objects = rendered("production")
    (pod,) = [pod for pod in pod_specs(objects) if pod.owner == "podracer-secrets"]
    words = pod.containers["secrets"]["command"]
    assert words[:3] == ["podracer", "secrets", "--kubernetes"]
    patterns = [word.removeprefix("--without=") for word in words[3:]]
    names = of_kind(objects, "Role")["podracer-secrets"]["rules"][1]["resourceNames"]
    left = {name for name in names if any(fnmatch(name, pattern) for pattern in patterns)}
    certificates = {one["spec"]["secretName"] for one in of_kind(objects, "Certificate").values()}
    assert left == certificates - {"podracer-authority"} | {"podracer-s3", "podracer-minio"}


@each_overlay
def test_no_secret_is_committed(overlay):
    assert not of_kind(rendered(overlay), "Secret")
    text = json.dumps(rendered(overlay))
    assert "-----BEGIN" not in text
    assert not re.search(r"://[^/\s:@]+:[^/\s@]+@", text)  # a password in a URL


@each_overlay
def test_each_role_is_given_only_what_it_needs(overlay):
    given = {
        container["name"]: {
            volume["secret"]["secretName"]
            for volume in mounted(container, pod).values()
            if "secret" in volume
        }
        for pod, container in _containers(overlay)
    }
    some = {
        "minio": {"podracer-minio", "podracer-tls-store"},
        "user": {"podracer-minio", "podracer-s3", "podracer-tls-store"},
        "policy": {"podracer-tokens-policy", "podracer-tls-policy"},
        "web": {"podracer-web", "podracer-tokens-client", "podracer-tls-client"},
    }
    if overlay == "production":  # the authority of PostgreSQL's certificate
        for name in ("orchestrator", "leaderboard"):
            given[name].remove("podracer-postgresql")
    assert given == {
        "orchestrator": {
            "podracer-tokens-orchestrator",
            "podracer-tls-orchestrator",
            "podracer-s3",
        },
        "leaderboard": {"podracer-tokens-leaderboard", "podracer-tls-leaderboard"},
        "learner": {"podracer-tokens-learner", "podracer-tls-learner"},
        "worker": {"podracer-tokens-sidecar"},
        "evaluator": {"podracer-tokens-sidecar"},
        "secrets": set(),
    } | {name: secrets for name, secrets in some.items() if name in given}


def test_the_tokens_are_those_of_the_role(secrets, tmp_path):
    expected = {
        "orchestrator": {"client", "pod", "control"},
        "leaderboard": {"client", "control"},
        "learner": {"pod"},
        "sidecar": {"pod", "pod_keys"},
        "policy": {"client", "control"},
        "client": {"client"},
    }
    for role, names in expected.items():
        assert set(secrets[f"podracer-tokens-{role}"]["data"]) == names
    for role in ("orchestrator", "leaderboard", "learner", "policy", "client", "store"):
        assert set(secrets[f"podracer-tls-{role}"]["data"]) == {"ca.crt", "tls.crt", "tls.key"}
        assert secrets[f"podracer-tls-{role}"]["type"] == "kubernetes.io/tls"


@each_overlay
def test_every_variable_is_a_setting_that_the_service_accepts(overlay, tmp_path):
    objects = rendered(overlay)
    store = {f"PODRACER_S3_{field.name.upper()}" for field in fields(S3Settings)}
    for _, container in _containers(overlay):
        role = container["name"]
        if role not in SETTINGS:
            continue
        variables = environment(container, objects)
        known = {f"PODRACER_{field.name.upper()}" for field in fields(SETTINGS[role])} | OTHERS.get(
            role, set()
        )
        ours = {name for name in variables if name.startswith("PODRACER_")}
        assert all({name, name.removesuffix("_FILE")} & store for name in ours - known), role
        load_settings(SETTINGS[role], variables)
        if "PODRACER_STORE" in variables:
            assert variables["PODRACER_STORE"].startswith("s3://")
            keys = {name: tmp_path / name for name in ours if name.endswith("_KEY_FILE")}
            for path in keys.values():
                path.write_text("key")
            load_settings(
                S3Settings,
                variables | {name: str(path) for name, path in keys.items()},
                prefix="PODRACER_S3_",
            )


@each_overlay
def test_every_path_in_a_variable_is_mounted(overlay):
    for pod, container in _containers(overlay):
        places = mounted(container, pod)
        for name, value in environment(container, rendered(overlay)).items():
            path = Path(value.removeprefix("sqlite:///"))
            if value.startswith(("/", "sqlite:////")) and name != "HOME":
                assert any(path.is_relative_to(place) for place in places), (
                    container["name"],
                    name,
                )


@each_overlay
def test_every_address_in_a_variable_is_a_service_at_that_port(overlay):
    objects = rendered(overlay)
    services = of_kind(objects, "Service")
    for _, container in _containers(overlay):
        for name, value in environment(container, objects).items():
            address = urlsplit(value if "://" in value else f"//{value}")
            if address.port and (address.hostname or "").startswith("podracer-"):
                ports = [port["port"] for port in services[address.hostname]["spec"]["ports"]]
                assert address.port in ports, (container["name"], name)


@each_overlay
def test_services_lead_to_pods(overlay):
    objects = rendered(overlay)
    for service in of_kind(objects, "Service").values():
        wanted = {
            key: value for key, value in service["spec"]["selector"].items() if key != LABEL
        }.items()
        (pod,) = [pod for pod in pod_specs(objects) if wanted <= pod.labels.items()]
        names = {port["name"] for one in pod.containers.values() for port in one.get("ports", ())}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names


def test_what_pods_keep_on_disk_fits_into_its_volume():
    (pod,) = [pod for pod in pod_specs(rendered("dev")) if pod.owner == "podracer-pod"]
    sizes = {
        volume["name"]: volume["emptyDir"].get("sizeLimit")
        for volume in pod.spec["volumes"]
        if "emptyDir" in volume
    }
    assert 3 * PodSettings.cache_size < quantity(sizes["cache"])  # a folder for each container
    assert LearnerConfig.spool_size < quantity(sizes["spool"])


def test_the_learner_sees_the_sockets_and_the_shared_memory_of_all_containers():
    (pod,) = [pod for pod in pod_specs(rendered("dev")) if pod.owner == "podracer-pod"]
    for container in pod.containers.values():
        variables = environment(container, rendered("dev"))
        places = mounted(container, pod)
        assert places["/run/podracer/sockets"]["name"] == "sockets"
        assert places[variables["PODRACER_SHM_DIR"]]["name"] == "shared"
        # Beside its own folder each finds those of the others (SharedFolder).
        beside = str(Path(variables["PODRACER_SHM_DIR"]).parent)
        assert beside in places if container["name"] == "learner" else f"{beside}/learner" in places


@each_overlay
def test_each_caller_of_the_api_server_has_a_role_of_its_own(overlay, secrets):
    objects = rendered(overlay)
    assert not of_kind(objects, "ClusterRole")
    for name in ("podracer-orchestrator", "podracer-secrets"):
        binding = of_kind(objects, "RoleBinding")[name]
        assert (
            [subject["name"] for subject in binding["subjects"]]
            == [binding["roleRef"]["name"]]
            == [name]
        )
    roles = of_kind(objects, "Role")
    assert set(roles) == set(of_kind(objects, "RoleBinding"))
    for name, role in roles.items():
        assert not any("*" in values for rule in role["rules"] for values in rule.values())
        assert any("secrets" in rule["resources"] for rule in role["rules"]) is (
            name == "podracer-secrets"
        )
    create, own = roles["podracer-secrets"]["rules"]
    assert create["verbs"] == ["create"]
    assert set(own["resourceNames"]) == set(secrets)
    assert own["verbs"] == ["get", "patch"]


def test_a_sidecar_cannot_use_the_token_that_it_knows(secrets, tmp_path):
    for role in ("sidecar", "learner"):
        (tmp_path / role).mkdir()
        (tmp_path / role / "pod").write_bytes(
            b64decode(secrets[f"podracer-tokens-{role}"]["data"]["pod"])
        )
    token = FileToken(tmp_path / "learner" / "pod")()
    assert token not in (tmp_path / "sidecar" / "pod").read_text()
    assert TokenFiles(tmp_path / "sidecar").find(token) is not None

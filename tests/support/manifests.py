"""The manifests below deploy/k8s as kustomize renders them, and what is asked of them in more than
one test."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from support.processes import ROOT

K8S = ROOT / "deploy" / "k8s"
OVERLAYS = sorted(path.parent.name for path in K8S.glob("overlays/*/kustomization.yaml"))
COMPONENTS = sorted(path.parent.name for path in K8S.glob("components/*/kustomization.yaml"))
NAMESPACE = "podracer"
"""Of the overlays that contain one."""
WITH_NAMESPACE = ("dev", "serving", "web")

Object = Mapping[str, Any]


def kubectl(*arguments: object) -> str:
    """Its standard output. No cluster is asked anything."""
    beside = Path(sys.executable).with_name("kubectl")
    program = str(beside) if beside.exists() else shutil.which("kubectl")
    assert program, "kubectl is neither in the virtual environment nor on the PATH"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KUBE")}
    command = [program, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def rendered(overlay: str) -> tuple[Object, ...]:
    """The objects of an overlay, in the order in which they are applied."""
    return kustomize(K8S / "overlays" / overlay)


def kustomize(folder: Path) -> tuple[Object, ...]:
    """The objects of a kustomization."""
    return tuple(
        yaml.load_all(kubectl("kustomize", folder), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    )


def of_kind(objects: tuple[Object, ...], kind: str) -> dict[str, Any]:
    """The objects of a kind, by name."""
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


@dataclass(frozen=True)
class PodSpec:
    """A pod that an object makes: a Deployment, a StatefulSet, or the orchestrator, of its
    template."""

    owner: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]
    claims: tuple[str, ...] = ()

    @property
    def containers(self) -> dict[str, Any]:
        """All of them, sidecars too, by name."""
        return {
            one["name"]: one
            for one in (*self.spec.get("initContainers", ()), *self.spec["containers"])
        }


def pod_specs(objects: tuple[Object, ...]) -> Iterator[PodSpec]:
    """Every pod of an overlay."""
    for one in objects:
        if one["kind"] in ("Deployment", "StatefulSet"):
            template = one["spec"]["template"]
            claims = tuple(
                claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", ())
            )
            yield PodSpec(
                one["metadata"]["name"], template["metadata"]["labels"], template["spec"], claims
            )
    template = pod_template(objects)
    yield PodSpec("podracer-pod", template["metadata"]["labels"], template["spec"])


def pod_template(objects: tuple[Object, ...]) -> Object:
    """What the orchestrator makes pods of: {metadata, spec}."""
    template: Object = of_kind(objects, "PodTemplate")["podracer-pod-template"]["template"]
    return template


def environment(container: Mapping[str, Any], objects: tuple[Object, ...]) -> dict[str, str]:
    """The variables of a container, those of ConfigMaps included; what a Secret has is not
    known."""
    maps = of_kind(objects, "ConfigMap")
    variables: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        reference = source["configMapRef"]
        if reference["name"] in maps:
            variables |= maps[reference["name"]]["data"]
        else:
            assert reference.get("optional"), reference
    for variable in container.get("env", ()):
        variables[variable["name"]] = variable.get("value", "of-a-secret")
    return variables


def mounted(container: Mapping[str, Any], spec: PodSpec) -> dict[str, Mapping[str, Any]]:
    """The volumes of a container by where they are mounted."""
    volumes = {volume["name"]: volume for volume in spec.spec.get("volumes", ())}
    volumes |= {name: {"name": name, "claim": {}} for name in spec.claims}
    return {
        mount["mountPath"]: volumes[mount["name"]] for mount in container.get("volumeMounts", ())
    }


def quantity(text: str) -> float:
    """A quantity as Kubernetes writes it: cores, or bytes."""
    units = {"m": 1e-3, "": 1.0, "Mi": 2.0**20, "Gi": 2.0**30}
    match = re.fullmatch(r"(\d+)(m|Mi|Gi|)", text)
    assert match, text
    return int(match[1]) * units[match[2]]

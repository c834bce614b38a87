"""Components go together in any combination that an operator may want."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from support.manifests import COMPONENTS, K8S, Object, environment, kustomize, pod_specs

BESIDE = {"minio": {"external-s3"}, "external-s3": {"minio"}}
"""Two that say the same thing differently."""


def _render(folder: Path, **content: object) -> tuple[Object, ...]:
    """The objects of a kustomization of one's own, in `folder`."""
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return kustomize(folder)


def _here(folder: Path, *parts: str) -> str:
    return os.path.relpath(K8S.joinpath(*parts), folder)


@pytest.mark.parametrize("store", ["minio", "external-s3"])
def test_all_components_go_together(store: str, tmp_path: Path) -> None:
    names = [store, *(name for name in COMPONENTS if name not in {store} | BESIDE[store])]
    parts = [_here(tmp_path, "components", name) for name in names]
    objects = _render(tmp_path, resources=[_here(tmp_path, "base")], components=parts)
    names_of_objects = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(names_of_objects) == len(set(names_of_objects))
    for pod in pod_specs(objects):
        for container in pod.containers.values():
            if container["image"].startswith("podracer/"):
                variables = environment(container, objects)
                assert variables["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://otel-collector.observability:4317"


@pytest.mark.parametrize("way", ["timeSlicing", "mps"])
def test_the_ways_to_share_a_gpu(way: str) -> None:
    name = {"timeSlicing": "time-slicing", "mps": "mps"}[way]
    document = yaml.safe_load((K8S / "components" / "gpu" / "sharing" / f"{name}.yaml").read_text())
    (resource,) = document["sharing"][way]["resources"]
    assert document["version"] == "v1"
    assert resource["name"] == "nvidia.com/gpu"
    assert resource["replicas"] > 1

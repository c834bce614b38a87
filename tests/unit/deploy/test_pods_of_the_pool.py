"""The Jobs that the orchestrator makes of the template of each overlay: valid, restricted, with
settings that hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kubernetes_validate
import pytest

from podracer_evaluator.server import EvaluatorConfig
from podracer_learner.config import LearnerConfig
from podracer_orchestrator.pool import PodPlan
from podracer_orchestrator.pool.kubernetes import read_template
from podracer_platform.settings import load_settings
from podracer_worker.server import WorkerConfig
from support.manifests import OVERLAYS, environment, of_kind, pod_template, rendered
from support.render_manifests import FUSED, SPLIT, make_job

SETTINGS: Mapping[str, type[Any]] = {
    "learner": LearnerConfig,
    "worker": WorkerConfig,
    "evaluator": EvaluatorConfig,
}

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def make(overlay: str, plan: PodPlan) -> dict[str, Any]:
    """The template in a Job, which is valid by the schema of its kind, as the overlay's template is
    to the pool."""
    item = of_kind(rendered(overlay), "PodTemplate")["podracer-pod-template"]
    assert read_template("podracer-pod-template", item) == pod_template(rendered(overlay))
    job = make_job(overlay, plan)
    kubernetes_validate.validate(job, "1.37", strict=True)
    template: dict[str, Any] = job["spec"]["template"]
    return template


@each_overlay
def test_a_split_pod(overlay):
    spec = make(overlay, SPLIT)["spec"]
    sidecars = {one["name"]: one for one in spec["initContainers"]}
    assert list(sidecars) == ["worker-0", "worker-1", "evaluator"]
    for name, container in (sidecars | {"learner": spec["containers"][0]}).items():
        settings = load_settings(
            SETTINGS[name.split("-")[0]], environment(container, rendered(overlay))
        )
        if name != "learner":
            assert settings.listen == f"unix:///run/podracer/sockets/{name}.sock"
    writers: dict[tuple[str, str], set[str]] = {}
    for container in (*spec["initContainers"], *spec["containers"]):
        for mount in container["volumeMounts"]:
            if not mount.get("readOnly"):
                writers.setdefault((mount["name"], mount.get("subPath", "")), set()).add(
                    container["name"]
                )
    # Each container writes into folders of its own only.
    assert not {folder: each for folder, each in writers.items() if len(each) > 1}
    learner = load_settings(LearnerConfig, environment(spec["containers"][0], rendered(overlay)))
    assert learner.workers == tuple(
        f"unix:///run/podracer/sockets/worker-{n}/worker-{n}.sock" for n in range(2)
    )
    assert learner.evaluators == ("unix:///run/podracer/sockets/evaluator/evaluator.sock",)
    assert learner.listen == "0.0.0.0:50051"  # where others of its team reach it


@each_overlay
def test_a_fused_pod_with_a_gpu(overlay):
    spec = make(overlay, FUSED)["spec"]
    assert "initContainers" not in spec
    (learner,) = spec["containers"]
    assert learner["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert learner["image"].endswith("-cuda") is (overlay == "gpu")
    assert ("nvidia.com/gpu" in [one["key"] for one in spec["tolerations"]]) is (overlay == "gpu")
    assert spec["securityContext"]["runAsNonRoot"] is True


@each_overlay
def test_the_network_policies_know_the_pods_of_the_pool(overlay):
    made = make(overlay, SPLIT)["metadata"]["labels"]
    assert pod_template(rendered(overlay))["metadata"]["labels"].items() <= made.items()


@each_overlay
def test_nothing_keeps_a_node_autoscaler_from_emptying_a_node(overlay):
    made = make(overlay, FUSED)
    assert (
        made["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "true"
    )
    assert made["spec"]["terminationGracePeriodSeconds"] == 60
    for budget in of_kind(rendered(overlay), "PodDisruptionBudget").values():
        assert (
            not budget["spec"]["selector"]["matchLabels"].items()
            <= made["metadata"]["labels"].items()
        )

"""`python -m support.render_manifests FOLDER`: what a cluster gets of each overlay, with Jobs of
pods, for checkov."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from podracer_orchestrator.jobs import PodKind
from podracer_orchestrator.pool import PodPlan
from podracer_orchestrator.pool.kubernetes import JobMaker
from support.manifests import NAMESPACE, OVERLAYS, pod_template, rendered

OWNER = {"metadata": {"name": "podracer-pool", "uid": "0f6c-1"}}
FUSED = PodPlan("projects/default/pods/fused-0", PodKind(gpus=1), 2, cpu=4.0, memory_bytes=8 << 30)
SPLIT = PodPlan("projects/default/pods/split2-3", PodKind(False, 2), 0)


def make_job(overlay: str, plan: PodPlan) -> dict[str, Any]:
    """The Job that the orchestrator makes of an overlay's template."""
    job = JobMaker(NAMESPACE).make(plan, pod_template(rendered(overlay)), OWNER)
    return job | {"metadata": job["metadata"] | {"namespace": NAMESPACE}}


if __name__ == "__main__":
    for name in OVERLAYS:
        objects = [*rendered(name), make_job(name, FUSED), make_job(name, SPLIT)]
        for one in objects:  # as `kubectl apply --namespace` does
            one["metadata"].setdefault("namespace", NAMESPACE)
        Path(sys.argv[1], f"{name}.yaml").write_text(yaml.safe_dump_all(objects))

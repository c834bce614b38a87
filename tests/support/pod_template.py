"""A pod template as an operator gives it."""

from __future__ import annotations

from typing import Any

from podracer_platform.service.build import own_build
from support.kubernetes_api import NAMESPACE
from support.kubernetes_store import Store

RUN_DIR = "/run/podracer"


def pod_template(**variables: str) -> dict[str, Any]:
    """`variables`: PODRACER_ variables of all containers, without the prefix and in small
    letters."""
    common = [
        {"name": f"PODRACER_{name.upper()}", "value": value} for name, value in variables.items()
    ]
    mounts = [
        {"name": "sockets", "mountPath": RUN_DIR},
        {"name": "shared", "mountPath": "/dev/shm"},
    ]

    def container(name: str, **more: Any) -> dict[str, Any]:
        resources = {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}
        return {
            "name": name, "image": f"podracer/{name}:0.1.0", "env": list(common),
            "resources": resources, "volumeMounts": mounts, **more,
        }  # fmt: skip

    learner = container("learner", terminationMessagePolicy="FallbackToLogsOnError")
    learner["env"] += [
        {"name": "PODRACER_RUN_DIR", "value": RUN_DIR},
        {"name": "PODRACER_LISTEN", "value": "0.0.0.0:50051"},
    ]
    return {
        "metadata": {
            "labels": {"app.kubernetes.io/name": "podracer"},
            "annotations": {"example.org/team": "research"},
        },
        "spec": {
            "containers": [learner],
            "initContainers": [
                container(name, restartPolicy="Always") for name in ("worker", "evaluator")
            ],
            "volumes": [
                {"name": "sockets", "emptyDir": {"medium": "Memory"}},
                {"name": "shared", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            ],
        },
    }


def template_object(**variables: str) -> dict[str, Any]:
    """The same as what is applied to a cluster."""
    metadata = {
        "name": "podracer-pod-template",
        "annotations": {"podracer.dev/version": own_build().version},
    }
    return {"metadata": metadata, "template": pod_template(**variables)}


def apply(store: Store, /, **variables: str) -> None:
    """What the pool needs of the manifests: the template, and the owner of its Jobs."""
    store.create("podtemplates", NAMESPACE, template_object(**variables))
    store.create("configmaps", NAMESPACE, {"metadata": {"name": "podracer-pool"}})

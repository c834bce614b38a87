"""A pod template as an operator gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

RUN_DIR = "/run/podracer"


def pod_template(**variables: str) -> dict[str, Any]:
    """`variables`: PODRACER_ variables of all containers, without the prefix and in small letters."""
    common = [{"name": f"PODRACER_{name.upper()}", "value": value} for name, value in variables.items()]
    mounts = [{"name": "sockets", "mountPath": RUN_DIR}, {"name": "shared", "mountPath": "/dev/shm"}]

    def container(name: str, **more: Any) -> dict[str, Any]:
        resources = {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}
        return {
            "name": name, "image": f"podracer/{name}:0.1.0", "env": list(common), "resources": resources,
            "volumeMounts": mounts, **more,
        }  # fmt: skip

    learner = container("learner", terminationMessagePolicy="FallbackToLogsOnError")
    learner["env"] += [{"name": "PODRACER_RUN_DIR", "value": RUN_DIR}]
    return {
        "metadata": {"labels": {"app.kubernetes.io/name": "podracer"}, "annotations": {"example.org/team": "research"}},
        "spec": {
            "containers": [learner],
            "initContainers": [container(name, restartPolicy="Always") for name in ("worker", "evaluator")],
            "volumes": [
                {"name": "sockets", "emptyDir": {"medium": "Memory"}},
                {"name": "shared", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            ],
        },
    }


def write_template(path: Path, **variables: str) -> Path:
    path.write_text(yaml.safe_dump(pod_template(**variables)))
    return path

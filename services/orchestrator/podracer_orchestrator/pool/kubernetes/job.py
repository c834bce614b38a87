"""The objects for the cluster: one Job for each pod."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from podracer_orchestrator.pool.backend import PodPlan
from podracer_orchestrator.pool.kubernetes.template import (
    EVALUATOR,
    GPU_RESOURCE,
    LEARNER,
    RUN_DIR,
    WORKER,
    container,
    digest,
    value_of,
)
from podracer_platform.kubernetes import Item
from podracer_platform.rpc import last_part

POOL_LABEL, POD_LABEL, KIND_LABEL = "podracer.dev/pool", "podracer.dev/pod", "podracer.dev/kind"
POD_NAME, ASKED_MEMORY = "podracer.dev/pod-name", "podracer.dev/asked-memory-bytes"
"""Annotations: the pod's resource name; the requests of its jobs when it was created, 0 if they
have none."""
TEMPLATE_DIGEST = "podracer.dev/template-digest"
"""Annotation: the digest of the pod template it was created from."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
LEARNER_PORT = 50051
"""The port at which other learners of its agent reach a learner, at the address of its pod, as the
template sets it."""
BACKOFF_LIMIT = 10
"""Failures of a pod's learner before the cluster ends its Job; the pool creates another one
later."""
WRONG_SETTINGS = 2
"""Exit status of a process whose settings are wrong: a restart would not help."""
TTL_S = 600
"""The pool deletes a Job that has ended; without an orchestrator the cluster deletes it after this
time."""
_EVALUATOR_CPU = 0.1
_POD_IP = "PODRACER_POD_IP"
_CPU = re.compile(r"(\d+(?:\.\d+)?)(m?)")


def pool_selector(pool: str) -> str:
    """The labels of all Jobs and pods of a pool."""
    return f"{POOL_LABEL}={pool}"


@dataclass(frozen=True, slots=True)
class JobMaker:
    """The common part of all Jobs of a pool. `queue` of Kueue; "": none. `gpu` is a GPU's resource
    name."""

    pool: str
    queue: str = ""
    gpu: str = "nvidia.com/gpu"

    def make(self, plan: PodPlan, template: Mapping[str, Any], owner: Item) -> Item:
        """The Job of a pod by the template of its profile, owned by the ConfigMap `owner`."""
        name, kind = last_part(plan.name), plan.kind
        labels = {**_labels(self.pool), POD_LABEL: name, KIND_LABEL: kind.name}
        annotations = {
            POD_NAME: plan.name,
            ASKED_MEMORY: str(plan.memory_bytes),
            TEMPLATE_DIGEST: digest(template),
        }
        metadata = copy.deepcopy(dict(template["metadata"]))
        metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
        queue = {QUEUE_LABEL: self.queue} if self.queue else {}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": name,
                "labels": {**labels, **queue},
                "annotations": annotations,
                "ownerReferences": [
                    {
                        "apiVersion": "v1",
                        "kind": "ConfigMap",
                        "name": owner["metadata"]["name"],
                        "uid": owner["metadata"]["uid"],
                    }
                ],
            },
            "spec": {
                "completions": 1,
                "parallelism": 1,
                "backoffLimit": BACKOFF_LIMIT,
                "podReplacementPolicy": "Failed",
                "podFailurePolicy": {"rules": _FAILURE_RULES},
                "ttlSecondsAfterFinished": TTL_S,
                **({"suspend": True} if self.queue else {}),
                "template": {
                    "metadata": metadata,
                    "spec": _pod_spec(
                        plan, template["spec"], template.get(GPU_RESOURCE) or self.gpu
                    ),
                },
            },
        }


_FAILURE_RULES = [
    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    {
        "action": "FailJob",
        "onExitCodes": {"containerName": LEARNER, "operator": "In", "values": [WRONG_SETTINGS]},
    },
]


def _labels(pool: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "podracer",
        "app.kubernetes.io/part-of": "podracer",
        "app.kubernetes.io/component": "pod",
        "app.kubernetes.io/managed-by": "podracer-orchestrator",
        POOL_LABEL: pool,
    }


def _pod_spec(plan: PodPlan, template: Mapping[str, Any], gpu: str) -> dict[str, Any]:
    spec: dict[str, Any] = copy.deepcopy(dict(template))
    spec["restartPolicy"] = "Never"  # podFailurePolicy needs it; the Job starts another pod
    learner, evaluator = container(spec, LEARNER), container(spec, EVALUATOR)
    folder = value_of(learner, RUN_DIR).rstrip("/")
    threads = str(plan.threads or _threads_of(learner))

    def socket(of: Item, *, seen_by: Item) -> str:
        """A sidecar's address. It may have a folder of its own there, which the learner sees
        beneath that of all."""
        own = next(
            (each.get("subPath", "") for each in of["volumeMounts"] if each["mountPath"] == folder),
            "",
        )
        return f"unix://{folder}/{f'{own}/' if own and seen_by is learner else ''}{of['name']}.sock"

    others = [each for each in spec["initContainers"] if each["name"] not in (WORKER, EVALUATOR)]
    if plan.kind.is_fused:
        workers = []
    else:
        workers = [_worker(container(spec, WORKER), index) for index in range(plan.kind.workers)]
        for each in (*workers, evaluator):
            _set(each, {"PODRACER_LISTEN": socket(each, seen_by=each), "PODRACER_THREADS": threads})
        others += [*workers, evaluator]
    spec["initContainers"] = others
    if not others:
        del spec["initContainers"]
    _set(
        learner,
        {
            "PODRACER_POD": plan.name,
            "PODRACER_LAYOUT": "fused" if plan.kind.is_fused else "split",
            "PODRACER_THREADS": threads,
            "PODRACER_WORKERS": ",".join(socket(each, seen_by=learner) for each in workers),
            "PODRACER_EVALUATORS": "" if plan.kind.is_fused else socket(evaluator, seen_by=learner),
            "PODRACER_ADVERTISE": f"[$({_POD_IP})]:{LEARNER_PORT}",
        },
        [{"name": _POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
    )
    for each, cpu, memory in _shares(learner, workers, [] if plan.kind.is_fused else [evaluator]):
        _set_resources(each, plan, cpu, memory)
    if plan.kind.gpus:
        resources = learner.setdefault("resources", {})
        for part in ("requests", "limits"):
            resources[part] = {**(resources.get(part) or {}), gpu: str(plan.kind.gpus)}
    return spec


def _worker(template: Item, index: int) -> Item:
    """A copy of the template's worker with a name and, in volumes that have a folder `worker`, a
    folder of its own."""
    worker = copy.deepcopy(template) | {"name": f"{WORKER}-{index}"}
    for mount in worker.get("volumeMounts") or ():
        if mount.get("subPath") == WORKER:
            mount["subPath"] = worker["name"]
    return worker


def _shares(
    learner: Item, workers: list[Item], evaluators: list[Item]
) -> Iterator[tuple[Item, float, float]]:
    """(container, its part of the pod's cores, its part of the memory). Learner and workers take
    turns; the learner holds the replay memory."""
    if not workers:
        yield learner, 1.0, 1.0
        return
    cpu, memory = (1.0 - _EVALUATOR_CPU) / (len(workers) + 1), 0.5 / (len(workers) + 1)
    yield learner, cpu, 0.5
    yield from ((each, cpu, memory) for each in workers)
    yield from ((each, _EVALUATOR_CPU, memory) for each in evaluators)


def _set_resources(of: Item, plan: PodPlan, cpu: float, memory: float) -> None:
    """Set the jobs' requests instead of the template's. The requests of the containers add up to
    the pod's, so that the scheduler finds room for all; the limit of each is the whole pod, so that
    it can use what the others leave."""
    if not plan.cpu and not plan.memory_bytes:
        return
    resources = of.setdefault("resources", {})
    requests, limits = dict(resources.get("requests") or {}), dict(resources.get("limits") or {})
    if plan.cpu:
        requests["cpu"] = f"{max(1, round(1000 * plan.cpu * cpu))}m"
        if "cpu" in limits:
            limits["cpu"] = f"{max(1, math.ceil(1000 * plan.cpu))}m"
    if plan.memory_bytes:
        requests["memory"] = str(math.ceil(plan.memory_bytes * memory))
        limits["memory"] = str(plan.memory_bytes)
    of["resources"] = {**resources, "requests": requests, **({"limits": limits} if limits else {})}


def _threads_of(learner: Item) -> int:
    """The number of whole cores requested for the container, if its jobs do not set threads."""
    requested = ((learner.get("resources") or {}).get("requests") or {}).get("cpu", "1")
    match = _CPU.fullmatch(str(requested))
    cores = float(match[1]) / (1000.0 if match[2] else 1.0) if match else 1.0
    return max(1, int(cores))


def _set(of: Item, values: Mapping[str, str], entries: list[Item] | None = None) -> None:
    """Set environment variables, replacing those of the template; entries come first, as values may
    refer to them."""
    ours = [*(entries or []), *({"name": name, "value": value} for name, value in values.items())]
    names = {entry["name"] for entry in ours}
    of["env"] = [*(entry for entry in of.get("env") or () if entry.get("name") not in names), *ours]

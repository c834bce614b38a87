"""The status of Jobs and pods in the cluster. Pure functions over the API's objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from podracer_orchestrator.pool.kubernetes.job import KIND_LABEL, POD_LABEL, POD_NAME
from podracer_orchestrator.pool.kubernetes.template import LEARNER
from podracer_platform.kubernetes.api import Item


@dataclass(frozen=True, slots=True)
class ContainerState:
    """`waiting` and `ended` are reasons in the cluster's words, empty if it does neither; `said` is
    the end of its log before it ended, or the reason why it waits. `exit_code` is that of its last
    end."""

    name: str
    is_running: bool
    waiting: str
    waiting_message: str
    ended: str
    exit_code: int
    said: str
    restarts: int


def name_of(item: Item) -> str:
    return str(item["metadata"]["name"])


def uid_of(item: Item) -> str:
    return str(item["metadata"]["uid"])


def pod_id(item: Item) -> str:
    """The id of the pod of a Job or a Kubernetes pod: the last part of its resource name."""
    return str((item["metadata"].get("labels") or {}).get(POD_LABEL, ""))


def pod_name(job: Item) -> str:
    """The resource name of the pod; empty if the Job has none."""
    return str((job["metadata"].get("annotations") or {}).get(POD_NAME, ""))


def kind_name(job: Item) -> str:
    """The kind of the pod; empty if the Job has none."""
    return str((job["metadata"].get("labels") or {}).get(KIND_LABEL, ""))


def created(item: Item) -> str:
    """The time of creation; these texts sort by time."""
    return str(item["metadata"].get("creationTimestamp") or "")


def is_deleting(item: Item) -> bool:
    return bool(item["metadata"].get("deletionTimestamp"))


def is_owned(item: Item, by: Item) -> bool:
    """Whether this object owns it, and not an earlier one of the same name."""
    return any(
        owner.get("uid") == uid_of(by) for owner in item["metadata"].get("ownerReferences") or ()
    )


def is_suspended(job: Item) -> bool:
    return bool(job["spec"].get("suspend"))


def outcome(job: Item) -> str:
    """`Complete` or `Failed` of a Job that has ended, else empty."""
    return next((kind for kind in ("Complete", "Failed") if _is_true(condition(job, kind))), "")


def condition(item: Item, kind: str) -> Item:
    """A condition; {} if there is none of that type."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})


def newest(pods: Sequence[Item]) -> Item | None:
    """The current pod of a Job: earlier ones have failed."""
    return max(
        pods,
        key=lambda pod: (created(pod), phase(pod) not in ("Failed", "Succeeded"), name_of(pod)),
        default=None,
    )


def phase(pod: Item) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def is_placed(pod: Item) -> bool:
    """Whether the scheduler has found a node for it."""
    return bool((pod.get("spec") or {}).get("nodeName")) or _is_true(condition(pod, "PodScheduled"))


def is_running(pod: Item) -> bool:
    return phase(pod) == "Running" and not is_deleting(pod)


def is_disrupted(pod: Item) -> bool:
    """Whether the cluster ended it (a drained node, a preemption), without a fault of its
    programs."""
    return _is_true(condition(pod, "DisruptionTarget"))


def containers(pod: Item) -> Iterator[ContainerState]:
    """The states of all containers, init containers first."""
    status = pod.get("status") or {}
    for each in [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]:
        state, last = each.get("state") or {}, each.get("lastState") or {}
        waiting = state.get("waiting") or {}
        ended = state.get("terminated") or last.get("terminated") or {}
        yield ContainerState(
            name=str(each.get("name")),
            is_running="running" in state,
            waiting=str(waiting.get("reason") or ""),
            waiting_message=str(waiting.get("message") or ""),
            ended=str(ended.get("reason") or ("Error" if ended else "")),
            exit_code=int(ended.get("exitCode") or 0),
            said=str(ended.get("message") or "").strip(),
            restarts=int(each.get("restartCount") or 0),
        )


def learner_of(pod: Item) -> ContainerState | None:
    """The state of its learner; None before the kubelet has reported it."""
    return next((each for each in containers(pod) if each.name == LEARNER), None)


def _is_true(found: Item) -> bool:
    return found.get("status") == "True"

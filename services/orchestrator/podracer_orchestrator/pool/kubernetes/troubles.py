"""The reason why a pod cannot work, as text: from the objects themselves, otherwise from warnings
of controllers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from podracer_core.errors import (
    AlreadyExists,
    Exhausted,
    InvalidInput,
    PermissionRefused,
    PodracerError,
    PreconditionFailed,
)
from podracer_orchestrator.jobs import PodKind
from podracer_orchestrator.pool.backend import Trouble
from podracer_orchestrator.pool.kubernetes import status
from podracer_orchestrator.pool.kubernetes.job import QUEUE_LABEL
from podracer_orchestrator.pool.kubernetes.status import ContainerState
from podracer_orchestrator.pool.kubernetes.template import INVALID_TEMPLATE
from podracer_orchestrator.pool.local_pod import how_it_ended
from podracer_platform.kubernetes import Item

_IMAGE = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
)
_CONFIG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError")
_TAIL_LINES, _TAIL_CHARACTERS = 12, 1200
SLOW_S = 10.0
"""Time without a start after which the pool asks for a pod's events."""
AGAIN_S = 30.0
"""Time until it asks again."""
MOST = 4
"""Most pods whose events it asks for at a time: the others most likely wait for the same reason."""

InThread = Callable[[Callable[[], Sequence[str]]], Awaitable[Sequence[str]]]


def of_job(job: Item, pods: Sequence[Item]) -> Trouble | None:
    """The trouble of a pod according to the objects themselves; None if there is none, or none
    yet."""
    pod = status.newest(pods)
    if pod is None or status.phase(pod) in ("Failed", "Succeeded"):
        if status.is_suspended(job):
            return Trouble("", _waiting(job))
        ended = (
            status.learner_of(pod) if pod is not None and status.phase(pod) == "Failed" else None
        )
        if pod is None or status.is_disrupted(pod) or ended is None or not ended.ended:
            return None
        return Trouble("POD_CRASHES", describe_end(ended), _tail(ended.said))
    unplaced = status.condition(pod, "PodScheduled")
    if unplaced.get("status") == "False":
        if unplaced.get("reason") != "Unschedulable":
            return Trouble(
                "",
                "not scheduled yet: "
                f"{unplaced.get('message') or unplaced.get('reason') or 'no reason given'}",
            )
        return Trouble(
            "POD_UNSCHEDULABLE",
            f"no node has room for a pod{_asked(job)}: {unplaced.get('message') or ''}",
        )
    return next(filter(None, map(_of_container, status.containers(pod))), None)


def of_refusal(error: PodracerError) -> Trouble | None:
    """The reason why the API server did not create a Job; None if it only does not answer now."""
    if isinstance(error, Exhausted):
        return Trouble(
            "POD_QUOTA", f"the quota of the namespace has no room for another pod: {error.message}"
        )
    if isinstance(error, PermissionRefused):
        return Trouble("POD_FORBIDDEN", f"the orchestrator cannot make pods: {error.message}")
    if isinstance(error, AlreadyExists):
        return Trouble("POD_NAME_TAKEN", f"the name of the pod is taken: {error.message}")
    if error.reason == INVALID_TEMPLATE:
        return Trouble("POD_TEMPLATE", error.message)
    if isinstance(error, InvalidInput):
        return Trouble(
            "POD_REFUSED", f"the cluster refuses the pod, see the pod template: {error.message}"
        )
    if isinstance(error, PreconditionFailed):
        return Trouble("POD_OWNER", error.message)
    return None


def of_warning(message: str) -> Trouble:
    """The trouble in a controller's warning about a Job that gets no pod, or a pod that does not
    start."""
    if "exceeded quota" in message:
        return Trouble(
            "POD_QUOTA", f"the quota of the namespace has no room for another pod: {message}"
        )
    if "forbidden" in message:
        return Trouble("POD_REFUSED", f"the cluster refuses the pod: {message}")
    return Trouble("POD_STUCK", f"the pod does not start: {message}")


def describe_end(ended: ContainerState) -> str:
    """`the learner ended with exit code 1`, `the worker-0 was killed: it took more memory than its
    limit`."""
    if ended.ended == "OOMKilled":
        return (
            f"the {ended.name} was killed: it took more memory than its limit "
            "(pod.resources.memory)"
        )
    return (
        f"the {ended.name} "
        f"{how_it_ended(128 - ended.exit_code if ended.exit_code > 128 else ended.exit_code)}"
    )


def _of_container(each: ContainerState) -> Trouble | None:
    if each.waiting in _IMAGE:
        return Trouble(
            "POD_IMAGE",
            f"cannot pull the image of the {each.name} ({each.waiting}): {each.waiting_message}",
        )
    if each.waiting in _CONFIG:
        return Trouble(
            "POD_CONFIG", f"cannot start the {each.name} ({each.waiting}): {each.waiting_message}"
        )
    if each.waiting == "CrashLoopBackOff":
        return Trouble("POD_CRASHES", f"{describe_end(each)}, repeatedly", _tail(each.said))
    return None


def _tail(text: str) -> str:
    if not text:
        return ""
    lines = "\n".join(text.splitlines()[-_TAIL_LINES:])[-_TAIL_CHARACTERS:]
    return f"; its log ends:\n{lines}"


def _asked(job: Item) -> str:
    gpus = PodKind.parse(status.kind_name(job)).gpus
    return f" with {gpus} {'GPU' if gpus == 1 else 'GPUs'}" if gpus else ""


def _waiting(job: Item) -> str:
    queue = (job["metadata"].get("labels") or {}).get(QUEUE_LABEL)
    return f"waits for its turn in the queue {queue}" if queue else "its Job is suspended"


class ClusterWarnings:
    """Reads the events of objects that are slow to start: a Job without a pod, a pod whose volumes
    cannot be mounted."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}  # of a Job, by uid: when it was first seen not to run
        self._asked: dict[str, float] = {}
        self._found: dict[str, Trouble] = {}

    async def of(
        self,
        jobs: Mapping[str, Item],
        pods: Mapping[str, Sequence[Item]],
        in_thread: InThread,
        ask: Callable[[str], Sequence[str]],
        now: float,
    ) -> Mapping[str, Trouble]:
        """The troubles of those of `jobs` that should run and do not, by name."""
        slow = {
            status.uid_of(job): job
            for name, job in jobs.items()
            if _should_run(job, pods.get(name, ()))
        }
        self._since = {uid: self._since.get(uid, now) for uid in slow}
        self._asked = {uid: asked for uid, asked in self._asked.items() if uid in slow}
        self._found = {uid: trouble for uid, trouble in self._found.items() if uid in slow}
        due = [
            uid
            for uid in slow
            if now - self._since[uid] >= SLOW_S
            and now - self._asked.get(uid, now - AGAIN_S) >= AGAIN_S
        ]
        for uid in due[:MOST]:
            self._asked[uid] = now
            pod = status.newest(pods.get(status.name_of(slow[uid]), ()))
            try:
                messages = await in_thread(partial(ask, status.name_of(pod or slow[uid])))
            except PermissionRefused:
                continue  # it is only for better words
            if messages:
                self._found[uid] = of_warning(messages[-1])
            else:
                self._found.pop(uid, None)
        return {status.name_of(slow[uid]): trouble for uid, trouble in self._found.items()}


def _should_run(job: Item, pods: Sequence[Item]) -> bool:
    if status.is_suspended(job) or status.is_deleting(job) or status.outcome(job):
        return False
    pod = status.newest(pods)
    return pod is None or status.phase(pod) == "Pending"

"""The status of Jobs and pods in the cluster, and their troubles, in words; the memory of pods, and
deaths for lack of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from podracer_orchestrator.pool.backend import PodObserver, Trouble
from podracer_orchestrator.pool.kubernetes.job import KIND_LABEL, POD_LABEL, POD_NAME, QUEUE_LABEL
from podracer_orchestrator.pool.kubernetes.template import INVALID_TEMPLATE, LEARNER
from podracer_orchestrator.pool.local_pod import how_it_ended
from podracer_orchestrator.pool.scheduling import Growth
from podracer_platform.kubernetes import Item
from podracer_platform.rpc import Backoff


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
    pod = newest(pods)
    if pod is None or phase(pod) in ("Failed", "Succeeded"):
        if is_suspended(job):
            return Trouble("", _waiting(job))
        ended = learner_of(pod) if pod is not None and phase(pod) == "Failed" else None
        if pod is None or is_disrupted(pod) or ended is None or not ended.ended:
            return None
        return Trouble("POD_CRASHES", describe_end(ended), _tail(ended.said))
    unplaced = condition(pod, "PodScheduled")
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
    return next(filter(None, map(_of_container, containers(pod))), None)


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
    gpus = PodKind.parse(kind_name(job)).gpus
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
            uid_of(job): job for name, job in jobs.items() if _should_run(job, pods.get(name, ()))
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
            pod = newest(pods.get(name_of(slow[uid]), ()))
            try:
                messages = await in_thread(partial(ask, name_of(pod or slow[uid])))
            except PermissionRefused:
                continue  # it is only for better words
            if messages:
                self._found[uid] = of_warning(messages[-1])
            else:
                self._found.pop(uid, None)
        return {name_of(slow[uid]): trouble for uid, trouble in self._found.items()}


def _should_run(job: Item, pods: Sequence[Item]) -> bool:
    if is_suspended(job) or is_deleting(job) or outcome(job):
        return False
    pod = newest(pods)
    return pod is None or phase(pod) == "Pending"


MARGIN_S = 30.0
"""How long a pod may run beyond its grace period before its node counts as dead: only the kubelet
confirms that a pod has ended, so one on a node without power is Terminating until the node is back,
deleted or tainted as out of service."""
_NO_ROOM = ("", "POD_UNSCHEDULABLE", "POD_QUOTA", "POD_FORBIDDEN", "POD_REFUSED")
FIRST_S, LONGEST_S = 1.0, 60.0
STEADY_S = 120.0
"""After this running time the earlier failures of a pod no longer count."""


class Deaths:
    """Learners and sidecars that have ended, reported once each, and pods whose nodes do not report
    any more.

    Ends before the first look are not reported, except those of the newest pod of a Job: for the
    others another pod runs since."""

    def __init__(self, observer: PodObserver) -> None:
        self._observer = observer
        self._told: set[str] = set()  # pods of the cluster, by uid
        self._restarts: dict[tuple[str, str], int] = {}  # of sidecars: pod, container
        self._running_since: dict[str, float] = {}
        self._ending_since: dict[str, float] = {}
        self._has_looked = False

    def running_s(self, pod: Item, now: float) -> float:
        """How long a pod's learner has been running, as seen by this process."""
        return now - self._running_since.get(uid_of(pod), now)

    def is_stranded(self, pods: Sequence[Item], now: float) -> bool:
        """Whether one of the pods has run beyond its grace period, by this process's clock: clocks
        differ."""
        return any(
            now - since >= float(pod["metadata"].get("deletionGracePeriodSeconds") or 0) + MARGIN_S
            for pod in pods
            if (since := self._ending_since.get(uid_of(pod))) is not None
        )

    async def look(
        self, jobs: Mapping[str, Item], pods: Mapping[str, Sequence[Item]], now: float
    ) -> None:
        """Report what is new since the previous look."""
        present = {uid_of(pod) for each in pods.values() for pod in each}
        unconfirmed = [
            pod
            for each in pods.values()
            for pod in each
            if phase(pod) not in ("Failed", "Succeeded")
        ]
        ending = [uid_of(pod) for pod in unconfirmed if is_deleting(pod)]
        self._ending_since = {uid: self._ending_since.get(uid, now) for uid in ending}
        self._told &= present
        self._restarts = {key: count for key, count in self._restarts.items() if key[0] in present}
        self._running_since = {
            uid: since for uid, since in self._running_since.items() if uid in present
        }
        for name, job in jobs.items():
            pod = newest(pods.get(name, ()))
            if pod is None or not pod_name(job):
                continue
            learner = learner_of(pod)
            if learner is not None and learner.is_running:
                self._running_since.setdefault(uid_of(pod), now)
            await self._look_at_sidecars(pod_name(job), pod)
            if phase(pod) == "Failed" and uid_of(pod) not in self._told:
                self._told.add(uid_of(pod))
                await self._tell_end(pod_name(job), pod)
        self._has_looked = True

    async def _look_at_sidecars(self, name: str, pod: Item) -> None:
        for each in containers(pod):
            key = uid_of(pod), each.name
            before = self._restarts.get(key, 0 if self._has_looked else each.restarts)
            self._restarts[key] = each.restarts
            if each.restarts > before:
                await self._observer.process_died(name, each.name, describe_end(each), each.said)

    async def _tell_end(self, name: str, pod: Item) -> None:
        ended = learner_of(pod)
        if is_disrupted(pod):
            why = condition(pod, "DisruptionTarget").get("message") or "the cluster has ended it"
            await self._observer.pod_lost(name, f"its pod was taken away: {why}")
        elif ended is not None and ended.ended:
            await self._observer.process_died(name, LEARNER, describe_end(ended), ended.said)
        else:
            said = (
                (pod.get("status") or {}).get("message")
                or (pod.get("status") or {}).get("reason")
                or "no reason given"
            )
            await self._observer.pod_lost(name, f"its pod has failed: {said}")


def growth_of(
    jobs: Mapping[str, Item],
    pods: Mapping[str, Sequence[Item]],
    found: Mapping[str, Trouble],
    max_pending: int,
) -> Growth:
    """The placed pods, and the reason why others wait. `found`: the troubles of pods by id,
    including those without Jobs."""
    kinds = [
        kind_name(job)
        for name, job in jobs.items()
        if (pod := newest(pods.get(name, ()))) is not None and is_placed(pod)
    ]
    waiting = {
        name.rpartition("-")[0]: each.message
        for name, each in found.items()
        if each.kind in _NO_ROOM
    }
    return Growth(Counter(kinds), max_pending, waiting)


class Waits:
    """The waiting times before something is repeated, by name: longer each time; in seconds of the
    caller's clock."""

    def __init__(self) -> None:
        self._waits: dict[str, tuple[Backoff, float]] = {}

    def is_over(self, name: str, now: float) -> bool:
        return name not in self._waits or now >= self._waits[name][1]

    def prolong(self, name: str, now: float) -> None:
        """Wait longer: it has failed once more."""
        backoff, until = self._waits.get(name, (Backoff(FIRST_S, LONGEST_S, jitter=0.5), now))
        if now - until > STEADY_S:
            backoff.reset()
        self._waits[name] = backoff, now + next(backoff)

    def forget_others(self, names: Container[str]) -> None:
        self._waits = {name: each for name, each in self._waits.items() if name in names}

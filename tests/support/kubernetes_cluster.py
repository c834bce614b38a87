"""What makes a cluster of an API server: controllers, a scheduler and a kubelet, in one thread.

Pods are played by what a test says of each (`Play`), or by real processes (kubernetes_kubelet.py).
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from support.kubernetes_api import NAMESPACE, Api, delete
from support.kubernetes_store import ApiError, Item, Store, now

TICK_S = 0.03
_NUMBER = re.compile(r"([0-9.]+)([a-zA-Z]*)")
_UNITS = {
    "": 1.0,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
}


@dataclass(frozen=True)
class Play:
    """How a pod behaves: it runs until it is deleted, or its image is not there, or…; `log` is the
    end of its log."""

    kind: Literal["run", "image", "config", "crash", "sidecar", "done"] = "run"
    exit_code: int = 1
    log: str = ""


class Runner(Protocol):
    """Runs the containers of pods for real."""

    def start(self, pod: Item) -> None: ...

    def statuses(self, pod: Item) -> tuple[str, list[Item], list[Item]]:
        """(phase, initContainerStatuses, containerStatuses) now."""

    def stop(self, pod: Item) -> bool:
        """End it; whether everything is gone."""


@dataclass
class Node:
    name: str
    cpu: float = 64.0
    memory: float = 256 * 2.0**30
    gpus: int = 0
    is_dead: bool = False
    """Without power: its pods neither run nor end, whatever is asked of them."""


@dataclass
class Cluster:
    """The API and everything behind it. `stop` it at the end."""

    api: Api
    nodes: list[Node] = field(default_factory=lambda: [Node("node-0")])
    play: Callable[[Item], Play] = lambda pod: Play()
    runner: Runner | None = None
    backoff_s: float = 0.2  # before a pod that has failed gets its successor

    def __post_init__(self) -> None:
        self._stopping = threading.Event()
        self._addresses = 1
        self._failed_at: dict[str, float] = {}  # Job's uid
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.errors: list[Exception] = []
        self.store.admit = self._admit

    @property
    def store(self) -> Store:
        return self.api.store

    def start(self) -> Cluster:
        self.api.start()
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        if self.runner is not None:
            for pod in self.store.find("pods"):
                self.runner.stop(pod)
        self.api.stop()
        assert not self.errors, self.errors

    def jobs(self) -> dict[str, Item]:
        return {job["metadata"]["name"]: job for job in self.store.find("jobs")}

    def pods(self, phase: str = "") -> list[Item]:
        return [
            pod for pod in self.store.find("pods") if not phase or pod["status"]["phase"] == phase
        ]

    def lose(self, node: Node) -> None:
        """Without power for good: its taint evicts its pods, of which it confirms nothing."""
        node.is_dead = True
        for pod in self.store.find("pods", "", f"spec.nodeName={node.name}"):
            delete(self.store, "pods", pod["metadata"]["name"], {})

    def disrupt(self, pod: str) -> None:
        """As a drained node does: the pod fails by no fault of its own."""

        def change(item: Item) -> None:
            disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                         "message": "Eviction API: evicting"}  # fmt: skip
            item["status"] = {**item["status"], "phase": "Failed"}
            item["status"]["conditions"] = [*item["status"].get("conditions", []), disrupted]

        self.store.change("pods", pod, change)

    def _run(self) -> None:
        while not self._stopping.is_set():
            for step in (self._collect_garbage, self._control_jobs, self._schedule, self._run_pods):
                try:
                    step()
                except Exception as error:  # noqa: BLE001 - told by `stop`
                    self.errors.append(error)
            time.sleep(TICK_S)

    def _admit(self, resource: str, item: Item) -> None:
        """Raises ApiError (403) where a ResourceQuota has no room."""
        for quota in self.store.find("resourcequotas"):
            for what, hard in quota["spec"]["hard"].items():
                counted = {"count/jobs.batch": "jobs", "pods": "pods"}.get(what)
                used = len(self.store.find(counted or "pods"))
                if resource == counted and used >= int(hard):
                    name = (
                        f"{'jobs.batch' if resource == 'jobs' else resource} "
                        f'"{item["metadata"]["name"]}"'
                    )
                    raise ApiError(
                        403, "Forbidden",
                        f"{name} is forbidden: exceeded quota: {quota['metadata']['name']}, "
                        f"requested: {what}=1, used: {what}={used}, limited: {what}={hard}",
                    )  # fmt: skip

    def _collect_garbage(self) -> None:
        with self.store.changed:
            uids = self.store.uids()
            pods, jobs = self.store.find("pods"), self.store.find("jobs")
            for item in jobs:
                owners = item["metadata"].get("ownerReferences") or []
                if owners and not any(owner["uid"] in uids for owner in owners):
                    self.store.remove("jobs", item["metadata"]["name"])
            for pod in pods:
                owner = pod["metadata"]["ownerReferences"][0]
                job = next((job for job in jobs if job["metadata"]["uid"] == owner["uid"]), None)
                if owner["uid"] not in uids or (job and job["metadata"].get("deletionTimestamp")):
                    self._mark_deleted(pod)
            for job in jobs:
                if job["metadata"].get("deletionTimestamp") and not self._pods_of(job, pods):
                    self.store.remove("jobs", job["metadata"]["name"])

    @staticmethod
    def _pods_of(job: Item, pods: list[Item]) -> list[Item]:
        return [
            pod
            for pod in pods
            if pod["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
        ]

    def _mark_deleted(self, pod: Item) -> None:
        if not pod["metadata"].get("deletionTimestamp"):
            self.store.change(
                "pods",
                pod["metadata"]["name"],
                lambda each: each["metadata"].update(deletionTimestamp=now()),
            )

    def _control_jobs(self) -> None:
        with self.store.changed:
            pods = self.store.find("pods")
            for job in self.store.find("jobs"):
                if not job["metadata"].get("deletionTimestamp") and not job.get("status", {}).get(
                    "completionTime"
                ):
                    self._control(job, self._pods_of(job, pods))

    def _control(self, job: Item, pods: list[Item]) -> None:
        phases = [pod["status"]["phase"] for pod in pods]
        failed = [pod for pod in pods if pod["status"]["phase"] == "Failed"]
        active = [pod for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]
        conditions = job.get("status", {}).get("conditions", [])
        if any(each["type"] in ("Complete", "Failed") for each in conditions):
            return
        why = self._give_up(job, failed)
        status: Item = {
            "active": len(active),
            "failed": len(failed),
            "succeeded": phases.count("Succeeded"),
        }
        if "Succeeded" in phases:
            status["conditions"] = [{"type": "Complete", "status": "True"}]
        elif why:
            status["conditions"] = [
                {
                    "type": "Failed",
                    "status": "True",
                    "reason": why,
                    "message": f"Job has failed: {why}",
                }
            ]
        elif job["spec"].get("suspend"):
            status["conditions"] = [
                {"type": "Suspended", "status": "True", "reason": "JobSuspended"}
            ]
            for pod in active:
                self._mark_deleted(pod)
        elif not active and self._may_start(job, failed):
            self._start_pod(job)
            status["active"] = 1
        if status != job.get("status"):
            self.store.change(
                "jobs", job["metadata"]["name"], lambda each: each.update(status=status)
            )

    @staticmethod
    def _give_up(job: Item, failed: list[Item]) -> str:
        counted = 0
        for pod in failed:
            statuses = pod["status"].get("containerStatuses", [])
            codes = {
                each["name"]: each["state"].get("terminated", {}).get("exitCode")
                for each in statuses
            }
            types = {each["type"] for each in pod["status"].get("conditions", [])}
            for rule in job["spec"].get("podFailurePolicy", {}).get("rules", []):
                on_exit = rule.get("onExitCodes")
                if (
                    on_exit
                    and codes.get(on_exit["containerName"]) in on_exit["values"]
                    and rule["action"] == "FailJob"
                ):
                    return "PodFailurePolicy"
                if {each["type"] for each in rule.get("onPodConditions", [])} & types and rule[
                    "action"
                ] == "Ignore":
                    break
            else:
                counted += 1
        return "BackoffLimitExceeded" if counted > job["spec"]["backoffLimit"] else ""

    def _may_start(self, job: Item, failed: list[Item]) -> bool:
        uid = job["metadata"]["uid"]
        if len(failed) == job.get("status", {}).get("failed", 0):
            return time.monotonic() - self._failed_at.get(uid, 0.0) >= self.backoff_s
        self._failed_at[uid] = time.monotonic()
        return False

    def _start_pod(self, job: Item) -> None:
        name = job["metadata"]["name"]
        template = job["spec"]["template"]
        body = {
            "metadata": {
                **template["metadata"],
                "name": f"{name}-{uuid.uuid4().hex[:5]}",
                "ownerReferences": [
                    {
                        "apiVersion": "batch/v1",
                        "kind": "Job",
                        "name": name,
                        "uid": job["metadata"]["uid"],
                        "controller": True,
                    }
                ],
            },
            "spec": template["spec"],
            "status": {"phase": "Pending"},
        }
        try:
            self.store.create("pods", NAMESPACE, body)
        except ApiError as error:
            self._complain("Job", name, "FailedCreate", f"Error creating: {error}")

    def _complain(self, kind: str, name: str, reason: str, message: str) -> None:
        about = {"kind": kind, "name": name, "namespace": NAMESPACE}
        if any(
            event["message"] == message
            for event in self.store.find("events", "", f"involvedObject.name={name}")
        ):
            return
        event = {
            "metadata": {"name": f"{name}.{uuid.uuid4().hex[:8]}"}, "involvedObject": about,
            "type": "Warning", "reason": reason, "message": message, "lastTimestamp": now(),
        }  # fmt: skip
        self.store.create("events", NAMESPACE, event)

    def _schedule(self) -> None:
        with self.store.changed:
            everything = [
                pod
                for pod in self.store.find("pods")
                if pod["status"]["phase"] in ("Pending", "Running")
            ]
            placed = [pod for pod in everything if pod["spec"].get("nodeName")]
            for pod in everything:
                if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
                    continue
                node, why = self._find_node(pod, placed)
                placing: Item = {} if node is None else {"nodeName": node.name}
                condition = {"type": "PodScheduled", "status": "True"}
                if node is None:
                    condition = {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": why,
                    }

                def place(item: Item, placing: Item = placing, condition: Item = condition) -> None:
                    item["spec"] |= placing
                    item["status"]["conditions"] = [condition]

                found = self.store.change("pods", pod["metadata"]["name"], place)
                placed += [found] if node is not None else []

    def _find_node(self, pod: Item, placed: list[Item]) -> tuple[Node | None, str]:
        wanted = requests(pod)
        lacking: dict[str, int] = {}
        for node in self.nodes:
            if node.is_dead:
                continue
            used = [requests(each) for each in placed if each["spec"]["nodeName"] == node.name]
            has = {"cpu": node.cpu, "memory": node.memory, "nvidia.com/gpu": float(node.gpus)}
            short = [
                what
                for what, amount in wanted.items()
                if amount > has[what] - sum(each[what] for each in used) + 1e-9
            ]
            if not short:
                return node, ""
            for what in short:
                lacking[what] = lacking.get(what, 0) + 1
        words = ", ".join(f"{count} Insufficient {what}" for what, count in lacking.items())
        return None, f"0/{len(self.nodes)} nodes are available: {words}."

    def _run_pods(self) -> None:
        dead = {node.name for node in self.nodes if node.is_dead}
        for pod in self.store.find("pods"):
            name = pod["metadata"]["name"]
            if pod["spec"].get("nodeName") in dead:
                continue
            if pod["metadata"].get("deletionTimestamp"):
                if self.runner is None or self.runner.stop(pod):
                    self.store.remove("pods", name)
            elif pod["status"]["phase"] == "Running" and self.runner is None:
                continue  # as it was played
            elif pod["spec"].get("nodeName") and pod["status"]["phase"] in ("Pending", "Running"):
                self.store.change("pods", name, self._runs)

    def _runs(self, pod: Item) -> None:
        """Let time pass for a pod that has a place."""
        status = pod["status"]
        if "podIP" not in status:
            self._addresses += 1
            status["podIP"] = f"127.0.{self._addresses // 250 + 1}.{self._addresses % 250 + 2}"
        if self.runner is not None:
            self.runner.start(pod)
            status["phase"], status["initContainerStatuses"], status["containerStatuses"] = (
                self.runner.statuses(pod)
            )
        else:
            _play(pod, self.play(pod))


def requests(pod: Item) -> dict[str, float]:
    """What the containers of a pod ask for, sidecars included."""
    total = {"cpu": 0.0, "memory": 0.0, "nvidia.com/gpu": 0.0}
    for each in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
        for what, amount in each.get("resources", {}).get("requests", {}).items():
            if what in total:
                total[what] += quantity(amount)
    return total


def quantity(text: Any) -> float:
    match = _NUMBER.fullmatch(str(text))
    assert match, text
    return float(match[1]) * _UNITS[match[2]]


def container_status(name: str, state: Item, restarts: int = 0, last: Item | None = None) -> Item:
    return {
        "name": name, "image": "x", "imageID": "x", "ready": "running" in state,
        "restartCount": restarts, "state": state, "lastState": last or {},
    }  # fmt: skip


def ended(exit_code: int, log: str = "") -> Item:
    reason = "Completed" if exit_code == 0 else "Error"
    return {
        "terminated": {
            "exitCode": exit_code,
            "reason": reason,
            "message": log,
            "startedAt": now(),
            "finishedAt": now(),
        }
    }


_WAITING = {
    "image": {
        "reason": "ImagePullBackOff",
        "message": 'Back-off pulling image "podracer/learner:0.1.0"',
    },
    "config": {"reason": "CreateContainerConfigError", "message": 'secret "podracer-s3" not found'},
    "crashed": {
        "reason": "CrashLoopBackOff",
        "message": "back-off 10s restarting failed container",
    },
}


def _play(pod: Item, play: Play) -> None:
    status, running = pod["status"], {"running": {"startedAt": now()}}
    sidecars = [each["name"] for each in pod["spec"].get("initContainers", [])]
    status["phase"] = "Running"
    status["initContainerStatuses"] = [container_status(name, running) for name in sidecars]
    learner: Item = running
    if play.kind in ("image", "config"):
        status["phase"], learner = "Pending", {"waiting": _WAITING[play.kind]}
    elif play.kind in ("crash", "done"):
        code = 0 if play.kind == "done" else play.exit_code
        status["phase"], learner = "Failed" if code else "Succeeded", ended(code, play.log)
    elif play.kind == "sidecar":
        status["phase"], learner = "Pending", {"waiting": {"reason": "PodInitializing"}}
        crashed = container_status(
            sidecars[0], {"waiting": _WAITING["crashed"]}, 3, ended(play.exit_code, play.log)
        )
        status["initContainerStatuses"][0] = crashed
    status["containerStatuses"] = [container_status("learner", learner)]

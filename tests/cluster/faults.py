"""What may happen to an installation on a cluster while it trains. Each fault does its damage, and
mends it again."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from functools import partial

from chaos.faults import Fault
from cluster.installation import Installation
from cluster.kubectl import wait_until

AWAY_S = (2.0, 30.0)
"""How long something is away: longer than a lease's term is rare, longer than a retry's delay is
not."""
BACK_S = 300.0
PROCESSES = (
    ("pod", "learner", "podracer_learner"),
    ("pod", "worker-0", "podracer_worker"),
    ("pod", "evaluator", "podracer_evaluator"),
    ("orchestrator", "orchestrator", "podracer_orchestrator"),
    ("leaderboard", "leaderboard", "podracer_leaderboard"),
)
SERVICES = {"orchestrator": "orchestrator", "leaderboard": "leaderboard", "minio": "object-store"}
"""Names of StatefulSets without `podracer-`, and the component that their Pods are labelled
with."""


class ClusterFaults:
    """`power`: a program that takes power away (PODRACER_CLUSTER_FAULTS); `restart_database`: one
    that restarts the server of the databases, where they are in one. Without a program, "", its
    faults are left out."""

    def __init__(
        self, installation: Installation, power: str, restart_database: str, *, has_volumes: bool
    ) -> None:
        """`has_volumes`: the databases are on volumes, which do not leave their node."""
        self._kubectl, self._power, self._has_volumes = installation.kubectl, power, has_volumes
        self.all = [
            Fault(f"kill -9 {process[1]}", partial(self._kill, process)) for process in PROCESSES
        ]
        for component in ("pod", *SERVICES.values()):
            self.all.append(Fault(f"delete {component}", partial(self._delete, component, ())))
            force = ("--force", "--grace-period=0")
            self.all.append(
                Fault(f"delete {component} by force", partial(self._delete, component, force))
            )
        self.all += [Fault(f"no {service}", partial(self._scale, service)) for service in SERVICES]
        self.all += [
            Fault(f"restart {service}", partial(self._restart, service))
            for service in list(SERVICES)[:2]
        ]
        self.all.append(Fault("drain a node", self._drain))
        if power:
            self.all.append(Fault("a node without power", partial(self._lose, self._some_node)))
            self.all.append(Fault("no API server", partial(self._lose, lambda chance: "api")))
        if restart_database:
            self.all.append(Fault("restart the database", lambda chance: _run(restart_database)))

    def _kill(self, process: tuple[str, str, str], chance: random.Random) -> None:
        self._kubectl.kill_process(*process, limit_s=BACK_S)

    def _delete(self, component: str, words: tuple[str, ...], chance: random.Random) -> None:
        """Of a StatefulSet or a Job, which makes another one."""
        pods = wait_until(lambda: self._kubectl.pods(component), BACK_S, f"a pod of {component}")
        name = chance.choice(pods)["metadata"]["name"]
        self._kubectl("delete", "pod", name, "--wait=false", "--ignore-not-found", *words)

    def _scale(self, service: str, chance: random.Random) -> None:
        what = f"statefulset/podracer-{service}"
        count = self._kubectl.get(what)["spec"]["replicas"]
        self._kubectl("scale", what, "--replicas=0")
        _wait(chance)
        self._kubectl("scale", what, f"--replicas={count}")

    def _restart(self, service: str, chance: random.Random) -> None:
        self._kubectl("rollout", "restart", f"statefulset/podracer-{service}")

    def _drain(self, chance: random.Random) -> None:
        node = self._some_node(chance)
        words = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=180s")
        self._kubectl("drain", node, *words, timeout_s=200)
        _wait(chance)
        self._kubectl("uncordon", node)

    def _lose(self, choose: Callable[[random.Random], str], chance: random.Random) -> None:
        what = choose(chance)
        self._switch("lose", what)
        _wait(chance)
        self._switch("start", what)
        wait_until(
            lambda: self._kubectl.attempt("get", "nodes").returncode == 0,
            BACK_S,
            "the API server to answer",
        )

    def _switch(self, verb: str, what: str) -> None:
        _run(self._power, verb, what)

    def _some_node(self, chance: random.Random) -> str:
        """One without a volume: what is bound to a lost node's disk could only wait for it."""
        bound = {"object-store", *(SERVICES.values() if self._has_volumes else ())}
        homes = {
            pod["spec"]["nodeName"] for component in bound for pod in self._kubectl.pods(component)
        }
        nodes = [node for node in self._kubectl.get("nodes") if not node["spec"].get("taints")]
        return chance.choice(
            [name for node in nodes if (name := str(node["metadata"]["name"])) not in homes]
        )


def _wait(chance: random.Random) -> None:
    time.sleep(chance.uniform(*AWAY_S))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=180, stdout=subprocess.DEVNULL)

"""The Kubernetes pool and a real API server and scheduler, those that KUBECONFIG names; the nodes
are only played.

The nodes are of this test: nothing else tolerates them, and no container runs there, unless a kwok
plays them. The orchestrator runs here. PODRACER_GROWTH_PODS pods (500) are made where it says so,
with figures for docs/scale.md."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.kubectl import Kubectl

from podracer.orchestrator.v1 import job_pb2
from podracer_platform.kubernetes import ClusterApi
from support.pod_template import template_object

pytestmark = pytest.mark.cluster
NODE_S, SCAN_S = 18.0, 1.0
"""A tenth of what a node and a look of a node autoscaler take."""
PATIENCE_S = 600.0


class Nodes:
    """Nodes of a test, each with room for so many pods."""

    def __init__(self, name: str) -> None:
        self.kubectl, self.name, self._count = Kubectl(name), name, 0

    def add(self, count: int, room: int = 1) -> None:
        amounts = {
            "cpu": f"{500 * room}m",
            "memory": f"{room}Gi",
            "pods": str(room + 5),
            "ephemeral-storage": "100Gi",
        }
        first, self._count = self._count, self._count + count
        self.kubectl.apply(
            *(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {
                        "name": f"{self.name}-{number}",
                        "annotations": {"kwok.x-k8s.io/node": "fake"},
                        "labels": {"late": self.name},
                    },
                    "spec": {
                        "taints": [{"key": "late", "value": self.name, "effect": "NoSchedule"}]
                    },
                    "status": {
                        "allocatable": amounts,
                        "capacity": amounts,
                        "conditions": [{"type": "Ready", "status": "True", "reason": "Played"}],
                    },
                }
                for number in range(first, self._count)
            )
        )

    def remove(self) -> None:
        self.kubectl("delete", "namespace", self.name, "--wait=false")
        self.kubectl("delete", "nodes", "--selector", f"late={self.name}", "--wait=false")

    def unplaced(self) -> set[str]:
        """What a node autoscaler looks for, by uid."""
        return {
            pod["metadata"]["uid"]
            for pod in self.kubectl.get("pods")
            if any(
                each.get("reason") == "Unschedulable"
                for each in pod["status"].get("conditions", ())
            )
        }

    def placed(self) -> int:
        return sum("nodeName" in pod["spec"] for pod in self.kubectl.get("pods"))


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    found = Nodes(f"growth-{uuid.uuid4().hex[:6]}")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "podracer-pool"}}
    found.kubectl.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": found.name}},
        owner,
        {"apiVersion": "v1", "kind": "PodTemplate", **template_object()},
    )
    yield found
    found.remove()


@pytest.fixture
async def site(site: Any, nodes: Nodes, tmp_path: Path) -> Any:
    """The site with the pool of that namespace; jobs choose the played nodes by a profile."""
    toleration = {"key": "late", "value": nodes.name}
    profile = {"late": {"nodeSelector": {"late": nodes.name}, "tolerations": [toleration]}}
    (tmp_path / "profiles.json").write_text(json.dumps(profile))
    config = json.loads(
        nodes.kubectl("config", "view", "--raw", "--flatten", "--minify", "--output", "json")
    )
    config["contexts"][0]["context"]["namespace"] = nodes.name
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    await site.stop()
    site.settings = {
        "pool": "kubernetes",
        "kubeconfig": tmp_path / "kubeconfig",
        "pod_profiles": tmp_path / "profiles.json",
        "max_pods": 1000,
        "pool_max_pending": 500,
    }
    await site.start()
    yield site
    await site.stop()


async def test_sixty_four_nodes_come_in_one_wave(site, nodes):
    """A played node autoscaler orders a node for each pod that has no place, once; it comes NODE_S
    later."""
    await site.create(pod=job_pb2.PodShape(min_count=1, max_count=64, profile="late"))
    orders: list[tuple[float, int]] = []
    ordered: set[str] = set()
    begun, arrived = time.monotonic(), 0
    while await asyncio.to_thread(nodes.placed) < 64:
        now = time.monotonic() - begun
        assert now < PATIENCE_S
        new = await asyncio.to_thread(nodes.unplaced) - ordered
        if new:
            ordered |= new
            orders.append((now, len(new)))
        due = sum(count for at, count in orders if now - at >= NODE_S)
        if due > arrived:
            await asyncio.to_thread(nodes.add, due - arrived)
            arrived = due
        await asyncio.sleep(SCAN_S)
    print(
        f"\n64 nodes after {time.monotonic() - begun:.0f} s, each takes {NODE_S:.0f} s; ordered "
        f"(at s, nodes): {orders}"
    )
    assert orders[-1][0] < orders[0][0] + NODE_S  # the last one before the first one came
    assert len(ordered) == 64  # no pod was given up and made again


@pytest.mark.skipif(
    "PODRACER_GROWTH_PODS" not in os.environ, reason="PODRACER_GROWTH_PODS is not set"
)
async def test_what_many_pods_cost(site, nodes, monkeypatch):
    """Makes them, holds them for a minute, deletes them; tells rates, calls, memory and processor
    time."""
    count = int(os.environ["PODRACER_GROWTH_PODS"])
    await asyncio.to_thread(nodes.add, 20, -(-count // 20))
    print(f"\n{await costs(site, count, 'late', monkeypatch)}")


async def costs(site: Any, count: int, profile: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A line for each phase."""
    calls, seen, lock, send = Counter[str](), Counter[str](), threading.Lock(), ClusterApi._send

    def counted(api: Any, method: str, what: str, name: str, query: Any, *more: Any) -> Any:
        with lock:
            calls[f"{'WATCH' if 'watch' in query else method} {what}"] += 1
        return send(api, method, what, name, query, *more)

    monkeypatch.setattr(ClusterApi, "_send", counted)
    copy = site.server.orchestrator.pool_reconciler._backend._cluster
    for reflector in copy._reflectors:

        def noted(
            kind: str, item: Any, known: Any = reflector._apply, what: str = reflector._resource
        ) -> None:
            seen[what] += 1
            known(kind, item)

        reflector._apply = noted
    lines = [f"{count} pods, {_memory_mb():.0f} MB before"]

    async def phase(name: str, condition: Any) -> None:
        calls.clear()
        seen.clear()
        begun, cpu = time.monotonic(), time.process_time()
        while not condition():
            assert time.monotonic() < begun + PATIENCE_S, f"waited for {name}"
            await asyncio.sleep(0.2)
        wall_s, cpu_s = time.monotonic() - begun, time.process_time() - cpu
        figures = f"{wall_s:6.1f} s, {cpu_s:5.1f} s of a core, {_memory_mb():.0f} MB"
        lines.append(f"{name:8} {figures}, calls {dict(calls)}, events {dict(seen)}")

    def placed() -> int:
        return sum("nodeName" in pod["spec"] for each in copy.pods().values() for pod in each)

    job = await site.create(pod=job_pb2.PodShape(min_count=1, max_count=count, profile=profile))
    await phase("made", lambda: len(copy.jobs) >= count)
    await phase("placed", lambda: placed() >= count)
    held_until = time.monotonic() + 60.0
    await phase("held", lambda: time.monotonic() >= held_until)
    await site.jobs.CancelJob(name=job.name)
    await phase("deleted", lambda: not copy.jobs)
    return "\n".join(lines)


def _memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6

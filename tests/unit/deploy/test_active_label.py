"""The label of the active Pod, under the Roles of the manifests and an API server that is away for
a while."""

from __future__ import annotations

import asyncio

from podracer_core.errors import Unavailable
from podracer_platform import kubernetes
from podracer_platform.kubernetes import LABEL, keep_active_label, read_kubeconfig
from support.kubernetes_api import NAMESPACE, Api
from support.kubernetes_store import Store
from support.manifests import of_kind, rendered

NAME = "podracer-leaderboard"


def labelled(store: Store) -> list[str]:
    """Names of the Pods that the Service selects."""
    return [pod["metadata"]["name"] for pod in store.find("pods", labels=f"{LABEL}=true")]


async def test_the_service_follows_the_active_pod(tmp_path, monkeypatch):
    api = Api(Store(), role=of_kind(rendered("production"), "Role")[NAME])
    api.start()
    config = api.kubeconfig(tmp_path / "kubeconfig")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "played")
    monkeypatch.setattr(kubernetes, "in_cluster", lambda: read_kubeconfig(config))
    monkeypatch.setattr(kubernetes, "RETRY_S", 0.02)
    container = {"name": "leaderboard", "image": "any"}
    for ordinal in range(2):
        body = {"metadata": {"name": f"{NAME}-{ordinal}"}, "spec": {"containers": [container]}}
        api.store.create("pods", NAMESPACE, body)

    active = f"{NAME}-0"
    most = 0

    async def check(pod: str) -> None:
        nonlocal most
        most = max(most, len(labelled(api.store)))
        if pod != active:
            raise Unavailable("another process has taken over")

    async def until_it_is(pod: str) -> None:
        async with asyncio.timeout(60):
            while labelled(api.store) != [pod]:
                await asyncio.sleep(0.02)

    first = asyncio.create_task(keep_active_label(f"{NAME}-0", lambda: check(f"{NAME}-0")))
    await until_it_is(f"{NAME}-0")
    api.stop()
    active = f"{NAME}-1"
    second = asyncio.create_task(keep_active_label(f"{NAME}-1", lambda: check(f"{NAME}-1")))
    await asyncio.sleep(0.1)
    api.start()
    await until_it_is(f"{NAME}-1")
    api.store.remove("pods", f"{NAME}-0")  # its node is gone: that is no trouble
    second.cancel()
    second = asyncio.create_task(keep_active_label(f"{NAME}-1", lambda: check(f"{NAME}-1")))
    await until_it_is(f"{NAME}-1")
    for task in (first, second):
        task.cancel()
    api.stop()
    assert most == 1
    assert set(api.calls) == {("patch", "pods")}

"""The label by which a Service finds the active one of the two Pods of a StatefulSet."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress

from podracer_core.errors import NotFound, PodracerError
from podracer_platform.kubernetes.access import in_cluster
from podracer_platform.kubernetes.api import ClusterApi

logger = logging.getLogger(__name__)

LABEL = "podracer.dev/active"
REPLICAS = 2
EVERY_S, RETRY_S = 15.0, 2.0


async def keep_active_label(pod: str, check_active: Callable[[], Awaitable[None]]) -> None:
    """Runs forever: keep the label on the Pod `pod` of this process, and off the other Pods of its
    StatefulSet.

    `check_active` raises if another process has taken over; it is called each time. Outside a
    cluster this does nothing."""
    api: ClusterApi | None = None
    while pod and "KUBERNETES_SERVICE_HOST" in os.environ:
        try:
            api = api or ClusterApi(in_cluster())
            await check_active()
            await asyncio.to_thread(move_label, api, pod)
            await asyncio.sleep(EVERY_S)
        except PodracerError as error:
            logger.warning("cannot point the Service at this pod, retrying: %s", error.message)
            await asyncio.sleep(RETRY_S)


def move_label(api: ClusterApi, pod: str) -> None:
    """Remove the label from the other Pods, then add it to `pod`: never do two Pods have it."""
    name = pod.rpartition("-")[0]
    for other in {f"{name}-{ordinal}" for ordinal in range(REPLICAS)} - {pod}:
        with suppress(NotFound):
            api.patch("pods", other, {"metadata": {"labels": {LABEL: None}}})
    api.patch("pods", pod, {"metadata": {"labels": {LABEL: "true"}}})

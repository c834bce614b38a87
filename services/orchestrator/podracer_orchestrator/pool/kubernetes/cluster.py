"""A copy of the pool's Jobs, pods and pod template in the cluster, kept up to date by reflectors; used from the event
loop alone."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from podracer_core.errors import PodracerError
from podracer_core.kubernetes.api import ClusterApi, Item, Resource, Selector
from podracer_orchestrator.pool.kubernetes import status
from podracer_orchestrator.pool.kubernetes.reflector import Reflector

__all__ = ["ClusterCopy"]

logger = logging.getLogger(__name__)


class ClusterCopy:
    """`changed` is called on the event loop after each change."""

    def __init__(self, api: ClusterApi, labels: str, template: str, changed: Callable[[], None]) -> None:
        """`labels` select the Jobs and their pods; `template` is the name of the PodTemplate."""
        self._api, self._template, self._changed = api, template, changed
        self._selectors: Mapping[Resource, Selector] = {
            "jobs": {"labelSelector": labels},
            "pods": {"labelSelector": labels},
            "podtemplates": {"fieldSelector": f"metadata.name={template}"},
        }
        self._items: dict[str, dict[str, Item]] = {}  # by resource and name; a resource once it was listed
        self._problems: dict[str, PodracerError] = {}
        self._reflectors: list[Reflector] = []

    @property
    def is_complete(self) -> bool:
        """Whether everything was listed once."""
        return len(self._items) == len(self._selectors)

    @property
    def problem(self) -> PodracerError | None:
        """Why it is not of now; None where it is."""
        return next(iter(self._problems.values()), None)

    @property
    def jobs(self) -> Mapping[str, Item]:
        """By name, which is the id of our pod."""
        return self._items.get("jobs", {})

    @property
    def template(self) -> Item | None:
        """The PodTemplate; None where there is none."""
        return self._items.get("podtemplates", {}).get(self._template)

    def pods(self) -> Mapping[str, Sequence[Item]]:
        """The pods of each Job, by its name; without those that a former Job of that name has left on a dead node."""
        found: dict[str, list[Item]] = defaultdict(list)
        for pod in self._items.get("pods", {}).values():
            job = self.jobs.get(status.pod_id(pod))
            if job is not None and status.is_owned(pod, job):
                found[status.pod_id(pod)].append(pod)
        return found

    def start(self) -> None:
        loop = asyncio.get_running_loop()

        def soon(function: Callable[..., None], *arguments: object) -> None:
            try:
                loop.call_soon_threadsafe(function, *arguments)
            except RuntimeError:
                return  # the loop has ended, and so does this process

        for resource, selector in self._selectors.items():
            reflector = Reflector(
                self._api,
                resource,
                selector,
                replace=partial(soon, self._replace, resource),
                apply=partial(soon, self._apply, resource),
                fail=partial(soon, self._fail, resource),
            )
            self._reflectors.append(reflector)
            reflector.start()

    def stop(self) -> None:
        for reflector in self._reflectors:
            reflector.stop()

    def _replace(self, resource: str, items: Sequence[Item]) -> None:
        self._items[resource] = {status.name_of(item): item for item in items}
        self._changed()

    def _apply(self, resource: str, kind: str, item: Item) -> None:
        known = self._items.setdefault(resource, {})
        name = status.name_of(item)
        if kind != "DELETED":
            known[name] = item
        elif name in known and status.uid_of(known[name]) == status.uid_of(item):
            del known[name]
        self._changed()

    def _fail(self, resource: str, problem: PodracerError | None) -> None:
        former = self._problems.pop(resource, None)
        if problem is not None:
            self._problems[resource] = problem
            if former is None or former.message != problem.message:
                logger.warning("the cluster's %s cannot be followed, it is tried again: %s", resource, problem.message)
            self._changed()
        elif former is not None:
            logger.info("the cluster's %s can be followed again", resource)
            self._changed()

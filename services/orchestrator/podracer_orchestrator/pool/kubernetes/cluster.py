"""A copy of the pool's Jobs, pods and pod template in the cluster: threads list and watch, the
event loop uses it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from podracer_core.errors import PodracerError, PreconditionFailed
from podracer_orchestrator.pool.kubernetes import status
from podracer_platform.kubernetes.api import EXPIRED, ClusterApi, Item, Resource, Selector, Watch
from podracer_platform.rpc.backoff import Backoff

logger = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0


class Reflector:
    """Calls back, from its own thread:

    replace(items)      all objects; at first, and whenever events were missed
    apply(kind, item)   ADDED, MODIFIED or DELETED
    fail(error)         the server does not answer, or refuses the call; it is tried again. None: it
                        answers (again)
    """

    def __init__(
        self,
        api: ClusterApi,
        resource: Resource,
        selector: Selector,
        *,
        replace: Callable[[Sequence[Item]], None],
        apply: Callable[[str, Item], None],
        fail: Callable[[PodracerError | None], None],
    ) -> None:
        self._api, self._resource, self._selector = api, resource, selector
        self._replace, self._apply, self._fail = replace, apply, fail
        self._stopping = threading.Event()
        self._watch: Watch | None = None
        self._version = ""  # that the copy has reached; "": everything has to be listed
        self._thread = threading.Thread(target=self._run, name=f"reflector-{resource}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the watch; the thread ends soon after."""
        self._stopping.set()
        watch = self._watch
        if watch is not None:
            watch.close()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        waits = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S)
        while not self._stopping.is_set():
            try:
                if not self._version:
                    items, self._version = self._api.list(self._resource, self._selector)
                    self._replace(items)
                self._fail(None)
                self._follow()
                waits.reset()
            except PodracerError as error:
                if self._stopping.is_set():
                    return
                if isinstance(error, PreconditionFailed) and error.reason == EXPIRED:
                    logger.info("listing %s again: %s", self._resource, error.message)
                    self._version = ""
                else:
                    self._fail(error)
                self._stopping.wait(next(waits))
            except Exception:
                logger.exception(
                    "unexpected error while watching %s; listing them again", self._resource
                )
                self._version = ""
                self._stopping.wait(next(waits))

    def _follow(self) -> None:
        """Watch until the server ends it."""
        self._watch = watch = self._api.watch(self._resource, self._selector, self._version)
        try:
            for kind, item in watch:
                if self._stopping.is_set():
                    return
                if kind != "BOOKMARK":
                    self._apply(kind, item)
                self._version = item["metadata"]["resourceVersion"]
        finally:
            self._watch = None
            watch.close()


class ClusterCopy:
    """The copy. `changed` is called on the event loop after each change."""

    def __init__(
        self, api: ClusterApi, labels: str, template: str, changed: Callable[[], None]
    ) -> None:
        """`labels` select the Jobs and their pods; `template` is the name of the PodTemplate."""
        self._api, self._template, self._changed = api, template, changed
        self._selectors: Mapping[Resource, Selector] = {
            "jobs": {"labelSelector": labels},
            "pods": {"labelSelector": labels},
            "podtemplates": {"fieldSelector": f"metadata.name={template}"},
        }
        # by resource and name; a resource once it was listed
        self._items: dict[str, dict[str, Item]] = {}
        self._problems: dict[str, PodracerError] = {}
        self._reflectors: list[Reflector] = []

    @property
    def is_complete(self) -> bool:
        """Whether everything was listed once."""
        return len(self._items) == len(self._selectors)

    @property
    def problem(self) -> PodracerError | None:
        """The reason why the copy is out of date; None if it is not."""
        return next(iter(self._problems.values()), None)

    @property
    def jobs(self) -> Mapping[str, Item]:
        """The Jobs by name, which is the id of the pod."""
        return self._items.get("jobs", {})

    @property
    def template(self) -> Item | None:
        """The PodTemplate; None if there is none."""
        return self._items.get("podtemplates", {}).get(self._template)

    def pods(self) -> Mapping[str, Sequence[Item]]:
        """The pods of each Job, by its name; without those that an earlier Job of that name left on
        a dead node."""
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
                logger.warning(
                    "cannot watch the cluster's %s, retrying: %s", resource, problem.message
                )
            self._changed()
        elif former is not None:
            logger.info("watching the cluster's %s again", resource)
            self._changed()

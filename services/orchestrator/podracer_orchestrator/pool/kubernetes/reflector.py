"""List, then watch: a copy of the cluster's objects, kept up to date by a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from podracer_core.errors import PodracerError, PreconditionFailed
from podracer_core.kubernetes.api import EXPIRED, ClusterApi, Item, Resource, Selector, Watch
from podracer_core.rpc.backoff import Backoff

__all__ = ["Reflector"]

logger = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0


class Reflector:
    """Calls back, from its own thread:

    replace(items)      all that there are; at first, and whenever events were missed
    apply(kind, item)   ADDED, MODIFIED or DELETED
    fail(error)         the server does not answer, or refuses us; it is tried again. None: it answers (again)
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
                    logger.info("%s are listed again: %s", self._resource, error.message)
                    self._version = ""
                else:
                    self._fail(error)
                self._stopping.wait(next(waits))
            except Exception:
                logger.exception("a mistake of ours, or of the cluster; %s are listed again", self._resource)
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

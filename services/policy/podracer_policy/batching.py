"""Requests that wait at the same time share one call of the network.

No request waits for a batch to fill: a single request is answered at once. Short calls, as for most
policies and one observation, run in the event loop, as a thread would take longer to be notified;
all requests that have arrived by then are one batch. Long calls run in a thread, and meanwhile the
next batch gathers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from podracer_core.errors import AlreadyExists, DeadlineExpired, Exhausted, NotFound, Unavailable
from podracer_platform.telemetry.metrics import POLICY_ACTIONS, POLICY_BATCH, POLICY_QUEUE
from podracer_policy.policy import ServedPolicy

MAX_BATCH = 256
"""The most observations in one call; a larger request is its own call."""

MAX_WAITING = 4096
"""The most waiting observations; further requests are refused."""

_SHORT_S = 0.002


@dataclass(slots=True)
class _Request:
    policy: ServedPolicy
    observations: Tensor
    masks: Tensor | None
    deadline: float | None
    answer: asyncio.Future[Tensor]
    rows: int

    def joins(self, other: _Request) -> bool:
        return self.policy is other.policy and (self.masks is None) == (other.masks is None)


class Batcher:
    """`act` answers a request with its policy; `close` ends the batcher.

    It belongs to one event loop, which makes and calls it.
    """

    def __init__(self, max_batch: int = MAX_BATCH, max_waiting: int = MAX_WAITING) -> None:
        self._max_batch, self._max_waiting = max_batch, max_waiting
        self._short, self._long = deque[_Request](), deque[_Request]()
        self._rows = 0
        self._is_told = False
        self._acting: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "acting")
        self._closed = False

    async def act(
        self,
        policy: ServedPolicy,
        observations: Tensor,
        masks: Tensor | None = None,
        deadline: float | None = None,
    ) -> Tensor:
        """observations [B, *obs], masks [B, n] -> actions [B, *action].

        `deadline` of time.monotonic(): a request that is not begun by then fails with
        DeadlineExpired; a cancelled one is dropped. Raises Exhausted where too many wait,
        Unavailable after `close`, and what the policy raises."""
        if self._closed:
            raise Unavailable("the policy server is stopping")
        rows = observations.shape[0]
        if self._rows and self._rows + rows > self._max_waiting:
            raise Exhausted(
                f"{self._rows} observations wait already, of {self._max_waiting} at most",
                reason="QUEUE_FULL",
            )
        loop = asyncio.get_running_loop()
        request = _Request(policy, observations, masks, deadline, loop.create_future(), rows)
        self._rows += rows
        if policy.seconds_for(rows) <= _SHORT_S:
            self._short.append(request)
            if not self._is_told:
                self._is_told = True
                loop.call_soon(self._act_short)
        else:
            self._long.append(request)
            if self._acting is None:
                self._acting = loop.create_task(self._act_long())
        return await request.answer

    async def close(self) -> None:
        """Answer waiting requests, then end the thread."""
        self._closed = True
        self._act_short()
        if self._acting is not None:
            await self._acting
        self._thread.shutdown()

    def _act_short(self) -> None:
        self._is_told = False
        while self._short:
            if batch := self._take(self._short):
                _settle(batch, _act(batch))

    async def _act_long(self) -> None:
        while self._long:
            if batch := self._take(self._long):
                _settle(
                    batch,
                    await asyncio.get_running_loop().run_in_executor(self._thread, _act, batch),
                )
        self._acting = None

    def _take(self, queue: deque[_Request]) -> list[_Request]:
        """The oldest request and those that fit in its batch, without cancelled and expired
        ones."""
        first = queue.popleft()
        batch, rows, others = [first], first.rows, deque[_Request]()
        while queue and rows < self._max_batch:
            request = queue.popleft()
            if request.joins(first) and rows + request.rows <= self._max_batch:
                batch.append(request)
                rows += request.rows
            else:
                others.append(request)
        queue.extendleft(reversed(others))
        self._rows -= rows
        POLICY_QUEUE.set(self._rows)
        now = time.monotonic()
        return [request for request in batch if _is_wanted(request, now)]


def _is_wanted(request: _Request, now: float) -> bool:
    if request.answer.cancelled():
        return False
    if request.deadline is None or request.deadline > now:
        return True
    request.answer.set_exception(DeadlineExpired("the deadline passed before the policy could act"))
    return False


def _act(requests: Sequence[_Request]) -> Tensor | Exception:
    """The actions for requests of one policy, or the error."""
    first = requests[0]
    observations, masks = first.observations, first.masks
    try:
        if len(requests) > 1:
            observations = torch.cat([request.observations for request in requests])
            if masks is not None:
                masks = torch.cat(
                    [request.masks for request in requests if request.masks is not None]
                )
        with POLICY_BATCH.timed():
            return first.policy.act(observations, masks)
    except Exception as error:  # noqa: BLE001 - every waiting request gets it
        return error


def _settle(requests: Sequence[_Request], outcome: Tensor | Exception) -> None:
    """Answer each request that still waits."""
    if isinstance(outcome, Exception):
        for request in requests:
            if not request.answer.done():
                request.answer.set_exception(outcome)
        return
    POLICY_ACTIONS.add(len(outcome))
    requests[0].policy.request_count += len(requests)
    parts = outcome.split_with_sizes([request.rows for request in requests])
    for request, part in zip(requests, parts, strict=True):
        if not request.answer.done():
            request.answer.set_result(part)


MAX_NAMES = 64
VERSIONS_KEPT = 2
"""The versions kept of each name: the current and the previous one."""


class ServedPolicies:
    """The policies by name. Any thread may use it. A policy that is removed still serves the calls
    that have it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[str, list[ServedPolicy]] = {}  # the present one first

    def put(self, policy: ServedPolicy) -> ServedPolicy:
        """Make it the present version of its name; returns the one that acts from now on.

        A version that is there with the same content stays and becomes the present one. Raises
        AlreadyExists where its content is another, Exhausted where there are too many names."""
        with self._lock:
            versions = self._versions.get(policy.name, [])
            if not versions and len(self._versions) >= MAX_NAMES:
                raise Exhausted(
                    f"{MAX_NAMES} policies are served already; take one out first",
                    reason="TOO_MANY_POLICIES",
                )
            for there in versions:
                if there.version != policy.version:
                    continue
                if there.digest != policy.digest:
                    message = (
                        f"the policy {policy.name} has another version {policy.version} "
                        "already; give it a new one"
                    )
                    raise AlreadyExists(message, reason="VERSION_TAKEN")
                policy = there
            others = [there for there in versions if there is not policy]
            self._versions[policy.name] = [policy, *others][:VERSIONS_KEPT]
            return policy

    def find(
        self,
        name: str = "",
        version: str = "",
        is_visible: Callable[[ServedPolicy], bool] = lambda _: True,
    ) -> ServedPolicy:
        """The present version where none is given; the only visible policy where no name is. Raises
        NotFound, which names visible policies only."""
        with self._lock:
            versions = self._versions.get(name)
            if versions is None:
                visible = sorted(
                    known for known, (present, *_) in self._versions.items() if is_visible(present)
                )
                if name or len(visible) != 1:
                    names = ", ".join(visible) or "none"
                    problem = (
                        f"there is no policy {name[:100]!r}"
                        if name
                        else "the request names no policy"
                    )
                    raise NotFound(
                        f"{problem}; served here: {names}",
                        reason="UNKNOWN_POLICY",
                        policy=name[:100],
                    )
                (name,) = visible
                versions = self._versions[name]
            for policy in versions:
                if not version or policy.version == version:
                    return policy
            known = ", ".join(policy.version for policy in versions if is_visible(policy))
            raise NotFound(
                f"the policy {name} has no version {version[:100]!r}; it has: {known}",
                reason="UNKNOWN_VERSION",
                policy=name,
            )

    def versions(self, name: str) -> list[str]:
        """Versions that can be requested, the present one first."""
        with self._lock:
            return [policy.version for policy in self._versions.get(name, ())]

    def present(self) -> list[ServedPolicy]:
        """The present version of each policy, by name."""
        with self._lock:
            return [self._versions[name][0] for name in sorted(self._versions)]

    def remove(self, name: str) -> None:
        """Take it out with all of its versions. Raises NotFound."""
        with self._lock:
            if self._versions.pop(name, None) is None:
                raise NotFound(
                    f"there is no policy {name[:100]!r}", reason="UNKNOWN_POLICY", policy=name[:100]
                )

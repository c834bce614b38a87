"""Requests that wait at the same time become one call of the network.

A thread takes what waits as soon as it is free: a request that comes alone is acted on at once, and while a call runs
the next batch gathers.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from podracer_core.errors import DeadlineExpired, Exhausted, Unavailable
from podracer_core.serving.policy import ServedPolicy
from podracer_core.telemetry.metrics import POLICY_ACTIONS, POLICY_BATCH, POLICY_QUEUE

__all__ = ["MAX_BATCH", "MAX_WAITING", "Batcher"]

MAX_BATCH = 256
"""Observations in one call; a larger request is a call of its own."""

MAX_WAITING = 4096
"""Observations that wait; a request that comes when there are as many is refused."""


@dataclass(slots=True)
class _Request:
    policy: ServedPolicy
    observations: Tensor
    masks: Tensor | None
    deadline: float | None
    answer: Future[Tensor] = field(default_factory=Future)

    def joins(self, other: _Request) -> bool:
        return self.policy is other.policy and (self.masks is None) == (other.masks is None)


class Batcher:
    """`act` hands a request over, `close` ends the thread. The policy of a request is the one that it came with."""

    def __init__(self, max_batch: int = MAX_BATCH, max_waiting: int = MAX_WAITING) -> None:
        self._max_batch, self._max_waiting = max_batch, max_waiting
        self._changed = threading.Condition()
        self._queue: deque[_Request] = deque()
        self._rows = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="acting", daemon=True)
        self._thread.start()

    def act(
        self, policy: ServedPolicy, observations: Tensor, masks: Tensor | None = None, deadline: float | None = None
    ) -> Future[Tensor]:
        """observations [B, *obs], masks [B, n] -> the future actions [B, *action]. Returns at once.

        `deadline` of time.monotonic(): a request that is not begun by then fails with DeadlineExpired; a cancelled one
        is dropped. Raises Exhausted where too many wait, Unavailable after `close`.
        """
        request = _Request(policy, observations, masks, deadline)
        with self._changed:
            if self._closed:
                raise Unavailable("the policy server is stopping")
            if self._rows and self._rows + len(observations) > self._max_waiting:
                raise Exhausted(
                    f"{self._rows} observations wait already, of {self._max_waiting} at most", reason="QUEUE_FULL"
                )
            self._queue.append(request)
            self._rows += len(observations)
            self._changed.notify()
        return request.answer

    def close(self) -> None:
        """Answer what waits, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._take():
            now = time.monotonic()
            ready = [request for request in batch if _is_wanted(request, now)]
            if ready:
                _act(ready)

    def _take(self) -> list[_Request]:
        """The oldest request and those that can be acted on with it; empty once closed and done."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            if not self._queue:
                return []
            first = self._queue.popleft()
            batch, rows, others = [first], len(first.observations), deque[_Request]()
            while self._queue and rows < self._max_batch:
                request = self._queue.popleft()
                if request.joins(first) and rows + len(request.observations) <= self._max_batch:
                    batch.append(request)
                    rows += len(request.observations)
                else:
                    others.append(request)
            self._queue.extendleft(reversed(others))
            self._rows -= rows
            POLICY_QUEUE.set(self._rows)
            return batch


def _is_wanted(request: _Request, now: float) -> bool:
    if not request.answer.set_running_or_notify_cancel():
        return False
    if request.deadline is None or request.deadline > now:
        return True
    request.answer.set_exception(DeadlineExpired("the deadline passed before the policy could act"))
    return False


def _act(requests: Sequence[_Request]) -> None:
    """All of one policy; each is answered."""
    first = requests[0]
    try:
        observations, masks = first.observations, first.masks
        if len(requests) > 1:
            observations = torch.cat([request.observations for request in requests])
            masks = (
                None
                if masks is None
                else torch.cat([request.masks for request in requests if request.masks is not None])
            )
        with POLICY_BATCH.timed():
            actions = first.policy.act(observations, masks)
    except Exception as error:  # noqa: BLE001 - whoever waits is told
        for request in requests:
            request.answer.set_exception(error)
        return
    POLICY_ACTIONS.add(len(actions))
    first.policy.request_count += len(requests)
    for request, part in zip(
        requests, actions.split_with_sizes([len(request.observations) for request in requests]), strict=True
    ):
        request.answer.set_result(part)

"""Following a job over WatchJob, through restarts of the orchestrator."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from podracer.orchestrator.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc
from podracer_core.errors import DeadlineExpired, PodracerError, Unavailable
from podracer_core.rpc.backoff import Backoff

FINAL_STATES = frozenset(
    {job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_CANCELLED}
)
_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 1.0


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """A job's current state, the events since the last update (oldest first), and its current
    pods."""

    job: job_pb2.Job
    events: tuple[job_pb2.Event, ...]
    pods: tuple[job_pb2.Pod, ...]

    @property
    def ended(self) -> bool:
        return self.job.state in FINAL_STATES


class JobWatch:
    """Iterates over the updates of a job until it ends. A lost connection neither loses nor repeats
    an event.

    Iterating raises Unavailable if the server does not answer for `patience_s`, and the errors of
    the server. `cancel`, from any thread, ends it."""

    def __init__(
        self,
        jobs: job_service_pb2_grpc.JobServiceStub,
        name: str,
        *,
        after_position: int = 0,
        patience_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = jobs
        self._name = name
        self._position = after_position
        self._patience_s = patience_s
        self._clock = clock
        self._cancelled = threading.Event()
        self._call: Any = None

    def cancel(self) -> None:
        self._cancelled.set()
        if self._call is not None:
            self._call.cancel()

    def __iter__(self) -> Iterator[JobUpdate]:
        backoff = Backoff(_FIRST_DELAY_S, _LONGEST_DELAY_S, jitter=0.5)
        last_answer = self._clock()
        while not self._cancelled.is_set():
            failure: PodracerError = Unavailable("it ends each call and says nothing")
            try:
                for update in self._stream():
                    last_answer = self._clock()
                    backoff.reset()
                    yield update
                    if update.ended or self._cancelled.is_set():
                        return
            except (Unavailable, DeadlineExpired) as error:
                failure = error
            if self._cancelled.is_set():
                return
            if self._clock() - last_answer > self._patience_s:
                raise Unavailable(
                    f"no answer from the orchestrator for {self._patience_s:.0f} s: "
                    f"{failure.message}",
                    reason=failure.reason,
                ) from failure
            self._cancelled.wait(next(backoff))

    def _stream(self) -> Iterator[JobUpdate]:
        request = job_service_pb2.WatchJobRequest(name=self._name, after_position=self._position)
        self._call = self._jobs.WatchJob(request)
        if self._cancelled.is_set():  # it came between the last look and the call
            self._call.cancel()
        for response in self._call:
            events = tuple(event for event in response.events if event.position > self._position)
            if events:
                self._position = events[-1].position
            yield JobUpdate(response.job, events, tuple(response.pods))
            if response.draining:
                self._call.cancel()
                return

"""Following a job: its stream from the orchestrator, and what is new on its leaderboard, through
restarts of both."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import job_pb2, job_service_pb2
from podracer_client.jobs.history import (
    MAX_EVALUATIONS,
    MAX_EVENTS,
    Agent,
    Evaluation,
    Event,
    History,
    Pod,
    Thinning,
)
from podracer_client.servers import Servers
from podracer_core.errors import (
    DataCorrupted,
    DeadlineExpired,
    NotFound,
    PodracerError,
    Unavailable,
)
from podracer_platform.rpc import Backoff

EVERYTHING = ("board", "agents", "evaluations")
_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 1.0
_LISTING_S = 2.0
_WAITING = 16
"""The most updates that wait for the reader."""


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """What is new of a job. `events` and `evaluations` came since the last update, oldest first;
    `lost` is set while the leaderboard does not answer."""

    history: History
    events: tuple[job_pb2.Event, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    is_of_board: bool = False
    lost: PodracerError | None = None

    @property
    def job(self) -> job_pb2.Job:
        return self.history.job

    @property
    def ended(self) -> bool:
        return self.history.ended


class Follower:
    """Iterates over the updates of a job until it ends. A lost connection neither loses nor repeats
    an event or an evaluation; a further iteration goes on where the former one ended.

    Iterating raises Unavailable if the orchestrator does not answer for `patience_s`, and the
    errors of the server. `cancel`, from any thread, ends it.

    parts   which data of the leaderboard are read besides: any of EVERYTHING. A thread does this,
            so that a long history delays no event.
    pause_s the least time between two reads of the leaderboard; they are rarer where they take long
    """

    def __init__(
        self,
        servers: Callable[[], Servers],
        job: job_pb2.Job,
        *,
        after_position: int = 0,
        patience_s: float = 60.0,
        parts: Collection[str] = (),
        pause_s: float = 1.0,
        max_evaluations: int = MAX_EVALUATIONS,
        max_events: int = MAX_EVENTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.history = History(job)
        self.heard_at = clock()
        self._servers, self._position, self._patience_s = servers, after_position, patience_s
        self._parts, self._pause_s, self._clock = parts, pause_s, clock
        self._max_events = max_events
        self._evaluations: Thinning[Evaluation] = Thinning(max_evaluations)
        self._token, self._after_token = "", 0
        self._news: deque[JobUpdate] = deque()
        self._changed, self._reading = threading.Condition(), threading.Lock()
        self._is_stale, self._cancelled = threading.Event(), threading.Event()
        self._call: Any = None

    def cancel(self) -> None:
        self._cancelled.set()
        self._is_stale.set()
        if self._call is not None:
            self._call.cancel()

    def refresh(self) -> None:
        """Read the leaderboard soon."""
        self._is_stale.set()

    def wait_for_refresh(self, timeout_s: float = _LISTING_S) -> None:
        self._is_stale.wait(timeout_s)
        self._is_stale.clear()

    def __iter__(self) -> Iterator[JobUpdate]:
        return self._follow_both() if self._parts else self._watch()

    def take(
        self, job: job_pb2.Job, events: Iterable[job_pb2.Event], pods: Iterable[job_pb2.Pod]
    ) -> JobUpdate:
        """Learn the state of the job, its pods, and its next events; those that are known are left
        out."""
        new = tuple(event for event in events if event.position > self._position)
        if new:
            self._position = new[-1].position
        told = [
            Event.of(event, job.create_time)
            for event in new[-self._max_events :]
            if self._max_events
        ]
        kept = (*self.history.events, *told)[-self._max_events :] if told else self.history.events
        self.heard_at = self._clock()
        return JobUpdate(self._learn(job=job, pods=tuple(map(Pod.of, pods)), events=kept), new)

    def read(self) -> Iterator[JobUpdate]:
        """What is new on the leaderboard: at first ranking and agents, then the evaluations, page
        by page. Nothing while the job has no leaderboard."""
        with self._reading:
            while self._news:
                yield self._news.popleft()
            yield from self._read_new()

    def _learn(self, **values: Any) -> History:
        with self._changed:
            self.history = replace(self.history, **values)
            return self.history

    def _read_new(self) -> Iterator[JobUpdate]:
        servers, job = self._servers(), self.history.job
        try:
            yield from self._read(servers, job) if job.leaderboard else ()
        except NotFound:  # it is made after its job
            return

    def _read(self, servers: Servers, job: job_pb2.Job) -> Iterator[JobUpdate]:
        values: dict[str, object] = {}
        if "board" in self._parts:
            values["board"] = servers.leaderboard(job.leaderboard)
        if "agents" in self._parts:
            found, wanted = servers.agents(job.leaderboard), self.history.objective
            values["agents"] = tuple(Agent.of(agent, wanted, job.create_time) for agent in found)
        yield JobUpdate(self._learn(**values), is_of_board=True)
        while "evaluations" in self._parts and not self._cancelled.is_set():
            request = leaderboard_service_pb2.ListEvaluationsRequest(
                leaderboard=job.leaderboard, page_size=200, page_token=self._token
            )
            page = servers.leaderboard_service.ListEvaluations(request)
            every = page.evaluations[self._after_token :]
            new = tuple(Evaluation.of(each, job.create_time) for each in every)
            token = page.next_page_token
            self._after_token = 0 if token else len(page.evaluations)
            if token and token == self._token:
                raise DataCorrupted("the server lists the same page again and again")
            self._token = token or self._token
            for each in filter(lambda each: each.is_finite, new):
                self._evaluations.add(each)
            if new:
                kept, count = tuple(self._evaluations.kept), self._evaluations.count
                yield JobUpdate(self._learn(sample=kept, evaluation_count=count), (), new, True)
            if not token:
                return

    def _watch(self) -> Iterator[JobUpdate]:
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
        request = job_service_pb2.WatchJobRequest(
            name=self.history.job.name, after_position=self._position
        )
        self._call = self._servers().job_service.WatchJob(request)
        if self._cancelled.is_set():  # it came between the last look and the call
            self._call.cancel()
        for response in self._call:
            yield self.take(response.job, response.events, response.pods)
            if response.draining:
                self._call.cancel()
                return

    def _follow_both(self) -> Iterator[JobUpdate]:
        """The updates of two threads, which end with this iteration. What they still tell stays for
        the next one."""
        over, ended = threading.Event(), list[BaseException | None]()

        def put(update: JobUpdate) -> bool:
            with self._changed:
                self._changed.wait_for(lambda: len(self._news) < _WAITING or over.is_set())
                self._news.append(update)
                self._changed.notify_all()
            return not over.is_set()

        def run(task: Callable[[Callable[[JobUpdate], bool]], None]) -> None:
            failure: BaseException | None = None
            try:
                task(put)
            except BaseException as error:  # noqa: BLE001 (the reader raises it)
                failure = error
            with self._changed:
                ended.append(failure)
                self._changed.notify_all()

        for task in (self._put_watched, self._put_read):
            threading.Thread(target=run, args=(task,), name=task.__name__, daemon=True).start()
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._news or ended)
                    if not self._news:
                        break
                    update = self._news.popleft()
                    self._changed.notify_all()
                yield update
            if ended[0] is not None:
                raise ended[0]
        finally:
            with self._changed:
                over.set()
                self._changed.notify_all()
            self._is_stale.set()
            if self._call is not None:
                self._call.cancel()

    def _put_watched(self, put: Callable[[JobUpdate], bool]) -> None:
        for update in self._watch():
            self._is_stale.set()
            if not put(update):
                return

    def _put_read(self, put: Callable[[JobUpdate], bool]) -> None:
        goes_on = True
        while goes_on:
            self.wait_for_refresh()
            began = time.monotonic()
            try:
                with self._reading:
                    for update in self._read_new():
                        if not (goes_on := put(update)):
                            return
            except PodracerError as error:
                goes_on = put(JobUpdate(self.history, is_of_board=True, lost=error))
            self._cancelled.wait(max(self._pause_s, 4.0 * (time.monotonic() - began)))
            goes_on &= not self._cancelled.is_set()

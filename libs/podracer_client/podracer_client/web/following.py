"""The threads that follow the orchestrator and the leaderboard, and write their data into a
feed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import job_pb2, job_service_pb2
from podracer_client.display.messages import capacity_json
from podracer_client.jobs.client import Client
from podracer_client.jobs.job import Job
from podracer_client.jobs.watch import FINAL_STATES, JobWatch
from podracer_client.names import DEFAULT_PROJECT
from podracer_client.web import values
from podracer_client.web.feed import Feed
from podracer_core.errors import DeadlineExpired, NotFound, PodracerError, Unavailable
from podracer_core.rpc.backoff import Backoff

STREAM_S = 60.0
"""Deadline of a stream without heartbeats; it is opened again at its last position."""
SILENCE_S = 15.0
"""WatchJob sends a message every 5 s. After this time without one it is opened again."""
_LOOK_AGAIN_S = 5.0
_LEAST_PAUSE_S = 0.25
_LISTING_S = 2.0
_EVALUATIONS_AT_ONCE = 200
"""The last page is read again to find new evaluations."""
_UNFINISHED = (job_pb2.JOB_STATE_PENDING, job_pb2.JOB_STATE_RUNNING)
LOGS = {"evaluations": 100_000, "events": 2_000}


class Upstream:
    """The client of all threads. If the servers do not answer, `connect` is called again: their
    address may have changed."""

    def __init__(self, connect: Callable[[], Client], client: Client | None = None) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._clients = [client] if client is not None else []
        self._looked_at = float("-inf")

    def client(self) -> Client:
        """The current client. Raises the errors of `connect`."""
        with self._lock:
            if not self._clients:
                self._clients.append(self._connect())
            return self._clients[-1]

    def look_again(self) -> None:
        """Connect again after a failure, not more often than a limit. The previous client is closed
        at the end: other threads may be using it."""
        with self._lock:
            if not self._clients or time.monotonic() < self._looked_at + _LOOK_AGAIN_S:
                return
            self._looked_at = time.monotonic()
            found, known = self._connect(), self._clients[-1]
            if _addresses(found) != _addresses(known):
                self._clients.append(found)
            elif found is not known:
                found.close()

    def close(self) -> None:
        for client in self._clients:
            client.close()


def _addresses(client: Client) -> tuple[str, str]:
    return client.connection.orchestrator, client.connection.leaderboard


class Following:
    """The shared state of the threads of a feed. They continue through restarts of the servers,
    until `close`."""

    def __init__(self, upstream: Upstream, feed: Feed) -> None:
        self.upstream, self.feed = upstream, feed
        self.stopped = threading.Event()
        self._calls: dict[str, Any] = {}
        self._lost: set[str] = set()  # steps, by name, whose server does not answer
        self._backoff = Backoff(0.1, 2.0, jitter=0.5)

    def start(self, *steps: Callable[[], None]) -> None:
        for step in steps:
            threading.Thread(
                target=self._repeat, args=(step,), name=step.__name__, daemon=True
            ).start()

    def close(self) -> None:
        self.stopped.set()
        for call in list(self._calls.values()):
            call.cancel()

    def opened(self, name: str, call: Any) -> Any:
        """Register a stream, so that `close` can end it."""
        self._calls[name] = call
        if self.stopped.is_set():
            call.cancel()
        return call

    def heard(self, *others: str) -> None:
        """Note that the server of the calling thread, which also serves the steps `others`, has
        answered."""
        self._lost -= {threading.current_thread().name, *others}
        self._backoff.reset()
        if not self._lost:
            self.feed.put(connection={"state": "live", "message": ""})

    def gone(self, error: NotFound) -> None:
        self.feed.put(connection={"state": "gone", "message": error.message})
        self.stopped.set()

    def _repeat(self, step: Callable[[], None]) -> None:
        while not self.stopped.is_set():
            try:
                step()
            except DeadlineExpired:
                continue
            except PodracerError as error:
                if not self.stopped.is_set():
                    self._lost.add(threading.current_thread().name)
                    self.feed.put(connection={"state": "reconnecting", "message": error.message})
                    with suppress(PodracerError):  # the next attempt will show
                        self.upstream.look_again()
            self.stopped.wait(next(self._backoff))


class JobsFollowing(Following):
    """The jobs of the project, and the pool."""

    def __init__(self, upstream: Upstream, feed: Feed) -> None:
        super().__init__(upstream, feed)
        self._positions: dict[str, int] = {}
        self.start(self._watch, self._list)

    def refresh(self) -> None:
        """Nothing to do: the watch reports every action."""

    def _watch(self) -> None:
        request = job_service_pb2.WatchJobsRequest(
            parent=DEFAULT_PROJECT, after_positions=self._positions
        )
        call = self.upstream.client().job_service.WatchJobs(request, timeout=STREAM_S)
        for response in self.opened("jobs", call):
            if response.deleted:
                self._positions.pop(response.deleted, None)
                self.feed.put(**{f"job/{response.deleted}": None})
            elif response.HasField("job"):
                known = self._positions.get(response.job.uid, 0)
                self._positions[response.job.uid] = max(known, response.job.event_position)
                self._put(response.job)
            self.heard()

    def _list(self) -> None:
        """List the jobs again: figures change between events, too."""
        client = self.upstream.client()
        for job in client.jobs(_UNFINISHED):
            self._put(job.message)
        self.feed.put(capacity=capacity_json(client.capacity()))
        self.heard(self._watch.__name__)  # that one is silent until something happens
        self.stopped.wait(_LISTING_S)

    def _put(self, job: job_pb2.Job) -> None:
        known = values.job_values(job)
        self.feed.put(**{f"job/{job.uid}": known["job"] | known["figures"]})


class JobFollowing(Following):
    """One job with its pods, agents, evaluations, ranking and events."""

    def __init__(self, upstream: Upstream, feed: Feed, name: str) -> None:
        super().__init__(upstream, feed)
        self._name = name
        self._job: job_pb2.Job | None = None
        self._position = 0
        self._heard_at = time.monotonic()
        self._is_stale = threading.Event()
        self._token, self._after_token = "", 0
        self.start(self._watch, self._rank, self._read)

    def refresh(self) -> None:
        """Read the data without a stream soon."""
        self._is_stale.set()

    def _watch(self) -> None:
        """Follow the job until it ends; after that it is read again only after actions."""
        self._heard_at = time.monotonic()
        job = Job(self.upstream.client(), job_pb2.Job(name=self._name))
        watch: JobWatch = self.opened(
            "job", job.watch(after_position=self._position, patience_s=0.0)
        )
        try:
            self._take(watch)
        except NotFound as error:
            self.gone(error)

    def _take(self, watch: JobWatch) -> None:
        for update in watch:
            self._job, self._heard_at = update.job, time.monotonic()
            self.feed.put(**values.job_values(update.job), pods=values.pod_values(update.pods))
            if update.events:
                self._position = update.events[-1].position
                self.feed.append(
                    "events", [values.event_row(event, update.job) for event in update.events]
                )
            self._is_stale.set()
            self.heard()
            if update.ended:
                self.stopped.wait()

    def _rank(self) -> None:
        name = self._known_job().leaderboard
        request = leaderboard_service_pb2.WatchLeaderboardRequest(name=name)
        with suppress(NotFound):  # it is made after its job
            call = self.upstream.client().leaderboard_service.WatchLeaderboard(
                request, timeout=STREAM_S
            )
            for response in self.opened("leaderboard", call):
                if response.HasField("leaderboard"):
                    self.feed.put(board=values.board_value(response.leaderboard))
                    self._is_stale.set()
                self.heard()

    def _read(self) -> None:
        """Read agents, evaluations and other data without a stream; less often the longer this
        takes."""
        job = self._known_job()
        self._is_stale.wait(_LISTING_S)
        self._is_stale.clear()
        client, began = self.upstream.client(), time.monotonic()
        if self._job is not None and self._job.state in FINAL_STATES:
            self._read_ended(client)
        elif began - self._heard_at > SILENCE_S:
            self._calls["job"].cancel()
        with suppress(NotFound):
            self.feed.put(
                board=values.board_value(client.leaderboard(job.leaderboard)),
                **values.agent_values(client.agents(job.leaderboard), job),
            )
            self._read_evaluations(client, job)
        self.feed.put(
            capacity=capacity_json(client.capacity()),
            promotions=values.promotion_values(client.promotions(self._name)),
        )
        self.heard()
        self.stopped.wait(max(_LEAST_PAUSE_S, 4.0 * (time.monotonic() - began)))

    def _read_ended(self, client: Client) -> None:
        try:
            self.feed.put(**values.job_values(client.job(self._name).message))
        except NotFound as error:
            self.gone(error)

    def _read_evaluations(self, client: Client, job: job_pb2.Job) -> None:
        """Read the evaluations after the last one that was read."""
        while not self.stopped.is_set():
            request = leaderboard_service_pb2.ListEvaluationsRequest(
                leaderboard=job.leaderboard, page_size=_EVALUATIONS_AT_ONCE, page_token=self._token
            )
            page = client.leaderboard_service.ListEvaluations(request)
            rows = (
                values.evaluation_row(each, job) for each in page.evaluations[self._after_token :]
            )
            if found := [row for row in rows if row is not None]:
                self.feed.append("evaluations", found)
            self._after_token = len(page.evaluations)
            if not page.next_page_token:
                return
            self._token, self._after_token = page.next_page_token, 0

    def _known_job(self) -> job_pb2.Job:
        """Wait until the job has a leaderboard. Raises Unavailable if the thread has to end."""
        while self._job is None or not self._job.leaderboard:
            if self.stopped.wait(_LEAST_PAUSE_S):
                raise Unavailable("the page is closed")
        return self._job

"""The threads that follow the orchestrator and the leaderboard, and write what the page shows into
a feed: values by key, and growing logs, of which each reader gets the changes since its last
frame."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import job_pb2, job_service_pb2
from podracer_client.display import candidate_json, capacity_json, job_json, present
from podracer_client.jobs import (
    EVERYTHING,
    FINAL_STATES,
    Agent,
    Client,
    Evaluation,
    Event,
    Follower,
    History,
    JobUpdate,
    Pod,
)
from podracer_client.names import DEFAULT_PROJECT, enum_word, short_name, time_json
from podracer_core.catalogue import known_algorithms
from podracer_core.errors import DeadlineExpired, NotFound, PodracerError, Unavailable
from podracer_platform.rpc import Backoff

FRAME_S = 0.05
"""Changes within this time are sent in one frame."""
HEARTBEAT_S = 10.0
ROWS_AT_ONCE = 5_000
"""The most rows of a log in one frame: a long history is sent in pieces."""

Frame = dict[str, Any]


@dataclass(slots=True)
class _Log:
    """The newest `limit` rows; `first` is the number of the oldest of them."""

    limit: int
    first: int = 0
    rows: list[Any] = field(default_factory=list)

    def append(self, rows: Iterable[Any]) -> None:
        self.rows.extend(rows)
        if len(self.rows) > self.limit:
            # a tenth at once: each cut moves all the rest
            surplus = len(self.rows) - self.limit + self.limit // 10
            del self.rows[:surplus]
            self.first += surplus


class Feed:
    """Written from threads, read by any number of clients on one event loop.

    Clients have no queues. Each one stores the revision that it has; the next frame of a slow
    client has the newest values, and none of those in between."""

    def __init__(self, loop: asyncio.AbstractEventLoop, logs: Mapping[str, int]) -> None:
        """`logs`: the names of the logs, and the number of rows that each keeps."""
        self._loop = loop
        self._lock = threading.Lock()
        self._revision = 0
        self._values: dict[str, tuple[int, Any]] = {}
        self._logs = {name: _Log(limit) for name, limit in logs.items()}
        self._news = asyncio.Event()
        self._closed = False

    def close(self) -> None:
        """End all readers."""
        self._closed = True
        self._ring()

    def put(self, **values: Any) -> None:
        """Set values; unchanged ones cost nothing. None removes a value."""
        with self._lock:
            changed = {
                key: value
                for key, value in values.items()
                if self._values.get(key, (0, None))[1] != value
            }
            if not changed:
                return
            self._revision += 1
            self._values |= {key: (self._revision, value) for key, value in changed.items()}
        self._ring()

    def append(self, log: str, rows: Iterable[Any]) -> None:
        with self._lock:
            self._logs[log].append(rows)
        self._ring()

    async def frames(self) -> AsyncIterator[Frame | None]:
        """Yields all data first, then the changes; None after a while without changes."""
        revision, places = 0, dict.fromkeys(self._logs, 0)
        while not self._closed:
            news = self._news
            frame, revision, has_more = self._cut(revision, places)
            if frame["values"] or frame["logs"]:
                yield frame
            if has_more:
                continue
            try:
                await asyncio.wait_for(news.wait(), HEARTBEAT_S)
                await asyncio.sleep(FRAME_S)
            except TimeoutError:
                yield None

    def _cut(self, revision: int, places: dict[str, int]) -> tuple[Frame, int, bool]:
        """The data newer than `revision` and `places`, which advance to its end."""
        with self._lock:
            values = {
                key: value for key, (changed, value) in self._values.items() if changed > revision
            }
            logs, has_more = {}, False
            for name, log in self._logs.items():
                start = max(0, places[name] - log.first)
                rows = log.rows[start : start + ROWS_AT_ONCE]
                places[name] = log.first + start + len(rows)
                has_more |= start + len(rows) < len(log.rows)
                if rows:
                    logs[name] = rows
            return {"values": values, "logs": logs}, self._revision, has_more

    def _ring(self) -> None:
        with suppress(RuntimeError):  # the loop has ended, and its readers with it
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


_OF_AGENTS = tuple(field.name for field in fields(Agent) if field.name not in ("best", "latest"))
_FIGURES = (
    "best_return",
    "best_score",
    "best_confirmed",
    "env_steps",
    "train_seconds",
    "agents",
    "pods",
    "rounds",
)
STREAM_S = 60.0
"""Deadline of a stream without heartbeats; it is opened again at its last position."""
SILENCE_S = 15.0
"""WatchJob sends a message every 5 s. After this time without one it is opened again."""
_RECONNECT_S = 5.0
_LEAST_PAUSE_S = 0.25
_LISTING_S = 2.0
_UNFINISHED = (job_pb2.JOB_STATE_PENDING, job_pb2.JOB_STATE_RUNNING)
LOGS = {"evaluations": 100_000, "events": 2_000}


def job_values(history: History) -> dict[str, Any]:
    """`job`: the request and the state of a job. `figures`: the values that change all the time."""
    known, job, objective = job_json(history.job), history.job, history.objective
    figures = {name: known.pop(name) for name in _FIGURES}
    figures |= {
        "live_env_steps": history.live_env_steps,
        "env_steps_per_second": round(history.env_steps_per_second, 1),
        "eta_seconds": None if history.eta_s is None else round(history.eta_s),
        "cost_seconds": round(history.cost_s, 1),
    }
    pod = job.spec.pod
    known |= {
        "id": history.name,
        "ended": job.state in FINAL_STATES,
        "objective": asdict(objective) | {"statistic": objective.statistic},
        "score_name": history.score_name,
        "pod_count": {"min": pod.min_count, "max": pod.max_count, "learners": pod.learners},
        "labels": dict(history.labels),
    }
    return {"job": known, "figures": figures}


def pod_values(pods: Sequence[Pod]) -> list[dict[str, Any]]:
    """The pods that have not left for good."""
    return [
        {
            "name": pod.name,
            "state": pod.state,
            "layout": pod.layout,
            "agents": list(pod.agents),
            "env_steps_per_second": round(pod.env_steps_per_second, 1),
            "restarts": pod.restarts,
            "memory_bytes": pod.memory_bytes or None,
            "message": pod.message,
        }
        for pod in present(pods)
    ]


def agent_values(agents: Iterable[Agent]) -> dict[str, Any]:
    """`agent/NAME` of each. `forkable`: the hyperparameters that a fork may change."""
    found = {}
    for agent in agents:
        own = {name: getattr(agent, name) for name in _OF_AGENTS}
        found[f"agent/{agent.name}"] = own | {"forkable": _forkable(agent)}
    return found


def _forkable(agent: Agent) -> list[str]:
    """The hyperparameters that a fork may change. For an algorithm that only the servers have
    installed these are all: the servers refuse a change that is not possible."""
    info = known_algorithms().get(agent.algorithm)
    fixed = (
        {knob.name for knob in info.hyperparameters if not knob.keeps_weights} if info else set()
    )
    return [name for name in agent.hyperparameters if name not in fixed]


def board_value(board: leaderboard_service_pb2.Leaderboard) -> dict[str, Any]:
    """The ranking, and the targets of the aliases."""
    return {
        "candidates": [
            candidate_json(candidate)
            | {"agent": short_name(candidate.agent.name), "statistics": {}}
            for candidate in board.candidates
        ],
        "aliases": {alias: short_name(agent) for alias, agent in board.aliases.items()},
    }


def evaluation_rows(evaluations: Iterable[Evaluation]) -> list[list[Any]]:
    """Agent, steps, seconds since the job was created, mean, lower and upper bound of those that
    are finite."""
    return [
        [
            each.agent,
            each.env_steps,
            round(each.time_s or 0.0, 2),
            each.mean,
            each.lower,
            each.upper,
        ]
        for each in evaluations
        if each.is_finite
    ]


def event_row(event: job_pb2.Event, history: History) -> list[Any]:
    """Position, seconds since the job was created, kind, subject, sentence, the traceback of user
    code."""
    found = Event.of(event, history.job.create_time)
    text = found.details.get("traceback", "")
    return [found.position, round(found.time_s, 2), found.kind, found.subject, found.message, text]


def promotion_values(promotions: Iterable[job_service_pb2.Promotion]) -> list[dict[str, Any]]:
    """The history of aliases, newest first."""
    return [
        {
            "position": each.position,
            "alias": each.alias,
            "decision": enum_word(job_service_pb2.PromotionDecision, each.decision),
            "policy": short_name(each.policy.agent),
            "reason": each.reason,
            "time": time_json(each.create_time),
        }
        for each in promotions
    ]


class Upstream:
    """The client of all threads. If the servers do not answer, `connect` is called again: their
    address may have changed."""

    def __init__(self, connect: Callable[[], Client], client: Client | None = None) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._clients = [client] if client is not None else []
        self._reconnected_at = float("-inf")

    def client(self) -> Client:
        """The current client. Raises the errors of `connect`."""
        with self._lock:
            if not self._clients:
                self._clients.append(self._connect())
            return self._clients[-1]

    def reconnect(self) -> None:
        """Connect again after a failure, not more often than a limit. The previous client is closed
        at the end: other threads may be using it."""
        with self._lock:
            if not self._clients or time.monotonic() < self._reconnected_at + _RECONNECT_S:
                return
            self._reconnected_at = time.monotonic()
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

    def lost(self, name: str, error: PodracerError) -> None:
        """Note that the server of the step `name` does not answer."""
        self._lost.add(name)
        self.feed.put(connection={"state": "reconnecting", "message": error.message})
        with suppress(PodracerError):  # the next attempt will show
            self.upstream.reconnect()

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
                    self.lost(threading.current_thread().name, error)
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
        known = job_values(History(job))
        self.feed.put(**{f"job/{job.uid}": known["job"] | known["figures"]})


class JobFollowing(Following):
    """One job with its pods, agents, evaluations, ranking and events."""

    def __init__(self, upstream: Upstream, feed: Feed, name: str) -> None:
        super().__init__(upstream, feed)
        self._follower = Follower(
            upstream.client,
            job_pb2.Job(name=name),
            patience_s=0.0,
            parts=EVERYTHING,
            pause_s=_LEAST_PAUSE_S,
            max_evaluations=0,
            max_events=0,
        )
        self._listed_at = float("-inf")
        self.start(self._follow)

    def close(self) -> None:
        super().close()
        self._follower.cancel()

    def refresh(self) -> None:
        """Read the data without a stream soon."""
        self._listed_at = float("-inf")
        self._follower.refresh()

    def _follow(self) -> None:
        """Follow the job until it ends; after that it is read again and again, as actions may
        change it."""
        self.upstream.client()  # NotFound of a server is no NotFound of the job
        self._follower.heard_at = time.monotonic()
        try:
            for update in self._follower:
                self._show(update)
            for update in self._follower.read():
                self._show(update)
            self._list()
            self._follower.wait_for_refresh()
        except NotFound as error:
            if not self.stopped.is_set():
                self.gone(error)

    def _show(self, update: JobUpdate) -> None:
        history = update.history
        if update.lost is not None:
            self.lost("leaderboard", update.lost)
            return
        is_silent = time.monotonic() > self._follower.heard_at + SILENCE_S
        if not is_silent:
            self.heard("leaderboard" if update.is_of_board else "")
        if update.is_of_board:
            if rows := evaluation_rows(update.evaluations):
                self.feed.append("evaluations", rows)
            else:
                board = board_value(history.board)
                self.feed.put(board=board, **agent_values(history.agents))
        else:
            self.feed.put(**job_values(history), pods=pod_values(history.pods))
            if rows := [event_row(event, history) for event in update.events]:
                self.feed.append("events", rows)
        if is_silent:
            raise Unavailable(f"no news of the job for {SILENCE_S:.0f} s")
        if time.monotonic() > self._listed_at + _LISTING_S:
            self._list()

    def _list(self) -> None:
        """Read what has no stream."""
        self._listed_at = time.monotonic()
        client = self.upstream.client()
        promotions = client.promotions(self._follower.history.job.name)
        self.feed.put(
            capacity=capacity_json(client.capacity()), promotions=promotion_values(promotions)
        )

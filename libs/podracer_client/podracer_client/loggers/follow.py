"""Passes a job's evaluations to the loggers, page by page: while it runs, and once more when it has
ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_client.display.numbers import seconds
from podracer_client.jobs.client import Client
from podracer_client.jobs.job import Job
from podracer_client.loggers.logger import AgentRun, Logger, Point
from podracer_client.names import short_name
from podracer_client.report import conversion
from podracer_client.report.records import Agent, Objective
from podracer_core.errors import DeadlineExpired, NotFound, Unavailable

__all__ = ["follow"]

_INTERVAL_S = 5.0
_LAST_LOOK_S = 1.0
_PAGE_SIZE = 200
_TRAINED = (agent_pb2.EVALUATION_PURPOSE_PROGRESS, agent_pb2.EVALUATION_PURPOSE_CANDIDATE)


def follow(
    client: Client,
    job: Job,
    loggers: Sequence[Logger],
    *,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
) -> int:
    """Log the job's evaluations until it has ended; returns their number.

    Raises Unavailable if the servers do not answer for a minute, and the errors of the loggers.
    """
    feed = _Feed(client, job.message)
    last, updates = float("-inf"), 0
    for update in job.watch():
        updates += 1
        if not update.ended and clock() - last < _INTERVAL_S:
            continue
        last = clock()
        try:
            feed.tell(loggers)
        except _BoardAway as error:
            if update.ended:
                raise Unavailable(error.message, reason=error.reason) from error
    if updates > 1:  # the last evaluations may reach the leaderboard after the end of the job
        wait(_LAST_LOOK_S)
        feed.tell(loggers)
    return feed.position


class _BoardAway(Unavailable):
    """The leaderboard does not answer. A logger raises other errors."""


@dataclass(slots=True)
class _Rounds:
    """The leases of one agent: the newest one, their number, and the seconds of training in the
    earlier ones and in this one."""

    lease: str = ""
    count: int = 0
    before_s: float = 0.0
    present_s: float = 0.0

    def add(self, message: agent_pb2.Evaluation) -> dict[str, float]:
        """The round and the seconds of training at an evaluation of a policy in training."""
        lease = message.evaluation_id.partition("-")[0]
        if lease != self.lease:
            self.lease, self.count = lease, self.count + 1
            self.before_s, self.present_s = self.before_s + self.present_s, 0.0
        self.present_s = max(self.present_s, seconds(message.train_time))
        return {"round": float(self.count), "train_seconds": self.before_s + self.present_s}


class _Feed:
    """Yields each new evaluation once. Holds one page of identifiers, and a record for each
    agent."""

    def __init__(self, client: Client, job: job_pb2.Job) -> None:
        self._client, self._job = client, job
        self._token, self._seen = "", set[str]()
        self._rounds: dict[str, _Rounds] = {}
        self._described: set[tuple[int, str]] = set()
        self.position = 0

    def tell(self, loggers: Sequence[Logger]) -> None:
        for page in self._pages():
            points: dict[str, list[Point]] = {}
            for message in page:
                self.position += 1
                if (point := self._point(message)) is not None:
                    points.setdefault(message.agent, []).append(point)
            for number, logger in enumerate(loggers):
                if logger.position < self.position:
                    self._log(number, logger, points)
                    logger.commit(self.position)

    def _pages(self) -> Iterator[list[agent_pb2.Evaluation]]:
        while self._job.leaderboard:
            request = leaderboard_service_pb2.ListEvaluationsRequest(
                leaderboard=self._job.leaderboard, page_size=_PAGE_SIZE, page_token=self._token
            )
            try:
                response = self._client.leaderboard_service.ListEvaluations(request)
            except NotFound:  # not made yet
                return
            except (Unavailable, DeadlineExpired) as error:
                raise _BoardAway(error.message, reason=error.reason) from error
            new = [each for each in response.evaluations if each.evaluation_id not in self._seen]
            self._seen.update(each.evaluation_id for each in new)
            if new:
                yield new
            if not response.next_page_token:
                return
            self._token = response.next_page_token
            self._seen.clear()

    def _point(self, message: agent_pb2.Evaluation) -> Point | None:
        """The point of an evaluation; None if its mean is not finite."""
        values = {"env_steps": float(message.env_steps)}
        if message.purpose in _TRAINED:
            values |= self._rounds.setdefault(message.agent, _Rounds()).add(message)
        found = conversion.evaluation(message, self._job.create_time)
        if found is None:
            return None
        own = {"mean_return": found.mean, "lower_bound": found.lower, "upper_bound": found.upper}
        own |= {"episodes": float(found.episodes), **message.statistics}
        purpose = found.purpose.lower()
        values |= {f"{purpose}/{name}": value for name, value in own.items() if value is not None}
        time_s = message.create_time.seconds + message.create_time.nanos * 1e-9
        return Point(self.position, message.env_steps, time_s, values)

    def _log(self, number: int, logger: Logger, points: dict[str, list[Point]]) -> None:
        for name, every in points.items():
            new = [point for point in every if point.position > logger.position]
            if not new:
                continue
            if (number, name) not in self._described:
                self._described.add((number, name))
                logger.describe(AgentRun(self._job, self._agent(name)))
            logger.log(short_name(name), new)

    def _agent(self, name: str) -> Agent:
        request = leaderboard_service_pb2.GetAgentRequest(name=name)
        found = self._client.leaderboard_service.GetAgent(request).agent
        return conversion.agent(found, Objective(), self._job.create_time)

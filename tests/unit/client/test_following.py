"""What a follower learns of a job and its leaderboard: each evaluation once, in bounded memory,
whatever happens."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2, job_service_pb2
from podracer_client.jobs import EVERYTHING, Follower
from podracer_core.errors import DataCorrupted, Unavailable

NAME = "projects/default/jobs/j"
BOARD = "projects/default/leaderboards/j"


class Played:
    """Both servers, with one job that runs until `end` and a leaderboard of 250 evaluations, the
    7th not finite."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.count, self.away, self.circular = 250, 0, False
        self.job_service = self.leaderboard_service = self

    def WatchJob(self, request: Any) -> Iterator[Any]:
        return Stream(self.ended)

    def ListEvaluations(self, request: Any) -> Any:
        if self.away:
            self.away -= 1
            raise Unavailable("the leaderboard is away")
        first = int(request.page_token or 0)
        end = min(self.count, first + request.page_size)
        found = [
            agent_pb2.Evaluation(
                agent=f"{NAME}/agents/a0001",
                env_steps=number,
                mean=math.nan if number == 7 else 1.0,
            )
            for number in range(first + 1, end + 1)
        ]
        token = str(0 if self.circular else end) if end - first == request.page_size else ""
        return leaderboard_pb2.ListEvaluationsResponse(evaluations=found, next_page_token=token)

    def leaderboard(self, name: str) -> leaderboard_pb2.Leaderboard:
        return leaderboard_pb2.Leaderboard(name=name)

    def agents(self, name: str) -> list[leaderboard_pb2.Agent]:
        best = agent_pb2.Evaluation(agent=f"{NAME}/agents/a0001", env_steps=13, mean=9.0)
        return [leaderboard_pb2.Agent(name=f"{NAME}/agents/a0001", best_evaluation=best)]


class Stream:
    """Sends the job with an event, and once more when it has ended, or ends if it is cancelled."""

    def __init__(self, ended: threading.Event) -> None:
        self._ended, self._cancelled = ended, False

    def __iter__(self) -> Iterator[Any]:
        event = job_pb2.Event(position=1, kind="JOB_CREATED")
        for state in (job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_SUCCEEDED):
            job = job_pb2.Job(name=NAME, leaderboard=BOARD, state=state, event_position=1)
            yield job_service_pb2.WatchJobResponse(job=job, events=[event])
            while not (self._ended.wait(0.01) or self._cancelled):
                pass
            if self._cancelled:
                raise Unavailable("cancelled")

    def cancel(self) -> None:
        self._cancelled = True


@pytest.fixture
def played() -> Played:
    return Played()


def follower(played: Played, **options: Any) -> Follower:
    options = {"parts": EVERYTHING, "pause_s": 0.0, **options}
    return Follower(lambda: played, job_pb2.Job(name=NAME), **options)  # type: ignore[arg-type, return-value]


def test_each_evaluation_comes_once_also_if_the_reader_stops_between(played):
    following, steps, events = follower(played), list[int](), list[int]()

    def note(update: Any) -> None:
        steps.extend(each.env_steps for each in update.evaluations)
        events.extend(event.position for event in update.events)

    for update in following:
        note(update)
        if steps:
            break
    played.count = 420
    for update in following:
        note(update)
        if len(steps) >= 420:
            played.ended.set()
    assert (following.history.state, following.history.ended) == ("SUCCEEDED", True)
    played.count = 421
    for update in following.read():
        note(update)
    assert steps == list(range(1, 422))
    assert events == [1]


def test_a_history_is_bounded_and_says_what_is_left_out(played):
    following = follower(played, max_evaluations=100)
    played.ended.set()
    for _ in following:
        pass
    for _ in following.read():
        pass
    history = following.history
    assert (history.evaluation_count, len(history.sample)) == (249, 63)
    assert {each.env_steps for each in history.evaluations} >= {1, 5, 13}, (
        "every fourth, and the agent's best"
    )
    assert all(each.is_finite for each in history.evaluations)
    assert history.omissions == ("Of 249 evaluations an even choice of 63 is drawn.",)


def test_a_leaderboard_that_is_away_is_told_and_asked_again(played):
    played.away = 1
    lost = []
    for update in follower(played):
        if update.lost:
            lost.append(update.lost.message)
        if update.evaluations:
            played.ended.set()
    assert lost == ["the leaderboard is away"]


def test_a_listing_in_circles_is_refused(played):
    played.circular = True
    following = follower(played)
    played.ended.set()
    for _ in following:
        pass
    with pytest.raises(DataCorrupted, match="same page"):
        for _ in following.read():
            pass


def test_cancelling_ends_it(played):
    following = follower(played)
    for update in following:
        if update.evaluations:
            following.cancel()
    assert not following.history.ended

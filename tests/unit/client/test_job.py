"""A job's handle, with a server that is played."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from podracer.orchestrator.v1 import job_pb2, job_service_pb2
from podracer_client import Job


class PlayedJobs:
    """A job with so many events."""

    def __init__(self, events: int) -> None:
        self.events = events

    def GetJob(self, request: job_service_pb2.GetJobRequest) -> job_service_pb2.GetJobResponse:
        return job_service_pb2.GetJobResponse(job=self.message())

    def ListEvents(
        self, request: job_service_pb2.ListEventsRequest
    ) -> job_service_pb2.ListEventsResponse:
        positions = range(request.after_position + 1, self.events + 1)[: request.page_size]
        return job_service_pb2.ListEventsResponse(
            events=[job_pb2.Event(position=each) for each in positions]
        )

    def message(self) -> job_pb2.Job:
        return job_pb2.Job(name="projects/default/jobs/a", event_position=self.events)


def test_the_latest_events_are_those_of_now_not_of_when_the_handle_was_made():
    played = PlayedJobs(events=20)
    servers: Any = SimpleNamespace(job_service=played)
    job = Job(servers, played.message())
    assert [event.position for event in job.latest_events(3)] == [18, 19, 20]
    played.events = 25
    assert [event.position for event in job.latest_events(3)] == [23, 24, 25]

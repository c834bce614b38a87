"""RPC → records, in bounded memory: an even sample of a long history, the newest of many events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from typing import Generic, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from podracer.common.v1 import cohort_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import artifact_service_pb2, job_pb2
from podracer_client.display.numbers import seconds
from podracer_client.display.score import best_score, score_name
from podracer_client.display.snapshot import standing, state_text
from podracer_client.display.summary import retrained_text
from podracer_client.jobs.client import Client
from podracer_client.names import best_checkpoint_name, enum_word, moment, short_name
from podracer_client.report import conversion
from podracer_client.report.records import (
    Agent,
    Candidate,
    Evaluation,
    Event,
    JobReport,
    Objective,
    Pod,
    Problem,
)
from podracer_client.report.request import request_rows, searched_names
from podracer_core.errors import DataCorrupted, NotFound, PreconditionFailed
from podracer_core.storage.manifest import FILE_NAME, Manifest

Item = TypeVar("Item")

MAX_EVALUATIONS = 12_000
MAX_EVENTS = 20_000


def gather(
    client: Client,
    name: str,
    *,
    max_evaluations: int = MAX_EVALUATIONS,
    max_events: int = MAX_EVENTS,
) -> JobReport:
    """Everything about a job. Raises NotFound if the job does not exist."""
    found = client.job(name)
    job = found.message
    first = max(0, job.event_position - max_events)
    events = [
        conversion.event(event, job.create_time)
        for event in client.events(job.name, after_position=first)
    ]
    notes = (
        [f"Of {job.event_position:,} events the newest {max_events:,} were read."] if first else []
    )
    return _report(
        job,
        _history(client, job, max_evaluations),
        events,
        pods=tuple(map(conversion.pod, found.pods())),
        versions=(
            ("podracer-client", version("podracer-client")),
            *_checkpoint_libraries(client, job),
        ),
        notes=notes,
    )


class Thinning(Generic[Item]):
    """Keeps every n-th item; n doubles whenever `limit` is passed: a long stream leaves limit/2 to
    `limit` items."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stride = 1
        self.count = 0
        self.kept: list[Item] = []

    def add(self, item: Item) -> None:
        if self.count % self._stride == 0:
            self.kept.append(item)
            if len(self.kept) > self._limit:
                del self.kept[1::2]
                self._stride *= 2
        self.count += 1


@dataclass(frozen=True, slots=True)
class _History:
    """The data of a job on the leaderboard."""

    candidates: tuple[Candidate, ...] = ()
    agents: tuple[Agent, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    evaluation_count: int = 0
    note: str = ""


def _history(client: Client, job: job_pb2.Job, max_evaluations: int) -> _History:
    """The job's history; empty if the job has no leaderboard yet, or had none."""
    wanted, origin = conversion.objective(job.spec.objective), job.create_time
    if not job.leaderboard:
        return _History()
    thinned: Thinning[Evaluation] = Thinning(max_evaluations)
    try:
        board = client.leaderboard(job.leaderboard)
        agents = client.agents(job.leaderboard)
        for message in client.evaluations(job.leaderboard):
            evaluation = conversion.evaluation(message, origin)
            if evaluation is not None:
                thinned.add(evaluation)
    except NotFound:
        return _History()
    note = ""
    if len(thinned.kept) < thinned.count:
        note = f"Of {thinned.count:,} evaluations an even choice of {len(thinned.kept):,} is drawn."
    return _History(
        _candidates(board, wanted, origin),
        tuple(conversion.agent(agent, wanted, origin) for agent in agents),
        _with_landmarks(thinned.kept, agents, origin),
        thinned.count,
        note,
    )


def _candidates(
    board: leaderboard_pb2.Leaderboard, wanted: Objective, origin: Timestamp
) -> tuple[Candidate, ...]:
    found = (conversion.candidate(candidate, wanted, origin) for candidate in board.candidates)
    return tuple(candidate for candidate in found if candidate is not None)


def _with_landmarks(
    kept: list[Evaluation], agents: Iterable[leaderboard_pb2.Agent], origin: Timestamp
) -> tuple[Evaluation, ...]:
    """The kept evaluations and every agent's best and newest, which an even sample may have missed;
    oldest first."""
    found = dict.fromkeys(kept)
    for agent in agents:
        for field in ("best_evaluation", "latest_evaluation"):
            if agent.HasField(field):
                landmark = conversion.evaluation(getattr(agent, field), origin)
                if landmark is not None:
                    found.setdefault(landmark)
    return tuple(sorted(found, key=lambda each: (each.time_s or 0.0, each.agent, each.env_steps)))


def _report(
    job: job_pb2.Job,
    history: _History,
    events: list[Event],
    *,
    pods: tuple[Pod, ...],
    versions: tuple[tuple[str, str], ...],
    notes: list[str],
) -> JobReport:
    progress, origin, asked = job.progress, job.create_time, job.spec.environment
    end_s = conversion.time_of(job.end_time, origin)
    description = job.environment_description if job.HasField("environment_description") else None
    environment, called = asked.id or asked.entry_point, score_name(asked)
    return JobReport(
        name=short_name(job.name),
        uid=job.uid,
        environment_id=environment,
        labels=dict(job.spec.labels),
        state=state_text(job.state),
        outcome=enum_word(job_pb2.JobOutcome, job.outcome),
        problem=_problem(job.problem) if job.HasField("problem") else None,
        objective=conversion.objective(job.spec.objective),
        request=request_rows(job.spec),
        searched=searched_names(job.spec),
        created=moment(origin) or datetime.fromtimestamp(0, UTC),
        start_s=conversion.time_of(job.start_time, origin),
        end_s=end_s,
        now_s=_last_known_s(history, events) if end_s is None else end_s,
        env_steps=progress.env_steps,
        train_s=seconds(progress.train_time),
        time_to_target_s=seconds(progress.time_to_target)
        if progress.HasField("time_to_target")
        else None,
        cost_s=seconds(progress.cost),
        evaluation_cost_s=seconds(progress.evaluation_cost),
        agent_count=progress.agent_count,
        completed_rounds=progress.completed_rounds,
        best=conversion.evaluation(progress.best, origin, best_score(job))
        if progress.HasField("best")
        else None,
        ensemble=conversion.ensemble(job.ensemble, origin) if job.HasField("ensemble") else None,
        retrained=retrained_text(job) if job.HasField("retrained") else "",
        standing=tuple(standing(job).items()),
        candidates=history.candidates,
        agents=history.agents,
        evaluations=history.evaluations,
        evaluation_count=history.evaluation_count,
        events=tuple(events),
        pods=pods,
        environment=conversion.environment_rows(environment, description),
        versions=versions,
        notes=tuple(filter(None, [*notes, history.note])),
        score_name=called if called != "return" else "mean return",
    )


def _problem(message: cohort_pb2.Problem) -> Problem:
    return Problem(message.reason, message.message, message.detail)


def _last_known_s(history: _History, events: list[Event]) -> float:
    known = [
        *(event.time_s for event in events[-1:]),
        *(each.time_s or 0.0 for each in history.evaluations[-1:]),
    ]
    return max(known, default=0.0)


def _checkpoint_libraries(client: Client, job: job_pb2.Job) -> tuple[tuple[str, str], ...]:
    """Libraries and versions that wrote the best checkpoint; none if there is no best checkpoint
    any more."""
    if not job.progress.best.checkpoint.prefix:
        return ()
    request = artifact_service_pb2.DownloadRequest(
        name=best_checkpoint_name(job.name), paths=[FILE_NAME]
    )
    try:
        # a manifest has 16 MiB
        pieces = islice(client.artifact_service.Download(request, timeout=60.0), 20)
        content = b"".join(response.data for response in pieces)
        return tuple(sorted(Manifest.from_json(content, FILE_NAME).libraries.items()))
    except (NotFound, PreconditionFailed, DataCorrupted):
        return ()

"""TensorBoard: an event file for each agent in DIR/JOB/AGENT, and beside them a file with their
position.

The files are cut to the committed position before anything is added, so an interrupted run leaves
no duplicates."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from podracer.orchestrator.v1 import job_pb2
from podracer_client.files import make_folder
from podracer_client.loggers.logger import AgentRun, LogState, Point
from podracer_client.names import short_name
from podracer_client.outside import require
from podracer_core.errors import InvalidInput

_STATE = "podracer-log.json"
_FILE = "events.out.tfevents.0000000000.podracer"


class TensorBoardLogger:
    """See Logger."""

    def __init__(self, place: str, job: job_pb2.Job) -> None:
        self._records = require("tensorboard.summary.writer.record_writer", "tensorboard")
        self._events = require("tensorboard.compat.proto.event_pb2", "tensorboard")
        self._hparams = require("tensorboard.plugins.hparams.summary_v2", "tensorboard")
        self._folder = Path(place) / short_name(job.name)
        make_folder(self._folder)
        self._state = LogState(self._folder / _STATE, job)
        self.position = self._state.position
        for path in self._folder.glob(f"*/{_FILE}"):
            size = self._state.sizes.get(path.parent.name, 0)
            if path.stat().st_size > size:
                with path.open("r+b") as file:
                    file.truncate(size)

    def describe(self, run: AgentRun) -> None:
        if self._state.sizes.get(run.agent.name):
            return
        make_folder(self._folder / run.agent.name)
        first = self._events.Event(wall_time=time.time(), file_version="brain.Event:2")
        configuration = self._hparams.hparams_pb({**run.tags, **run.hyperparameters})
        about = self._events.Event(wall_time=time.time(), summary=configuration)
        self._append(run.agent.name, [first, about])

    def log(self, agent: str, points: Sequence[Point]) -> None:
        self._append(agent, map(self._event, points))

    def commit(self, position: int) -> None:
        self.position = position
        self._state.write(position)

    def close(self) -> None:
        pass

    def _event(self, point: Point) -> Any:
        event = self._events.Event(wall_time=point.time_s, step=point.step)
        for name, value in point.values.items():
            event.summary.value.add(tag=name, simple_value=value)
        return event

    def _append(self, agent: str, events: Iterable[Any]) -> None:
        path = self._folder / agent / _FILE
        try:
            with path.open("ab") as file:
                writer = self._records.RecordWriter(file)
                for event in events:
                    writer.write(event.SerializeToString())
                self._state.sizes[agent] = file.tell()
        except OSError as error:
            raise InvalidInput(f"cannot write {path}: {error.strerror}", path=path) from error

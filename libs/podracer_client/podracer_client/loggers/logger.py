"""The destinations of `podracer log`: their interface, the file with a position, how they are fed
and chosen."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_client.files import write_whole
from podracer_client.jobs import Agent, Client, Evaluation, Job, Objective
from podracer_client.names import short_name
from podracer_core.errors import InvalidInput

_INTERVAL_S = 5.0
_LAST_LOOK_S = 1.0
_TRAINED = ("PROGRESS", "CANDIDATE")
_LOGGERS = {"tensorboard": "TensorBoardLogger", "mlflow": "MlflowLogger", "wandb": "WandbLogger"}


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation: its scalars by name at `step`, the environment steps of the agent and its
    ancestors.

    position  its number among the evaluations of the job, from 1 upwards
    time_s    the time of the evaluation, in seconds since 1970
    """

    position: int
    step: int
    time_s: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class AgentRun:
    """The agent of a run."""

    job: job_pb2.Job
    agent: Agent

    @property
    def tags(self) -> dict[str, str]:
        """The job and the origin of the agent."""
        asked = self.job.spec.environment
        return {
            "job": short_name(self.job.name),
            "agent": self.agent.name,
            "environment": asked.id or asked.entry_point,
            "algorithm": self.agent.algorithm,
            "operation": self.agent.start.lower(),
            "parents": " ".join(self.agent.parents),
        }

    @property
    def hyperparameters(self) -> dict[str, bool | int | float | str]:
        """The hyperparameters; lists, such as the widths of layers, as text."""
        plain = self.agent.hyperparameters.items()
        return {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in plain
        }


class Logger(Protocol):
    """One destination for one job. Its errors end the command; the same command continues later.

    position  the number of the job's evaluations that are committed
    """

    position: int

    def describe(self, run: AgentRun) -> None:
        """Describe an agent before its first points in this process; the destination may have it
        already."""

    def log(self, agent: str, points: Sequence[Point]) -> None:
        """Add points to an agent's run."""

    def commit(self, position: int) -> None:
        """Store that all points up to `position` are logged."""

    def close(self) -> None:
        """End the runs."""


class LogState:
    """position: the number of logged evaluations of the job; `sizes`: bytes of the log files at
    that position."""

    def __init__(self, path: Path, job: job_pb2.Job) -> None:
        """Raises InvalidInput if the file belongs to another job, or cannot be read."""
        self._path, self._uid = path, job.uid
        self.position = 0
        self.sizes: dict[str, int] = {}
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            uid = values["job"]
            self.position = int(values["position"])
            self.sizes = dict(values["sizes"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"cannot read {path}: {error}", path=path) from error
        if uid != job.uid:
            raise InvalidInput(
                f"{path} belongs to another job named {job.name}; choose another destination",
                path=path,
            )

    def write(self, position: int) -> None:
        """Write the file atomically."""
        self.position = position
        values = {"job": self._uid, "position": position, "sizes": self.sizes}
        write_whole(self._path, json.dumps(values).encode())


def follow(
    client: Client,
    job: Job,
    loggers: Sequence[Logger],
    *,
    wait: Callable[[float], object] = time.sleep,
) -> int:
    """Log the job's evaluations until it has ended; returns their number.

    Raises Unavailable if the servers do not answer for a minute, and the errors of the loggers.
    """
    feed = _Feed(client, job.message)
    watch = job.watch(parts=("evaluations",), pause_s=_INTERVAL_S, max_evaluations=0, max_events=0)
    updates = 0
    for update in watch:
        updates += not update.is_of_board
        feed.tell(loggers, update.evaluations)
    if updates > 1:  # the last evaluations may reach the leaderboard after the end of the job
        wait(_LAST_LOOK_S)
    for update in watch.read():
        feed.tell(loggers, update.evaluations)
    return feed.position


@dataclass(slots=True)
class _Rounds:
    """The leases of one agent: the newest one, their number, and the seconds of training in the
    earlier ones and in this one."""

    lease: str = ""
    count: int = 0
    before_s: float = 0.0
    present_s: float = 0.0

    def add(self, evaluation: Evaluation) -> dict[str, float]:
        """The round and the seconds of training at an evaluation of a policy in training."""
        if evaluation.lease != self.lease:
            self.lease, self.count = evaluation.lease, self.count + 1
            self.before_s, self.present_s = self.before_s + self.present_s, 0.0
        self.present_s = max(self.present_s, evaluation.train_s)
        return {"round": float(self.count), "train_seconds": self.before_s + self.present_s}


class _Feed:
    """Tells loggers of evaluations. Holds a record for each agent."""

    def __init__(self, client: Client, job: job_pb2.Job) -> None:
        self._client, self._job = client, job
        self._rounds: dict[str, _Rounds] = {}
        self._described: set[tuple[int, str]] = set()
        self.position = 0

    def tell(self, loggers: Sequence[Logger], evaluations: Sequence[Evaluation]) -> None:
        points: dict[str, list[Point]] = {}
        for evaluation in evaluations:
            self.position += 1
            if (point := self._point(evaluation)) is not None:
                points.setdefault(evaluation.agent, []).append(point)
        for number, logger in enumerate(loggers):
            if logger.position < self.position:
                self._log(number, logger, points)
                logger.commit(self.position)

    def _point(self, found: Evaluation) -> Point | None:
        """The point of an evaluation; None if its mean is not finite."""
        values = {"env_steps": float(found.env_steps)}
        if found.purpose in _TRAINED:
            values |= self._rounds.setdefault(found.agent, _Rounds()).add(found)
        if not found.is_finite:
            return None
        own = {"mean_return": found.mean, "lower_bound": found.lower, "upper_bound": found.upper}
        own |= {"episodes": float(found.episodes), **found.statistics}
        purpose = found.purpose.lower()
        values |= {f"{purpose}/{name}": value for name, value in own.items() if value is not None}
        return Point(self.position, found.env_steps, found.unix_s, values)

    def _log(self, number: int, logger: Logger, points: dict[str, list[Point]]) -> None:
        for name, every in points.items():
            new = [point for point in every if point.position > logger.position]
            if not new:
                continue
            if (number, name) not in self._described:
                self._described.add((number, name))
                logger.describe(AgentRun(self._job, self._agent(name)))
            logger.log(name, new)

    def _agent(self, name: str) -> Agent:
        request = leaderboard_service_pb2.GetAgentRequest(name=f"{self._job.name}/agents/{name}")
        found = self._client.leaderboard_service.GetAgent(request).agent
        return Agent.of(found, Objective(), self._job.create_time)


def open_logger(target: str, job: job_pb2.Job) -> Logger:
    """`tensorboard:DIR`, `mlflow:URI` or `wandb:PROJECT`. Raises InvalidInput for any other, or if
    a package is missing."""
    kind, _, place = target.partition(":")
    if kind not in _LOGGERS or not place:
        message = f"--to {kind}: expected tensorboard:DIR, mlflow:URI or wandb:PROJECT"
        raise InvalidInput(message, reason="UNKNOWN_DESTINATION")
    logger: Logger = getattr(import_module(f"podracer_client.loggers.{kind}"), _LOGGERS[kind])(
        place, job
    )
    return logger

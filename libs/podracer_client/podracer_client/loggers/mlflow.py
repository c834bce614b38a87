"""MLflow: an experiment for each job, a run for each agent.

A tag of the experiment holds the position of the runs. A server or a database stores a metric once,
even if it is sent twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from podracer.orchestrator.v1 import job_pb2
from podracer_client.loggers.logger import AgentRun, Point
from podracer_client.names import short_name
from podracer_client.outside import mlflow_client, require, within
from podracer_core.errors import InvalidInput

_TIMEOUT_S = 120.0
_METRICS = 1000  # that MLflow takes at once
_POSITION, _JOB, _AGENT = "podracer.position", "podracer.job_uid", "podracer.agent"


class MlflowLogger:
    """See Logger."""

    def __init__(self, uri: str, job: job_pb2.Job) -> None:
        self._client: Any = within(_TIMEOUT_S, "mlflow", lambda: mlflow_client(uri))
        self._entities = require("mlflow.entities", "mlflow")
        self._runs: dict[str, str] = {}
        name = f"podracer/{short_name(job.name)}"
        experiment = self._call("get_experiment_by_name", name)
        tags = experiment.tags if experiment else {_JOB: job.uid}
        if tags.get(_JOB) != job.uid:
            raise InvalidInput(
                f"the MLflow experiment {name} belongs to another job of that name; rename the "
                "experiment"
            )
        self.position = int(tags.get(_POSITION, 0))
        self._experiment = (
            experiment.experiment_id
            if experiment
            else self._call("create_experiment", name, tags={_JOB: job.uid})
        )

    def describe(self, run: AgentRun) -> None:
        name = run.agent.name
        found = self._call(
            "search_runs", [self._experiment], f"tags.`{_AGENT}` = '{name}'", max_results=1
        )
        if found:
            self._runs[name] = found[0].info.run_id
            self._call("update_run", self._runs[name], status="RUNNING")
            return
        tags = {f"podracer.{word}": value for word, value in run.tags.items()}
        created = self._call("create_run", self._experiment, tags=tags, run_name=name)
        self._runs[name] = created.info.run_id
        params = [
            self._entities.Param(word, str(value)) for word, value in run.hyperparameters.items()
        ]
        for part in _parts(params, 100):
            self._call("log_batch", self._runs[name], params=part)

    def log(self, agent: str, points: Sequence[Point]) -> None:
        metric = self._entities.Metric
        metrics = [
            metric(name, value, round(point.time_s * 1000), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for part in _parts(metrics, _METRICS):
            self._call("log_batch", self._runs[agent], metrics=part)

    def commit(self, position: int) -> None:
        self.position = position
        self._call("set_experiment_tag", self._experiment, _POSITION, str(position))

    def close(self) -> None:
        for run in self._runs.values():
            self._call("set_terminated", run)

    def _call(self, method: str, *arguments: Any, **named: Any) -> Any:
        return within(
            _TIMEOUT_S, "mlflow", lambda: getattr(self._client, method)(*arguments, **named)
        )


def _parts(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]

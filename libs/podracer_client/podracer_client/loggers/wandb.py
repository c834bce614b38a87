"""Weights & Biases: a run for each agent, grouped by the job.

A file in the folder `wandb` (WANDB_DIR) holds the position of the runs. The step of a row is its
position in the job, and the service drops a row whose step a run already has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from podracer.orchestrator.v1 import job_pb2
from podracer_client.files import make_folder
from podracer_client.loggers.logger import AgentRun, LogState, Point
from podracer_client.names import short_name
from podracer_client.outside import require, within

_TIMEOUT_S = 120.0
_MAX_OPEN = 32
"""Open runs at a time. The oldest one is closed for a new one, and continued when its agent has
more points."""


class WandbLogger:
    """See Logger."""

    def __init__(self, project: str, job: job_pb2.Job) -> None:
        self._wandb = require("wandb", "wandb")
        self._entity, _, self._project = project.rpartition("/")
        self._folder = Path(os.environ.get("WANDB_DIR", "."))
        make_folder(self._folder / "wandb")
        name = f"podracer-log-{self._entity}-{self._project}-{short_name(job.name)}.json"
        self._state = LogState(self._folder / "wandb" / name, job)
        self.position = self._state.position
        self._known: dict[str, AgentRun] = {}
        self._open: dict[str, Any] = {}

    def describe(self, run: AgentRun) -> None:
        self._known[run.agent.name] = run

    def log(self, agent: str, points: Sequence[Point]) -> None:
        run = self._run(self._known[agent])

        def send() -> None:
            for point in points:
                run.log({**point.values, "time_s": point.time_s}, step=point.position)

        within(_TIMEOUT_S, "wandb", send)

    def commit(self, position: int) -> None:
        self.position = position
        self._state.write(position)

    def close(self) -> None:
        for name in list(self._open):
            self._end(name)

    def _end(self, name: str) -> None:
        within(_TIMEOUT_S, "wandb", self._open.pop(name).finish)

    def _run(self, about: AgentRun) -> Any:
        name = about.agent.name
        if name not in self._open:
            if len(self._open) >= _MAX_OPEN:
                self._end(next(iter(self._open)))
            self._open[name] = within(_TIMEOUT_S, "wandb", lambda: self._start(about))
        return self._open[name]

    def _start(self, about: AgentRun) -> Any:
        tags = about.tags
        quiet = {
            "silent": True,
            "console": "off",
            "disable_git": True,
            "disable_code": True,
            "x_disable_stats": True,
        }
        # What W&B keeps of a process has its arguments, and these may hold the password of another
        # destination.
        quiet |= {
            "x_disable_meta": True,
            "x_disable_machine_info": True,
            "x_save_requirements": False,
        }
        settings = self._wandb.Settings(init_timeout=60, **quiet)
        run = self._wandb.init(
            entity=self._entity or None,
            project=self._project,
            id=f"{about.job.uid[:16]}-{tags['agent']}",
            name=tags["agent"],
            group=tags["job"],
            tags=[tags["algorithm"], tags["operation"], tags["environment"][:64]],
            config={**tags, **about.hyperparameters},
            dir=str(self._folder),
            resume="allow",
            reinit="create_new",
            save_code=False,
            settings=settings,
        )
        run.define_metric("*", step_metric="env_steps")
        return run

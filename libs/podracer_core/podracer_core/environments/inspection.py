"""Inspects an environment before any agent exists: its spaces, and whether it works."""

from __future__ import annotations

import logging
import os
import time
from typing import Any, NamedTuple

from podracer_core.catalogue.environments import EnvironmentSpec, find_environment
from podracer_core.catalogue.spaces import Space, from_json
from podracer_core.environments.processes.child_process import ChildLost, ChildProcess
from podracer_core.environments.processes.exchange import create_memory
from podracer_core.environments.processes.local_rows import LocalRows, MakeEnvironment
from podracer_core.environments.registry import batched_class, gymnasium_spec, make_vec_environment
from podracer_core.environments.spaces import from_gymnasium
from podracer_core.errors import UserCodeFailed

_logger = logging.getLogger(__name__)


class Inspection(NamedTuple):
    """The properties of an environment, before spaces are flattened for a batch; see VecEnvironment's attributes.

    warnings         sentences on what trains but may surprise
    start_s, step_s  seconds that one environment and one step of it take; 0 if unknown
    waits            a step waits more than it computes, as a simulator behind a connection does
    """

    observation_space: Space
    action_space: Space
    max_episode_steps: int | None
    deterministic_evaluation: bool = False
    preparation: str = ""
    warnings: tuple[str, ...] = ()
    start_s: float = 0.0
    step_s: float = 0.0
    waits: bool = False


def inspect_environment(spec: EnvironmentSpec, timeout_s: float = 120.0) -> Inspection:
    """Start one environment in its own process and try it with `Checker`; an id of Gymnasium's own is only started.

    Raises InvalidInput if a value is outside its space or no algorithm could act in it, and UserCodeFailed with
    the user's traceback if the code raises, its process dies, or everything together takes longer than `timeout_s`.
    """
    if batched_class(spec) is not None:
        environment = make_vec_environment(spec, 1)
        spaces = from_gymnasium(environment.observation_space), from_gymnasium(environment.action_space)
        environment.close()
        if environment.preparation:
            _logger.info("%s: %s", spec.name, environment.preparation)
        return Inspection(
            *spaces, environment.max_episode_steps, environment.deterministic_evaluation, environment.preparation
        )
    spec = gymnasium_spec(spec)
    memory = create_memory()
    children = [ChildProcess(spec, memory)]
    deadline = time.monotonic() + timeout_s
    try:
        children[0].send("open", environment=spec.to_json(), count=1, pictures=False)
        opened = children[0].receive(deadline)
        report = {}
        if not (spec.id and find_environment(spec.id).is_gymnasiums):
            children[0].send("inspect")
            report = children[0].receive(deadline)
    except ChildLost as lost:
        printed = children[0].output.after("")
        raise UserCodeFailed(lost.message, user_traceback=printed, environment=spec.name) from lost
    finally:
        ChildProcess.end_all(children)
        os.close(memory)
    return _inspection(opened, report)


def inspect_in_process(make: MakeEnvironment, spec: EnvironmentSpec) -> Inspection:
    """`inspect_environment` of what `make` makes, in this process. The code's own exceptions are raised unchanged."""
    rows = LocalRows(make, spec, 1)
    try:
        return _inspection(rows.open(), rows.ask_first("inspect")[0])
    finally:
        rows.close()


def _inspection(opened: dict[str, Any], report: dict[str, Any]) -> Inspection:
    """The inspection of rows that describe themselves as `opened` (see `Rows`), with the report of `Checker`."""
    return Inspection(
        from_json(opened["observation_space"]),
        from_json(opened["action_space"]),
        opened["max_episode_steps"],
        opened.get("deterministic_evaluation", False),
        opened.get("preparation", ""),
        tuple(report.get("warnings", ())),
        opened.get("start_s", 0.0),
        report.get("step_s", 0.0),
        report.get("waits", False),
    )

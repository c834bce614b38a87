"""Inspects an environment before any agent exists: its spaces, and whether it works."""

from __future__ import annotations

import logging
import os
import time
from typing import NamedTuple

from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.catalogue.spaces import Space, from_json
from podracer_core.environments.processes.child_process import ChildLost, ChildProcess
from podracer_core.environments.processes.exchange import create_memory
from podracer_core.environments.registry import batched_class, gymnasium_spec, make_vec_environment
from podracer_core.environments.spaces import from_gymnasium
from podracer_core.errors import UserCodeFailed

_STEPS = 10
_logger = logging.getLogger(__name__)


class Inspection(NamedTuple):
    """The properties of an environment, before spaces are flattened for a batch; see VecEnvironment's attributes."""

    observation_space: Space
    action_space: Space
    max_episode_steps: int | None
    deterministic_evaluation: bool
    preparation: str
    warnings: tuple[str, ...] = ()
    step_s: float = 0.0  # of one step, with its part of what inspection does besides; 0: not measured


def inspect_environment(spec: EnvironmentSpec, timeout_s: float = 60.0) -> Inspection:
    """Start one environment in its own process, reset it, take a few random steps and check everything it returns.

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
    children = [ChildProcess(spec.name, memory)]
    deadline = time.monotonic() + timeout_s
    try:
        children[0].send("open", environment=spec.to_json(), count=1, pictures=False)
        opened = children[0].receive(deadline)
        began_at = time.monotonic()
        children[0].send("inspect", steps=_STEPS)
        children[0].receive(deadline)
        step_s = (time.monotonic() - began_at) / _STEPS
    except ChildLost as lost:
        printed = children[0].output.after("")
        raise UserCodeFailed(lost.message, user_traceback=printed, environment=spec.name) from lost
    finally:
        ChildProcess.end_all(children)
        os.close(memory)
    spaces = from_json(opened["observation_space"]), from_json(opened["action_space"])
    return Inspection(
        *spaces,
        opened["max_episode_steps"],
        opened.get("deterministic_evaluation", False),
        opened.get("preparation", ""),
        step_s=step_s,
    )

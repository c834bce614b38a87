"""Inspects an environment before any agent exists: its spaces, and whether it works."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

from podracer_core.catalogue import EnvironmentSpec, Space, find_environment, from_json
from podracer_core.environments.processes import LocalRows, MakeEnvironment, RowProcesses
from podracer_core.environments.registry import batched_class, gymnasium_spec, make_vec_environment
from podracer_core.environments.spaces import from_gymnasium

_logger = logging.getLogger(__name__)


class Inspection(NamedTuple):
    """The properties of an environment, before spaces are flattened for a batch; see
    VecEnvironment's attributes.

    warnings         sentences on what trains but may surprise
    start_s, step_s  seconds that one environment and one step of it take; 0 if unknown
    waits            a step waits more than it computes, as a simulator behind a connection does
    observation_origin  the spec's, or one that keeps apart what float32 does not
    """

    observation_space: Space
    action_space: Space
    max_episode_steps: int | None
    deterministic_evaluation: bool = False
    preparation: str = ""
    warnings: Sequence[str] = ()
    start_s: float = 0.0
    step_s: float = 0.0
    waits: bool = False
    observation_origin: tuple[float, ...] = ()


def inspect_environment(
    spec: EnvironmentSpec, timeout_s: float = 120.0, make: MakeEnvironment | None = None
) -> Inspection:
    """Start one environment and try it with `Checker`; an id of Gymnasium's own is only started.
    `make`: makes it in this process, else it has its own.

    Raises InvalidInput if a value is outside its space or no algorithm could act in it. Raises
    UserCodeFailed with the user's traceback if the code raises, its process dies, or everything
    together takes longer than `timeout_s`; in this process the code's own exceptions are raised
    unchanged."""
    if batched_class(spec) is not None:
        environment = make_vec_environment(spec, 1)
        observed = environment.original_space or from_gymnasium(environment.observation_space)
        spaces = observed, from_gymnasium(environment.action_space)
        environment.close()
        if environment.preparation:
            _logger.info("%s: %s", spec.name, environment.preparation)
        return Inspection(
            *spaces,
            environment.max_episode_steps,
            environment.deterministic_evaluation,
            environment.preparation,
        )
    end = time.monotonic() + timeout_s
    spec = gymnasium_spec(spec)
    rows = LocalRows(make, spec, 1) if make else RowProcesses(spec, 1, 1, start_timeout_s=timeout_s)
    try:
        found = rows.open()
        rows.step_timeout_s = end - time.monotonic()
        if make or not (spec.id and find_environment(spec.id).is_gymnasiums):
            found |= rows.ask_first("inspect")[0]
    finally:
        rows.close()
    spaces = from_json(found["observation_space"]), from_json(found["action_space"])
    rest = {name: found[name] for name in Inspection._fields[len(spaces) :] if name in found}
    rest["observation_origin"] = spec.observation_origin or tuple(
        rest.get("observation_origin", ())
    )
    return Inspection(*spaces, **rest)

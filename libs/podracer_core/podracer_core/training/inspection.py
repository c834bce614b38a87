"""An environment's spaces, for a job that is being validated."""

from __future__ import annotations

from podracer.common.v1 import environment_pb2
from podracer_core.catalogue.environments import EnvironmentSpec, find_environment
from podracer_core.catalogue.messages import description_to_message
from podracer_core.environments.inspection import inspect_environment


def inspected(spec: EnvironmentSpec, timeout_s: float) -> environment_pb2.EnvironmentDescription:
    """Start the environment in a process of its own and describe it. Errors as of `inspect_environment`."""
    found = inspect_environment(spec, timeout_s)
    preparation = found.preparation
    for name, path in spec.data.items():  # that of a copy here, which means nothing to whoever reads it elsewhere
        preparation = preparation.replace(str(path), name)
    return description_to_message(
        found.observation_space,
        found.action_space,
        found.max_episode_steps,
        find_environment(spec.id).backend if spec.id else "gymnasium",
        deterministic_evaluation=found.deterministic_evaluation,
        preparation=preparation,
    )

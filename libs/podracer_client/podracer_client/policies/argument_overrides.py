"""Other arguments of the environment that a policy was trained in: `--set NAME=VALUE`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from podracer.common.v1 import environment_pb2
from podracer_client.policies.environment_files import trained_environment
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.catalogue.messages import environment_to_message
from podracer_core.config.document import parse_yaml
from podracer_core.errors import InvalidInput

__all__ = ["changed_environment", "parsed_arguments", "with_arguments"]


def parsed_arguments(settings: Sequence[str]) -> dict[str, Any]:
    """Values by name, YAML as in a job file. Raises InvalidInput for what is no NAME=VALUE, or is there twice."""
    arguments: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidInput(f"--set {setting}: expected NAME=VALUE, an argument of the environment")
        if name in arguments:
            raise InvalidInput(f"--set {name} is there twice")
        arguments[name] = parse_yaml(value, f"--set {name}").root.plain()
    return arguments


def with_arguments(environment: EnvironmentSpec, arguments: Mapping[str, Any]) -> EnvironmentSpec:
    """`environment` with these arguments in place of its own. Raises InvalidInput for one of its data sets."""
    for name in arguments:
        if name in environment.data:
            raise InvalidInput(f"--set {name}: that is a data set, which came with the job; it cannot be another one")
    return replace(environment, kwargs={**environment.kwargs, **arguments})


def changed_environment(checkpoint: Path, arguments: Mapping[str, Any]) -> environment_pb2.EnvironmentSpec | None:
    """The environment that a checkpoint was trained in, with these arguments; None where there are none."""
    if not arguments:
        return None
    return environment_to_message(with_arguments(trained_environment(checkpoint), arguments))

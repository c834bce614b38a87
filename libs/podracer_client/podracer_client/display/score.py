"""What the number is called by which a job's evaluations rank."""

from __future__ import annotations

from collections.abc import Mapping

from podracer.common.v1 import environment_pb2
from podracer_core.catalogue.environments import BUILT_IN
from podracer_core.catalogue.messages import arguments_from_message

__all__ = ["score_name"]


def score_name(environment: environment_pb2.EnvironmentSpec, changes: Mapping[str, object] | None = None) -> str:
    """`Sharpe` of a market whose agents are ranked by that; `return` elsewhere, also of an environment unknown here.
    `changes` are arguments that take the place of its own."""
    if environment.id not in BUILT_IN:
        return "return"
    arguments = arguments_from_message(environment.kwargs, "environment.kwargs")
    return BUILT_IN[environment.id].score_name({**arguments, **(changes or {})})

"""Which environments there are: the built-in ones with their spaces, installed ones, and Gymnasium's."""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping

from podracer_core.catalogue.environments.classic_control import CLASSIC_CONTROL
from podracer_core.catalogue.environments.info import EnvironmentInfo
from podracer_core.errors import FieldViolation, InvalidInput

__all__ = ["BUILT_IN", "ENTRY_POINT_GROUP", "find_environment"]

ENTRY_POINT_GROUP = "podracer.environments"

BUILT_IN: Mapping[str, EnvironmentInfo] = {info.id: info for info in (*CLASSIC_CONTROL,)}

_GYMNASIUM_ID = re.compile(r"^(?:[\w.]+:)?(?:[\w-]+/)?[\w.-]+-v\d+$")


def find_environment(environment_id: str) -> EnvironmentInfo:
    """What is known of `environment_id`; InvalidInput with the nearest names if nobody knows it.

    Where Gymnasium is not installed (an orchestrator's image), an id of its form is taken on trust: inspection tells.
    """
    if environment_id in BUILT_IN:
        return BUILT_IN[environment_id]
    installed = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    if environment_id in installed.names:
        value = installed[environment_id].value
        return EnvironmentInfo(environment_id, f"installed: {value}", backend="installed", factory=value)
    known = _gymnasium_ids()
    # An id with a module prefix is registered only by importing the user's module, which is left to its own process.
    on_trust = known is None or ":" in environment_id
    if (known and environment_id in known) or (on_trust and _GYMNASIUM_ID.match(environment_id)):
        return EnvironmentInfo(environment_id, "Gymnasium's, in processes", backend="gymnasium")
    names = sorted({*BUILT_IN, *installed.names, *(known or ())})
    nearest = difflib.get_close_matches(environment_id, names, n=3, cutoff=0.5) or sorted(BUILT_IN)
    message = f"unknown environment {environment_id!r}; did you mean {' or '.join(nearest)}?"
    raise InvalidInput(
        message,
        violations=[FieldViolation("environment.id", message)],
        reason="UNKNOWN_ENVIRONMENT",
        environment=environment_id,
    )


def _gymnasium_ids() -> frozenset[str] | None:
    """The ids that Gymnasium knows, or None where it is not installed."""
    if importlib.util.find_spec("gymnasium") is None:
        return None
    import gymnasium  # late: it costs NumPy and a third of a second, and built-in ids do without

    return frozenset(gymnasium.registry)

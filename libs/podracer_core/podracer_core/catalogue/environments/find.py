"""Which environments there are: the built-in ones with their spaces, installed ones, and Gymnasium's."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from podracer_core.catalogue.built_in import BuiltIn
from podracer_core.catalogue.environments.gymnasium_registry import (
    gymnasium_info,
    newest,
    registered_ids,
    versionless,
)
from podracer_core.catalogue.environments.info import EnvironmentInfo
from podracer_core.catalogue.environments.installed import installed_environments
from podracer_core.errors import FieldViolation, InvalidInput, PreconditionFailed

__all__ = ["BUILT_IN", "broken_environments", "find_environment", "gymnasium_environments", "known_environments"]

BUILT_IN: Mapping[str, EnvironmentInfo] = BuiltIn(
    "id",
    "podracer_core.environments.classic_control_info",
    "podracer_core.environments.mujoco_info",
    "podracer_core.environments.point_chasing_info",
    "podracer_core.environments.stock_trading_info",
)

_GYMNASIUM_ID = re.compile(r"^(?:[\w.]+:)?(?:[\w-]+/)?[\w.-]+-v\d+$")


def known_environments() -> dict[str, EnvironmentInfo]:
    """The built-in environments, then those of installed packages, by id."""
    installed = {each.id: each.info for each in installed_environments(BUILT_IN) if each.info is not None}
    return {**BUILT_IN, **installed}


def broken_environments() -> list[str]:
    """What is wrong with the environments of installed packages that are left out, one message each."""
    return [each.problem for each in installed_environments(BUILT_IN) if each.info is None]


def gymnasium_environments() -> dict[str, EnvironmentInfo]:
    """Gymnasium's own and its plug-ins', the newest version of each, without those that are built in here.

    Raises PreconditionFailed where Gymnasium is not installed.
    """
    ids = registered_ids()
    if ids is None:
        raise PreconditionFailed("Gymnasium is not installed here")
    ours = {versionless(environment_id) for environment_id in BUILT_IN}
    return {name: gymnasium_info(name) for name in newest(ids) if versionless(name) not in ours}


def find_environment(environment_id: str) -> EnvironmentInfo:
    """What is known of `environment_id`; InvalidInput with the nearest names if nobody knows it.

    Where Gymnasium is not installed (an orchestrator's image), an id of its form is taken on trust: inspection tells.
    """
    if environment_id in BUILT_IN:
        return BUILT_IN[environment_id]
    installed = {each.id: each for each in installed_environments(BUILT_IN)}
    if environment_id in installed:
        info = installed[environment_id].info
        if info is None:
            raise _refused(installed[environment_id].problem, "BROKEN_ENVIRONMENT", environment_id)
        return info
    known = registered_ids()
    # An id with a module prefix is registered only by importing the user's module, which is left to its own process.
    on_trust = known is None or ":" in environment_id
    if (known and environment_id in known) or (on_trust and _GYMNASIUM_ID.match(environment_id)):
        return gymnasium_info(environment_id)
    nearest = _nearest(environment_id, [*BUILT_IN, *installed, *newest(known or [])])
    advice = f"did you mean {' or '.join(nearest)}?" if nearest else "`podracer environments` lists what there is"
    raise _refused(f"unknown environment {environment_id!r}; {advice}", "UNKNOWN_ENVIRONMENT", environment_id)


def _nearest(environment_id: str, ids: list[str]) -> list[str]:
    """Up to three of `ids` that are spelt alike, however they are capitalized."""
    by_spelling = {known.casefold(): known for known in sorted(ids)}
    found = difflib.get_close_matches(environment_id.casefold(), by_spelling, n=3, cutoff=0.5)
    return [by_spelling[spelling] for spelling in found]


def _refused(message: str, reason: str, environment_id: str) -> InvalidInput:
    violation = FieldViolation("environment.id", message)
    return InvalidInput(message, violations=[violation], reason=reason, environment=environment_id)

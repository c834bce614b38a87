"""What Gymnasium has registered: its own environments and those of packages that plug into it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from podracer_core.catalogue.environments.info import ArgumentInfo, EnvironmentInfo

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

__all__ = ["gymnasium_info", "newest", "registered_ids", "versionless"]


def registered_ids() -> list[str] | None:
    """Every id that Gymnasium knows, or None where it is not installed."""
    registry = _registry()
    return None if registry is None else list(registry)


def newest(ids: list[str]) -> list[str]:
    """The ids without older versions, and without what Gymnasium registers only to say that it has moved away."""
    registry = _registry() or {}
    latest: dict[str, str] = {}
    for environment_id in ids:
        if getattr(registry[environment_id].entry_point, "__module__", "") == "gymnasium.envs":
            continue
        name = versionless(environment_id)
        if name not in latest or _version(environment_id) > _version(latest[name]):
            latest[name] = environment_id
    return list(latest.values())


def gymnasium_info(environment_id: str) -> EnvironmentInfo:
    """What the registry says of an id; little more than the id where Gymnasium or the id is not there."""
    spec = (_registry() or {}).get(environment_id)
    description = "Gymnasium's, in processes"
    if spec is None:
        module, colon, _ = environment_id.partition(":")
        package = module if colon else "gymnasium"
        return EnvironmentInfo(environment_id, description, backend="gymnasium", package=package)
    entry_point = spec.entry_point
    return EnvironmentInfo(
        environment_id,
        f"{description}: {entry_point}" if isinstance(entry_point, str) else description,
        backend="gymnasium",
        max_episode_steps=spec.max_episode_steps,
        arguments=_arguments(spec.kwargs),
        package=_package(entry_point),
    )


def versionless(environment_id: str) -> str:
    """`Ant` of `Ant-v5`."""
    return re.sub(r"-v\d+$", "", environment_id)


def _version(environment_id: str) -> int:
    return int(environment_id.rpartition("-v")[2]) if versionless(environment_id) != environment_id else -1


def _arguments(kwargs: Mapping[str, Any]) -> tuple[ArgumentInfo, ...]:
    """What the id itself sets, as far as a job file can say it."""
    found = []
    for name, value in kwargs.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            continue
        found.append(ArgumentInfo(name, "as it is registered with Gymnasium", value))
    return tuple(found)


def _package(entry_point: object) -> str:
    module = entry_point.partition(":")[0] if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    package: str = module.partition(".")[0]
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return package


def _registry() -> Mapping[str, EnvSpec] | None:
    if importlib.util.find_spec("gymnasium") is None:
        return None
    import gymnasium  # late: it costs NumPy and a third of a second, and built-in ids do without

    return gymnasium.registry

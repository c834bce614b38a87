"""The environments: built-in and installed ones, with what they say of themselves, and
Gymnasium's."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from podracer_core.catalogue.environments.info import ArgumentInfo, EnvironmentInfo
from podracer_core.catalogue.environments.packages import package_advice
from podracer_core.catalogue.environments.spec import EnvironmentSpec
from podracer_core.catalogue.extensions import BuiltIn, package_of
from podracer_core.config import did_you_mean
from podracer_core.errors import InvalidInput, PreconditionFailed

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec


BUILT_IN: Mapping[str, EnvironmentInfo] = BuiltIn(
    "id",
    "podracer_core.environments.classic_control_info",
    "podracer_core.environments.mujoco_info",
    "podracer_core.environments.point_chasing_info",
    "podracer_core.environments.mjlab_info",
)

_GYMNASIUM_ID = re.compile(r"^(?:[\w.]+:)?(?:[\w-]+/)?[\w.-]+-v\d+$")


def known_environments() -> dict[str, EnvironmentInfo]:
    """The built-in environments and those of installed packages, by id. Ids with a version come
    first: one without stands for a family of tasks, such as mjlab's."""
    installed = {each.id: each.info for each in installed_environments() if each.info is not None}
    known = {**BUILT_IN, **installed}
    return dict(sorted(known.items(), key=lambda item: versionless(item[0]) == item[0]))


def broken_environments() -> list[str]:
    """A message for each broken environment of an installed package."""
    return [each.problem for each in installed_environments() if each.info is None]


def gymnasium_environments() -> dict[str, EnvironmentInfo]:
    """Gymnasium's environments and its plug-ins', the newest version of each, without those that
    are built in here.

    Raises PreconditionFailed if Gymnasium is not installed.
    """
    ids = registered_ids()
    if ids is None:
        raise PreconditionFailed("Gymnasium is not installed here")
    ours = {versionless(environment_id) for environment_id in BUILT_IN}
    return {name: gymnasium_info(name) for name in newest(ids) if versionless(name) not in ours}


def find_environment(environment_id: str) -> EnvironmentInfo:
    """The description of `environment_id`. Raises InvalidInput with the nearest names if it is
    unknown.

    If Gymnasium is not installed (an orchestrator's image), an id of its form is accepted:
    inspection checks it."""
    if environment_id in BUILT_IN:
        return BUILT_IN[environment_id]
    installed = {each.id: each for each in installed_environments()}
    if environment_id in installed:
        info = installed[environment_id].info
        if info is None:
            raise _refused(installed[environment_id].problem, "BROKEN_ENVIRONMENT", environment_id)
        return info
    known = registered_ids()
    # An id with a module prefix is registered only by importing the user's module, which is left to
    # its own process.
    on_trust = known is None or ":" in environment_id
    is_known = environment_id in (known or ()) and not _has_moved(environment_id)
    if is_known or (on_trust and _GYMNASIUM_ID.match(environment_id)):
        return gymnasium_info(environment_id)
    every = [*BUILT_IN, *installed, *newest(known or [])]
    advice = package_advice(environment_id) or did_you_mean(
        environment_id, every, "`podracer environments` lists all environments"
    )
    raise _refused(
        f"unknown environment {environment_id!r}; {advice}", "UNKNOWN_ENVIRONMENT", environment_id
    )


def described_environment(environment_id: str) -> EnvironmentInfo | None:
    """The description of a built-in environment, or one that an installed package gives; None for
    any other: its arguments are unknown here."""
    if environment_id in BUILT_IN:
        return BUILT_IN[environment_id]
    return next(
        (
            each.info
            for each in installed_environments()
            if each.id == environment_id and each.is_described
        ),
        None,
    )


def is_batched(environment_id: str) -> bool:
    """Whether its description says that its class steps a batch of environments in the process
    that trains."""
    info = described_environment(environment_id)
    return info is not None and info.is_batched


def reward_threshold(environment_id: str) -> float | None:
    """The return at which Gymnasium counts an environment as solved; None if it defines none."""
    spec = (_registry() or {}).get(environment_id)
    return None if spec is None else spec.reward_threshold


_MOST_OF_GYMNASIUMS = {"FrozenLake-v1": 1.0, "FrozenLake8x8-v1": 1.0, "Blackjack-v1": 1.0}


def unreachable(spec: EnvironmentSpec, target: float | None) -> list[str]:
    """A warning if the most that an episode of an environment can give is known, and less than the
    target."""
    if target is None or not spec.id or spec.kwargs:
        return []
    most, info = _MOST_OF_GYMNASIUMS.get(spec.id), described_environment(spec.id)
    if info is not None and info.most_reward is not None:
        most = info.most_reward * (spec.max_episode_steps or info.max_episode_steps or 1)
    if most is None or target <= most:
        return []
    return [
        f"the target {target:g} cannot be reached: the most that an episode of {spec.id} gives is "
        f"{most:g}"
    ]


def _refused(message: str, reason: str, environment_id: str) -> InvalidInput:
    return InvalidInput(message, field="environment.id", reason=reason, environment=environment_id)


def registered_ids() -> list[str] | None:
    """Every id that Gymnasium knows, or None if it is not installed."""
    registry = _registry()
    return None if registry is None else list(registry)


def newest(ids: list[str]) -> list[str]:
    """The ids without older versions, and without ids that Gymnasium registers only to report that
    they have moved."""
    latest: dict[str, str] = {}
    for environment_id in ids:
        if _has_moved(environment_id):
            continue
        name = versionless(environment_id)
        if name not in latest or _version(environment_id) > _version(latest[name]):
            latest[name] = environment_id
    return list(latest.values())


def _has_moved(environment_id: str) -> bool:
    """Whether Gymnasium registers the id only to report that it has moved."""
    spec = (_registry() or {}).get(environment_id)
    return spec is not None and getattr(spec.entry_point, "__module__", "") == "gymnasium.envs"


def gymnasium_info(environment_id: str) -> EnvironmentInfo:
    """The registry's description of an id; little more than the id if Gymnasium or the id is
    missing."""
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
    return (
        int(environment_id.rpartition("-v")[2])
        if versionless(environment_id) != environment_id
        else -1
    )


def _arguments(kwargs: Mapping[str, Any]) -> tuple[ArgumentInfo, ...]:
    """The arguments that the id itself sets, if a job file can express them."""
    found = []
    for name, value in kwargs.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            continue
        found.append(ArgumentInfo(name, "as it is registered with Gymnasium", value))
    return tuple(found)


def _package(entry_point: object) -> str:
    module = (
        entry_point.partition(":")[0]
        if isinstance(entry_point, str)
        else getattr(entry_point, "__module__", "")
    )
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


ENTRY_POINT_GROUP = "podracer.environments"
"""A package adds an environment with an entry point of the environment's id.

Its value is "its_package.envs:MyEnv", a `VecEnvironment` or whatever returns a `gymnasium.Env`,
which is imported where agents act, never here. Or it is "its_package.catalogue:MY_ENV", an
`EnvironmentInfo` whose `factory` is that class, in a module that imports no torch. The name of an
`EnvironmentInfo` is in capitals: only what is named so is imported here."""


@dataclass(frozen=True, slots=True)
class InstalledEnvironment:
    """The result of reading an entry point: an environment, or a `problem` that names the package.
    `is_described`: the package gives its `EnvironmentInfo`."""

    id: str
    info: EnvironmentInfo | None
    is_described: bool = False
    problem: str = ""


@cache
def installed_environments() -> tuple[InstalledEnvironment, ...]:
    """The environments of all installed packages. A broken one has a `problem` and does not affect
    the others."""
    # In a set: a distribution may be on sys.path twice.
    entries = {(each.name, each.value, *_origin(each)) for each in _entry_points()}
    found = []
    for name, value, package, is_ours in sorted(entries):
        others = sorted({other for same, _, other, _ in entries if same == name} - {package})
        start = f"environment {name!r} of package {package}:"
        if name in BUILT_IN:
            problem = f"{start} the id is a built-in environment's; choose another"
        elif others:
            problem = f"{start} {', '.join(others)} offers one of the same id; remove one of them"
        else:
            found.append(_installed(name, value, "" if is_ours else package, start))
            continue
        found.append(InstalledEnvironment(name, None, problem=problem))
    return tuple(found)


def _installed(name: str, value: str, package: str, start: str) -> InstalledEnvironment:
    """An environment whose id is free. `start`: of the message about a broken one."""
    if value.rpartition(":")[2].isupper():
        try:
            described = pkgutil.resolve_name(value)
        except Exception as error:  # noqa: BLE001 - what a package does when it is imported
            problem = f"{start} {value} cannot be imported: {type(error).__name__}: {error}"
            return InstalledEnvironment(name, None, problem=problem)
        if isinstance(described, EnvironmentInfo):
            if described.id == name and described.factory:
                info = replace(described, package=package)
                return InstalledEnvironment(name, info, is_described=True)
            problem = f"{start} {value} needs the id {name} and a factory"
            return InstalledEnvironment(name, None, problem=problem)
    info = EnvironmentInfo(
        name, f"installed: {value}", backend="installed", factory=value, package=package
    )
    return InstalledEnvironment(name, info)


def _origin(entry: importlib.metadata.EntryPoint) -> tuple[str, bool]:
    """Name and version of its package, and whether that is one of Podracer's own."""
    return package_of(entry), entry.dist is not None and entry.dist.name.startswith("podracer-")


def _entry_points() -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)

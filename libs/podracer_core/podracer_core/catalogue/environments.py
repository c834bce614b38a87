"""The environments: built-in and installed ones, with what they say of themselves, and Gymnasium's;
none is started. What to install for an unknown id.

RECIPES is what is usual for a kind of task on a device: the one table of the defaults of `train`
and of jobs. A row is a kind of task, or one task by its id; a column is the device that trains. The
description of an environment may have a row of its own. Explicit values always win."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from podracer_core.catalogue.environment_spec import EnvironmentSpec
from podracer_core.catalogue.extensions import BuiltIn, package_of
from podracer_core.catalogue.hyperparameters import HyperparameterValue
from podracer_core.catalogue.spaces import Space
from podracer_core.config import did_you_mean
from podracer_core.errors import InvalidInput, PreconditionFailed

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec


@dataclass(frozen=True, slots=True)
class ArgumentInfo:
    """A keyword argument of an environment's constructor, for `environment.kwargs` of a job.

    default    a JSON value (a tuple stands for a list); no default if `required`
    example    a value for a job file, if `required`
    is_file    the path of a local file, which a job names under `data` and uploads, not in
               `environment.kwargs`
    """

    name: str
    meaning: str
    default: object = None
    required: bool = False
    example: object = None
    is_file: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is usual for a task on a device.

    evidence         the document with the measurement, in docs/
    cohort_envs      environments of a cohort that learns from rollouts, whose members share them
    member_envs      at least so many of each member
    replaying_envs   of a member that learns from replay: it matters more how often it learns
                     between two steps
    hyperparameters  by algorithm, those that differ from its defaults or from its value in a search
    """

    evidence: str
    cohort_envs: int = 0
    member_envs: int = 16
    replaying_envs: int = 8
    hyperparameters: Mapping[str, Mapping[str, HyperparameterValue]] = field(default_factory=dict)

    def envs_per_member(self, members: int, *, on_policy: bool) -> int:
        """The environments of each of `members`."""
        return (
            max(self.member_envs, self.cohort_envs // members) if on_policy else self.replaying_envs
        )


@dataclass(frozen=True, slots=True)
class EnvironmentInfo:
    """The description of an environment, without starting it.

    The spaces are None if `needs_inspection`. `factory`: the "module:Name" of the class of a
    batched environment in this process, empty for a Gymnasium environment in processes.
    `arguments`: of that class, besides `num_envs`, `device` and `max_episode_steps`. `package`:
    name and version of its distribution, empty if that is Podracer's own. `scores`: the values of
    the argument `score` with which evaluations rank by another statistic than the return, and that
    statistic's name. `most_reward`: the most that a step gives with the default arguments; None:
    unknown. `recipes`: its own defaults by "cpu" and "cuda", in place of those of its kind.
    `ensemble_size`: how many of the best a new job file lets act together at the end; 0: none."""

    id: str
    description: str
    backend: Literal["torch", "mujoco", "installed", "gymnasium"]
    devices: tuple[str, ...] = ("cpu",)
    observation_space: Space | None = None
    action_space: Space | None = None
    max_episode_steps: int | None = None
    factory: str = ""
    arguments: tuple[ArgumentInfo, ...] = ()
    package: str = ""
    scores: Mapping[str, str] = field(default_factory=dict)
    most_reward: float | None = None
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    ensemble_size: int = 0

    @property
    def needs_inspection(self) -> bool:
        """Whether the spaces are unknown until it has been started."""
        return self.observation_space is None or self.action_space is None

    @property
    def is_batched(self) -> bool:
        """Whether its class steps a batch of environments in the process that trains."""
        return self.backend in ("torch", "mujoco")

    @property
    def is_gymnasiums(self) -> bool:
        """Whether it is of Gymnasium itself, so that it needs no trial."""
        return self.backend == "gymnasium" and self.package.partition(" ")[0] == "gymnasium"

    def score_name(self, arguments: Mapping[str, object]) -> str:
        """The name of its evaluations' statistic with these arguments: `return` unless `scores` has
        another."""
        return self.scores.get(str(arguments.get("score")), "return")


_GAMES = (
    "Alien|Asteroids|BeamRider|Boxing|Breakout|Enduro|Freeway|MontezumaRevenge|MsPacman|Pong|Qbert"
    "|Seaquest"
)
_ATARI = rf"ALE/.*|\w+(NoFrameskip|Deterministic|-ram)\b.*|({_GAMES}|SpaceInvaders)-v\d"
_MUJOCO = (
    "Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|Inverted(Double)?Pendulum|Pusher|Reacher"
    "|Swimmer|Walker2d"
)
_DRIVING = (
    "highway|merge|roundabout|parking|intersection|racetrack|exit|u-turn|two-way|lane-keeping"
)
_ROBOTICS = r"(Fetch|HandManipulate|HandReach|AntMaze|PointMaze|Adroit|FrankaKitchen)\w*"

_PACKAGES = (  # the id, the package to install, the module that registers it
    (_ATARI, "ale-py", "ale_py"),
    (r"(MiniGrid|BabyAI)-.*", "minigrid", "minigrid"),
    (rf"({_DRIVING})(-[a-z]+)*-v\d", "highway-env", "highway_env"),
    (rf"{_ROBOTICS}-v\d", "gymnasium-robotics", "gymnasium_robotics"),
    (r"dm_control/.*", "'shimmy[dm-control]'", "shimmy"),
)
_SENTENCES = (
    (rf"({_MUJOCO})-v[0-4]", "MuJoCo's tasks are here in version 5: {name}-v5"),
    (
        r"\w+BulletEnv-v\d",
        "PyBullet's environments are of the former gym; MuJoCo's are here, such as HalfCheetah-v5",
    ),
    (
        r"(Mlp|Cnn|MultiInput)\w*Policy",
        "the environment comes first, and the network follows from its spaces",
    ),
    ("StockTrading-v0", "pip install podracer-trading"),
)


def package_advice(environment_id: str) -> str:
    """What to do about an id that is not registered; empty if no known package has it."""
    for pattern, sentence in _SENTENCES:
        if re.fullmatch(pattern, environment_id):
            return sentence.format(name=environment_id.rpartition("-v")[0])
    for pattern, package, module in _PACKAGES:
        if re.fullmatch(pattern, environment_id):
            named = f"name it {module}:{_current(environment_id, module)}"
            return (
                named if importlib.util.find_spec(module) else f"pip install {package}, and {named}"
            )
    return ""


def install_advice(module: str) -> str:
    """How to install a missing `module` that registers environments; empty for another one."""
    return next(
        (f"pip install {package}" for _, package, known in _PACKAGES if known == module), ""
    )


def _current(environment_id: str, module: str) -> str:
    """The id as its package has it now: `ALE/Breakout-v5` for `BreakoutNoFrameskip-v4`."""
    game = re.match(r"(?!ALE/)[A-Z][A-Za-z]*?(?=NoFrameskip|Deterministic|-)", environment_id)
    return f"ALE/{game[0]}-v5" if game and module == "ale_py" else environment_id


BUILT_IN_ENVIRONMENTS: Mapping[str, EnvironmentInfo] = BuiltIn(
    "id", "podracer_core.environments.info"
)

_GYMNASIUM_ID = re.compile(r"^(?:[\w.]+:)?(?:[\w-]+/)?[\w.-]+-v\d+$")


def known_environments() -> dict[str, EnvironmentInfo]:
    """The built-in environments and those of installed packages, by id. Ids with a version come
    first: one without stands for a family of tasks, such as mjlab's."""
    installed = {each.id: each.info for each in installed_environments() if each.info is not None}
    known = {**BUILT_IN_ENVIRONMENTS, **installed}
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
    ours = {versionless(environment_id) for environment_id in BUILT_IN_ENVIRONMENTS}
    return {name: gymnasium_info(name) for name in newest(ids) if versionless(name) not in ours}


def find_environment(environment_id: str) -> EnvironmentInfo:
    """The description of `environment_id`. Raises InvalidInput with the nearest names if it is
    unknown.

    If Gymnasium is not installed (an orchestrator's image), an id of its form is accepted:
    inspection checks it."""
    if environment_id in BUILT_IN_ENVIRONMENTS:
        return BUILT_IN_ENVIRONMENTS[environment_id]
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
    every = [*BUILT_IN_ENVIRONMENTS, *installed, *newest(known or [])]
    advice = package_advice(environment_id) or did_you_mean(
        environment_id, every, "`podracer environments` lists all environments"
    )
    raise _refused(
        f"unknown environment {environment_id!r}; {advice}", "UNKNOWN_ENVIRONMENT", environment_id
    )


def described_environment(environment_id: str) -> EnvironmentInfo | None:
    """The description of a built-in environment, or one that an installed package gives; None for
    any other: its arguments are unknown here."""
    if environment_id in BUILT_IN_ENVIRONMENTS:
        return BUILT_IN_ENVIRONMENTS[environment_id]
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


ENVIRONMENT_GROUP = "podracer.environments"
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
        if name in BUILT_IN_ENVIRONMENTS:
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
    return importlib.metadata.entry_points(group=ENVIRONMENT_GROUP)


_PROCESSES = Recipe("benchmarks/auto_and_budget.md")

_WARP_PPO: Mapping[str, HyperparameterValue] = {
    "horizon": 16,
    "epochs": 4,
    "desired_kl": 0.01,
    "hidden_sizes": (256, 128, 64),
    "activation": "elu",
}

_ROBOTS = {
    # A GPU steps thousands of worlds in hardly more time than a hundred, but a policy learns by its
    # number of updates: short rollouts. PPO's learning rate of 1e-3 is where `desired_kl` begins.
    "cpu": Recipe("benchmarks/returns.md"),
    "cuda": Recipe("benchmarks/gpu.md", 8192, 128, 128, {"ppo": _WARP_PPO}),
}

RECIPES: Mapping[str, Mapping[str, Recipe]] = {
    "mujoco": _ROBOTS,
    "mjlab": _ROBOTS,
    # Classic control and other environments that are batches of tensors.
    "torch": {
        "cpu": Recipe("benchmarks/ppo_cartpole.md", cohort_envs=256),
        "cuda": Recipe("benchmarks/gpu.md", 16384, 128, 128, {"ppo": {"horizon": 32, "epochs": 4}}),
    },
    # What steps in processes of its own, on the CPU: users' environments, and Gymnasium's.
    "processes": {"cpu": _PROCESSES, "cuda": _PROCESSES},
}


def find_recipe(spec: EnvironmentSpec, device: str, *, is_batched: bool = False) -> Recipe:
    """The cell of an environment. `is_batched`: a class that steps it as a batch of tensors is
    known; of built-in environments the catalogue knows. `device`: "cuda", "cuda:1"; any other is
    the CPU."""
    info = find_environment(spec.id) if spec.id else None
    place = "cuda" if device.startswith("cuda") else "cpu"
    if spec.isolation:
        return RECIPES["processes"][place]
    if info is not None and place in info.recipes:
        return info.recipes[place]
    kind = "torch" if is_batched else "processes"
    names = (spec.id, "" if info is None else info.backend)
    return RECIPES[next((name for name in names if name in RECIPES), kind)][place]

"""The arguments of `train`, checked before anything starts, the environment's included: an id, a
class or a function -> environments."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from typing import Any, Self, cast, get_args

import gymnasium
import torch
from gymnasium.envs.registration import EnvSpec

from podracer_core.catalogue import (
    AlgorithmInfo,
    Choice,
    EnvironmentSpec,
    Fixed,
    Interval,
    Isolation,
    Range,
    find_algorithm,
    find_environment,
    find_recipe,
)
from podracer_core.checkpoint import Checkpoint
from podracer_core.config import advice, counterpart
from podracer_core.environments import (
    Inspection,
    IsolationProof,
    VecEnvironment,
    batched_class,
    device_for,
    evaluates_alike,
    inspect_environment,
    isolation_proof,
    make_vec_environment,
)
from podracer_core.environments.processes import (
    MakeEnvironment,
    PreprocessVecEnv,
    packed,
    problem_of_kind,
)
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.sections import (
    MAX_COUNT,
    MAX_EPISODES,
    MAX_MEMBERS,
    AlgorithmShare,
    Checks,
    Search,
    search_space,
)
from podracer_core.training import Statistic

Environment = (
    str
    | type[gymnasium.Env[Any, Any]]
    | type[VecEnvironment]
    | Callable[..., gymnasium.Env[Any, Any]]
)
"""An id; a class, or a function that returns a new `gymnasium.Env` at each call; or a class of
batched environments."""

_HERE = "__main__"  # the module of what only this process has


@dataclass(frozen=True)
class EnvironmentSource:
    """Makes environments of one kind.

    spec     its stored description
    make     makes each environment in this process; None: made from the spec
    batched  the caller's own class of batched environments
    waits    the steps of those in this process wait more than they compute: each has a thread of
             its own
    """

    spec: EnvironmentSpec
    make: MakeEnvironment | None = None
    batched: type[VecEnvironment] | None = None
    waits: bool = False

    def inspect(self) -> Inspection | None:
        """The result of a trial; None for ids of Podracer and Gymnasium, which are known, and the
        caller's own batched class. Raises InvalidInput for what cannot be used, and the code's own
        errors."""
        info = find_environment(self.spec.id) if self.spec.id else None
        if self.batched or (info and (info.is_gymnasiums or batched_class(self.spec))):
            return None
        return inspect_environment(self.spec, make=self.make)

    def open(
        self,
        count: int,
        device: torch.device | str = "cpu",
        *,
        evaluation: bool = False,
        check_start: Callable[[], None] = lambda: None,
        check: Callable[[], None] = lambda: None,
    ) -> VecEnvironment:
        """`count` environments on `device`; the caller closes them. `check_start` is called before
        each one that is made in this process; it raises to cancel, as `check` does
        (`PreprocessVecEnv`'s). Raises InvalidInput, and the code's own errors."""
        if (construct := self.make) is None:
            return make_vec_environment(
                self.spec, count, device, evaluation=evaluation, own=self.batched, check=check
            )
        if self.spec.isolation:
            code = packed(construct, self.spec.name)
            return PreprocessVecEnv(
                self.spec, count, device, code=code, elastic=evaluation, check=check
            )

        @functools.wraps(construct)
        def make(**arguments: Any) -> gymnasium.Env[Any, Any]:
            check_start()
            return construct(**arguments)

        return PreprocessVecEnv(self.spec, count, device, make=make, waits=self.waits, check=check)

    def device(self, wanted: str) -> str:
        """The device to step them on, by `device_for`; the caller's own batched class is trusted to
        run on a GPU."""
        if wanted == "auto" and (self.batched or self.make):
            return "cuda" if self.batched and torch.cuda.is_available() else "cpu"
        return device_for(wanted, self.spec)

    def overlapping(self) -> Self:
        """The same for steps that wait more than they compute: all environments step at the same
        time."""
        return self.isolated() if self.make is None else replace(self, waits=True)

    def isolated(self) -> Self:
        """The same, with each environment in a process of its own."""
        return replace(self, spec=replace(self.spec, isolation="process"))

    def proof(self) -> IsolationProof | None:
        """The proof that its environments share state, not begun; None if there is nothing to
        prove, or no way to."""
        try:
            code = packed(self.make, self.spec.name) if self.make else b""
        except InvalidInput:
            return None
        return None if self.batched else isolation_proof(self.spec, code)

    @property
    def all_alike(self) -> bool:
        """Whether all episodes of an evaluation are alike."""
        return (
            self.batched.deterministic_evaluation
            if self.batched
            else not self.make and evaluates_alike(self.spec)
        )


def find_source(
    environment: Environment,
    arguments: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    isolation: Isolation = "",
) -> EnvironmentSource:
    """The source for `environment`. `arguments` are those of its constructor: JSON values; what is
    made in this process takes any others, too, of which a note is stored. `isolation` is the
    spec's.

    Raises InvalidInput for an unknown id, an environment instance, and any other object.
    """
    # what callers give may be anything
    given, named = dict(arguments or {}), cast("Any", environment)
    _refuse_others(named)
    is_id = isinstance(named, str)
    make: Any = None if is_id else named
    if is_id and find_environment(named).backend == "gymnasium" and _is_registered_here(named):
        # Another process does not know the id.
        make = partial(gymnasium.make, gymnasium.registry[named], disable_env_checker=True)
    batched = make if inspect.isclass(make) and issubclass(make, VecEnvironment) else None
    if batched and isolation:
        text = f"{_entry_point(named)} makes all environments of a batch as one"
        raise _refused(f"{text}: isolation is for a gymnasium.Env")
    unstored = (
        {}
        if make is batched
        else {name: value for name, value in given.items() if not _is_json(value)}
    )
    kept = given | {name: f"{_UNSTORED}{type(value).__name__}" for name, value in unstored.items()}
    if unstored:
        make = update_wrapper(partial(_made_with, make, unstored), make)
    spec = EnvironmentSpec(
        named if is_id else "", "" if is_id else _entry_point(named),
        kwargs=kept, max_episode_steps=max_episode_steps, isolation=isolation,
    )  # fmt: skip
    return EnvironmentSource(spec, None if batched else make, batched)


_UNSTORED = "not stored: "  # begins the note in place of a value that is no JSON


def _made_with(make: Callable[..., Any], unstored: Mapping[str, Any], **arguments: Any) -> Any:
    return make(**{**arguments, **unstored})


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _refuse_others(named: Any) -> None:
    """Raise InvalidInput unless it is an id, a class or a function."""
    kind = named if inspect.isclass(named) else type(named)
    other = problem_of_kind(kind)
    if other:
        raise _refused(other)
    if isinstance(named, gymnasium.Env | VecEnvironment | EnvSpec):
        spec = named if isinstance(named, EnvSpec) else getattr(named, "spec", None)
        name = kind.__name__ if spec is None else repr(spec.id)
        right = (
            f"the class {name} or a function that makes one" if spec is None else f"the id {name}"
        )
        raise _refused(
            f"expected {right}, not an instance of {kind.__name__}: training needs several"
        )
    if not isinstance(named, str) and not callable(named):
        raise _refused(
            "expected an id, a class, or a function that returns a gymnasium.Env, got "
            f"{named!r:.100}"
        )


def source_of_checkpoint(spec: EnvironmentSpec) -> EnvironmentSource:
    """The source for a checkpoint's environment, ids only. Raises InvalidInput for a caller's own
    code and for an id with a module, which Gymnasium would import: a file must not start code. Also
    if it needs files of a server."""
    if not spec.id or ":" in spec.id:
        raise _refused(
            f"the policy was trained in {spec.name}: load it with podracer.load(path, "
            "environment=…)"
        )
    if spec.stored_files:
        raise _refused(
            f"{spec.id} needs files of the job: `podracer evaluate` fetches them, as do its other "
            "commands"
        )
    if any(
        isinstance(value, str) and value.startswith(_UNSTORED) for value in spec.kwargs.values()
    ):
        raise _refused(
            f"the arguments of {spec.id} are not all stored: load it with podracer.load(path, "
            "environment=…)"
        )
    return find_source(spec.id, spec.kwargs, spec.max_episode_steps)


def _is_registered_here(environment_id: str) -> bool:
    """Whether code that was imported here registered the id, so that other processes may not know
    it."""
    if ":" in environment_id or environment_id not in gymnasium.registry:
        return False
    entry_point = gymnasium.registry[environment_id].entry_point
    module = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    return re.split(r"[.:]", module)[0] != "gymnasium"


def _entry_point(environment: Callable[..., Any]) -> str:
    """`module:Name` for a checkpoint's metadata; of what has no name that another process knows,
    `__main__:name`."""
    name = getattr(environment, "__qualname__", "")
    if all(part.isidentifier() for part in name.split(".")):
        return f"{environment.__module__}:{name}"
    last = name.rpartition(".")[2]
    return f"{_HERE}:{last if last.isidentifier() else 'environment'}"


def _refused(message: str) -> InvalidInput:
    return InvalidInput(
        message, violations=[FieldViolation("environment", message)], reason="NO_ENVIRONMENT"
    )


_COUNTS = (
    ("members", MAX_MEMBERS),
    ("steps", MAX_COUNT),
    ("episodes", MAX_EPISODES),
    ("envs_per_member", MAX_COUNT),
)


@dataclass(frozen=True)
class Order:
    """The task of a training run: its environment, algorithm and members, and when it ends.

    shared   hyperparameters of all members, also those of `start` that stay
    ranges   the ranges of the searched ones, of scope "member" only
    steps    environment steps of all members together
    start    the checkpoint that every member begins with; None: fresh weights
    """

    source: EnvironmentSource
    algorithm: str
    members: int
    target: float | None
    statistic: Statistic
    steps: int | None
    seconds: float | None
    episodes: int
    envs_per_member: int | None
    seed: int
    device: str
    shared: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ranges: Mapping[str, Range] = dataclasses.field(default_factory=dict)
    start: Checkpoint | None = None

    @property
    def info(self) -> AlgorithmInfo:
        """The algorithm's description."""
        return find_algorithm(self.algorithm)

    @property
    def defaults(self) -> dict[str, Any]:
        """What members have unless it is searched: by name, the hyperparameters of `start`, else
        what is usual on `device`, else the algorithm's."""
        stored = {} if self.start is None else dict(self.start.metadata["hyperparameters"])
        recipe = find_recipe(
            self.source.spec, self.device, is_batched=self.source.batched is not None
        )
        default = self.info.defaults() | dict(recipe.hyperparameters.get(self.algorithm, {}))
        known = {name: stored[name] for name in default.keys() & stored.keys()}
        return default | {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in known.items()
        }


def check_order(order: Order, hyperparameters: Mapping[str, Any], search: bool) -> Order:
    """`order` with its hyperparameters. Raises InvalidInput with every mistake."""
    order = replace(order, **{name: _whole(getattr(order, name)) for name, _ in _COUNTS})
    check = Checks()
    if order.target is None and order.steps is None and order.seconds is None:
        check.that(False, "", "training needs an end: give target, steps or seconds")
    finite = order.target is None or math.isfinite(order.target)
    check.that(finite, "target", f"expected a finite number, got {order.target!r}")
    kinds = get_args(Statistic)
    check.that(
        order.statistic in kinds,
        "statistic",
        f"expected {' or '.join(kinds)}, got {order.statistic!r}",
    )
    check.positive(order.seconds, math.inf, "seconds")
    for name, most in _COUNTS:
        value = getattr(order, name)
        right = value is None or (
            isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
        )
        check.that(right, name, f"expected a whole number from 1 to {most:_}, got {value!r}")
    info = find_algorithm(order.algorithm)
    space = search_space(hyperparameters, "hyperparameters")
    Search((AlgorithmShare(order.algorithm),), space).check(check, None)
    ranges = {dimension.hyperparameter: dimension.range for dimension in space}
    if search:
        own = {
            knob.name: knob.search
            for knob in info.hyperparameters
            if knob.scope == "member" and knob.search
        }
        ranges = own | ranges
    if not check.violations:  # else what is wrong by itself would be said again
        for name, where in ranges.items():
            is_own = isinstance(where, Fixed) or info.hyperparameter(name).scope == "member"
            check.that(
                is_own,
                f"hyperparameters.{name}",
                "all members share it: give one value (podracer.run searches it)",
            )
    if check.violations:
        told = [
            FieldViolation(each.field.replace("search.space", "hyperparameters"), each.message)
            for each in check.violations
        ]
        raise InvalidInput("; ".join(map(str, told)), violations=told, reason="INVALID_ARGUMENT")
    shared = {name: where.value for name, where in ranges.items() if isinstance(where, Fixed)}
    searched = {
        name: _fitted(info, name, where) for name, where in ranges.items() if name not in shared
    }
    if order.start is not None:
        _require_same_network(order, shared)
        shared = {
            name: value for name, value in order.defaults.items() if name not in searched
        } | shared
    return replace(order, shared=shared, ranges=searched)


def unknown_argument(name: str, parameters: Sequence[str], algorithm: str) -> InvalidInput:
    """The error for an argument that `train`, with its `parameters`, does not have."""
    own = find_algorithm(algorithm).defaults()
    text = counterpart(name, [*parameters, *own]) or advice(name, parameters)
    named = re.search(r" is `(\w+)` here$", text)
    if name in own:
        text = f"it is a hyperparameter: hyperparameters={{{name!r}: …}}"
    elif named and named[1] in own:
        text += f", a hyperparameter: hyperparameters={{{named[1]!r}: …}}"
    return InvalidInput.of(name, f"train has no such argument; {text}")


def _whole(value: Any) -> Any:
    """1e3 and NumPy's numbers as whole numbers; anything else as it is."""
    try:
        whole = int(value)
    except (TypeError, ValueError, OverflowError):
        return value
    return whole if whole == value and not isinstance(value, bool) else value


def _require_same_network(order: Order, given: Mapping[str, Any]) -> None:
    """Raises InvalidInput for a hyperparameter that would make a network into which the start's
    weights do not fit."""
    for name in order.info.defaults("network").keys() & given.keys():
        value = tuple(given[name]) if isinstance(given[name], list) else given[name]
        if value != order.defaults[name]:
            message = (
                f"{order.defaults[name]!r} of `start` cannot change: leave it out; got "
                f"{given[name]!r}"
            )
            raise InvalidInput.of(f"hyperparameters.{name}", message, "OTHER_NETWORK")


def _fitted(info: AlgorithmInfo, name: str, where: Range) -> Range:
    """The range of a member's own hyperparameter, which is a real number."""
    match where:
        case Choice(values):
            return Choice(tuple(float(value) for value in values))  # type: ignore[arg-type]
        case Interval():
            return replace(where, near_one=info.hyperparameter(name).near_one)
        case _:
            return where

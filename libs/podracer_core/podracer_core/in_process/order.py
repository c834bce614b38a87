"""The arguments of `train`, checked before anything starts."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from podracer_core.catalogue.algorithms import AlgorithmInfo, find_algorithm
from podracer_core.catalogue.ranges import Choice, Fixed, Interval, Range
from podracer_core.catalogue.recipes import find_recipe
from podracer_core.checkpoint import Checkpoint
from podracer_core.config.other_libraries import advice, counterpart
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.in_process.environments import EnvironmentSource
from podracer_core.sections.checks import MAX_COUNT, Checks
from podracer_core.sections.objective import MAX_EPISODES
from podracer_core.sections.pod import MAX_MEMBERS
from podracer_core.sections.search import AlgorithmShare, Search, search_space
from podracer_core.training.plan import Statistic

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

"""The search of a job: algorithms and the ranges of their hyperparameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from podracer_core.catalogue import (
    AlgorithmInfo,
    Choice,
    Fixed,
    Hyperparameter,
    HyperparameterValue,
    IntegerInterval,
    Interval,
    Range,
    Recipe,
    Space,
    automatic_algorithms,
    check_action_space,
    describe,
    find_algorithm,
)
from podracer_core.config import INVALID, Builder, Node, advice
from podracer_core.errors import InvalidInput
from podracer_core.sections.evolution import Checks

MAX_SHARE = 1e6

_RANGE_EXPECTED = (
    "a value, or one of {uniform: [low, high]}, {log_uniform: [low, high]}, {integer_uniform: "
    "[low, high]}, {integer_log_uniform: [low, high]}, {choice: [a, b]}"
)


@dataclass(frozen=True)
class AlgorithmShare:
    """An algorithm and its share of fresh agents, relative to the others'."""

    algorithm: str
    share: float = 1.0


@dataclass(frozen=True)
class Dimension:
    """The range of one hyperparameter; an empty `algorithm` means every algorithm that has it.

    In a job file the key is `gamma`, or `ppo.gamma` for one algorithm.
    """

    hyperparameter: str
    range: Range
    algorithm: str = ""

    @property
    def key(self) -> str:
        """Its key in a job file."""
        return f"{self.algorithm}.{self.hyperparameter}" if self.algorithm else self.hyperparameter


@dataclass(frozen=True)
class Search:
    """The algorithms and hyperparameters to search.

    algorithms   empty: `auto`, every algorithm that can act in the environment
    space        empty: the algorithms' own search ranges; else unnamed hyperparameters keep their
                 default
    """

    algorithms: tuple[AlgorithmShare, ...] = ()
    space: tuple[Dimension, ...] = ()

    def shares(self, action_space: Space | None) -> tuple[AlgorithmShare, ...]:
        """The algorithms. For `auto`: those with `automatic` that can act in `action_space`, in
        equal shares.

        With None (unknown) `auto` means all of these.
        """
        return self.algorithms or tuple(
            AlgorithmShare(name) for name in automatic_algorithms(action_space)
        )

    def filled(self, recipe: Recipe, action_space: Space | None) -> Search:
        """With the values of `recipe` for what the space leaves open; without a space also the
        algorithms' own ranges, which then have to be said."""
        infos = [find_algorithm(share.algorithm) for share in self.shares(action_space)]
        given = {(dimension.algorithm, dimension.hyperparameter) for dimension in self.space}
        usual: dict[tuple[str, str], Range] = {
            (info.name, name): Fixed(value)
            for info in infos
            for name, value in recipe.hyperparameters.get(info.name, {}).items()
            if given.isdisjoint({("", name), (info.name, name)})
        }
        if not usual or (action_space is None and not self.algorithms):
            return self
        if not self.space:
            own = ((info.name, knob) for info in infos for knob in info.hyperparameters)
            usual = {
                (name, knob.name): knob.search for name, knob in own if knob.search is not None
            } | usual
        filled = (Dimension(name, where, algorithm) for (algorithm, name), where in usual.items())
        return replace(self, space=(*self.space, *filled))

    def check(self, check: Checks, action_space: Space | None) -> None:
        """`action_space` is None while it is unknown: then only mistakes in any action space are
        noted."""
        if not self._check_algorithms(check):
            # what the space or the environment says of an unknown algorithm would only confuse
            return
        if action_space is not None:
            self._check_action_space(check, action_space)
        infos = [find_algorithm(share.algorithm) for share in self.shares(action_space)]
        if not infos:
            return  # no algorithm can act, which is reported already
        keys = [dimension.key for dimension in self.space]
        for index, dimension in enumerate(self.space):
            if check.that(
                keys.index(dimension.key) == index,
                f"search.space.{dimension.key}",
                "is there twice",
            ):
                same = [
                    other
                    for other in self.space
                    if other.hyperparameter == dimension.hyperparameter
                ]
                apart = {other.algorithm for other in same} - {dimension.algorithm}
                settled = bool(self.algorithms) or action_space is not None
                _check_dimension(check, dimension, infos, apart, settled=settled)
        if not check.violations:  # else what is wrong by itself would be said again
            for info in infos:
                for hyperparameter, problem in _impossible_combinations(self.space, info):
                    check.that(False, f"search.space.{hyperparameter}", problem)

    def _check_algorithms(self, check: Checks) -> bool:
        """Whether all of them are known."""
        names = [share.algorithm for share in self.algorithms]
        known = True
        for index, share in enumerate(self.algorithms):
            field = f"search.algorithms[{index}]"
            check.that(
                names.index(share.algorithm) == index, field, f"{share.algorithm!r} is there twice"
            )
            check.positive(share.share, MAX_SHARE, field)
            try:
                find_algorithm(share.algorithm)
            except InvalidInput as error:
                known = check.that(False, field, error.message)
        return known

    def _check_action_space(self, check: Checks, action_space: Space) -> None:
        for index, share in enumerate(self.algorithms):
            try:
                check_action_space(share.algorithm, action_space)
            except InvalidInput as error:
                check.that(False, f"search.algorithms[{index}]", error.message)
        found = bool(self.shares(action_space))
        check.that(found, "search.algorithms", f"no algorithm can act in {describe(action_space)}")


def _check_dimension(
    check: Checks,
    dimension: Dimension,
    infos: list[AlgorithmInfo],
    apart: set[str],
    *,
    settled: bool,
) -> None:
    """`infos` are the searched algorithms, or, if not `settled`, those that may be: then one that
    fits is enough.

    The algorithms in `apart` have their own range for the same hyperparameter, which overrides a
    general one."""
    field = f"search.space.{dimension.key}"
    names = [info.name for info in infos]
    if dimension.algorithm and not check.that(
        dimension.algorithm in names,
        field,
        f"{dimension.algorithm!r} is not searched; expected {' or '.join(names)}",
    ):
        return
    searched = [info for info in infos if dimension.algorithm in ("", info.name)]
    known = list(dict.fromkeys(knob.name for info in searched for knob in info.hyperparameters))
    if dimension.hyperparameter in known:
        ruled = [info for info in searched if info.name not in apart]
        for problem in _dimension_problems(dimension, ruled, settled=settled):
            check.that(False, field, problem)
        return
    hint = advice(dimension.hyperparameter, known)
    check.that(False, field, f"unknown hyperparameter {dimension.hyperparameter!r}; {hint}")


def _dimension_problems(
    dimension: Dimension, searched: list[AlgorithmInfo], *, settled: bool
) -> list[str]:
    """The problems of a range. If algorithms disagree on it, each problem names its algorithm."""
    having: list[str] = []
    problems: dict[str, list[str]] = {}
    for info in searched:
        for knob in info.hyperparameters:
            if knob.name == dimension.hyperparameter:
                having.append(info.name)
                for problem in dict.fromkeys(_range_problems(dimension.range, knob)):
                    problems.setdefault(problem, []).append(info.name)
    if not settled and len({name for names in problems.values() for name in names}) < len(having):
        return []
    return [
        text if names == having else f"{', '.join(names)}: {text}"
        for text, names in problems.items()
    ]


def _range_problems(searched: Range, knob: Hyperparameter) -> list[str]:
    match searched:
        case Fixed(value):
            return _value_problems(knob, [value])
        case Choice(values):
            if not values:
                return ["expected at least one value to choose from"]
            twice = ["a value is there twice"] if len(set(values)) < len(values) else []
            return twice + _value_problems(knob, list(values))
        case Interval() if knob.kind != "float":
            use = "integer_uniform or choice" if knob.kind == "int" else "choice"
            return [f"{knob.name} is not a real number: use {use}"]
        case IntegerInterval() if knob.kind != "int":
            return [
                f"{knob.name} is not a whole number: use "
                f"{'uniform' if knob.kind == 'float' else 'choice'}"
            ]
        case Interval(low, high, logarithmic) | IntegerInterval(low, high, logarithmic):
            problems = _value_problems(knob, [low, high])
            if not low < high:
                problems.append(f"expected low < high, got [{low!r}, {high!r}]")
            if logarithmic and not low > 0:
                problems.append(f"a logarithmic range must be above 0, got [{low!r}, {high!r}]")
            return problems


def _value_problems(knob: Hyperparameter, values: list[object]) -> list[str]:
    problems = []
    for value in values:
        try:
            knob.check(list(value) if isinstance(value, tuple) else value)
        except InvalidInput as error:
            problems += [violation.message for violation in error.violations]
    return problems


def _impossible_combinations(
    space: Sequence[Dimension], info: AlgorithmInfo
) -> Iterator[tuple[str, str]]:
    """Pairs of valid hyperparameters that an agent cannot combine: which one should change, and
    why."""
    subsets, sizes = (
        [value for value in _reachable(space, info, name) if isinstance(value, int)]
        for name in ("subset_size", "ensemble_size")
    )
    if subsets and sizes and max(subsets) > min(sizes):
        yield (
            "subset_size",
            f"{info.name} needs at most ensemble_size, {min(sizes)}, got {max(subsets)}",
        )
    others = [value for value in _reachable(space, info, "replay") if value != "member"]
    if others and True in _reachable(space, info, "prioritized"):
        expected = "expected member where prioritized may be true: priorities are each member's own"
        yield "replay", f"{expected}; got {others[0]!r}"


def _reachable(
    space: Sequence[Dimension], info: AlgorithmInfo, name: str
) -> list[HyperparameterValue]:
    """The possible values of `name`, or the ends of its range; none if the algorithm has no such
    hyperparameter."""
    knob = next((knob for knob in info.hyperparameters if knob.name == name), None)
    if knob is None:
        return []
    ruling = [
        each for each in space if each.hyperparameter == name and each.algorithm in ("", info.name)
    ]
    # its own goes before a general one
    ruling.sort(key=lambda dimension: dimension.algorithm == "")
    if not ruling:
        return [knob.default]
    match ruling[0].range:
        case Fixed(value):
            return [value]
        case Choice(values):
            return list(values)
        case Interval(low, high) | IntegerInterval(low, high):
            return [low, high]


def search_space(values: Mapping[str, Any], name: str) -> tuple[Dimension, ...]:
    """The dimensions of a `search.space` given as Python values; messages name it `name`.

    Raises InvalidInput with every mistake.
    """
    builder = Builder("", {})
    space = read_space(builder, Node.from_plain(values), name) if values else ()
    builder.raise_problems()
    return tuple(space)


def read_space(builder: Builder, node: Node, path: str) -> Any:
    """`hyperparameter: range`, or `algorithm.hyperparameter: range`."""
    if not isinstance(node.value, Mapping):
        return builder.wrong(node, path, "a mapping such as {gamma: {uniform: [0.9, 0.99]}}")
    if not node.value:
        message = (
            "is empty: name a hyperparameter, or leave it out to search the algorithms' own ranges"
        )
        return builder.report(node, path, message, at_key=True)
    dimensions = []
    for key, child in node.value.items():
        algorithm, _, hyperparameter = key.rpartition(".")
        searched = _range(builder, child, f"{path}.{key}")
        dimensions.append(
            INVALID if searched is INVALID else Dimension(hyperparameter, searched, algorithm)
        )
    return INVALID if INVALID in dimensions else tuple(dimensions)


_RANGES: Mapping[str, tuple[Any, Callable[..., Any], bool]] = {
    "uniform": (tuple[float, float], Interval, False),
    "log_uniform": (tuple[float, float], Interval, True),
    "integer_uniform": (tuple[int, int], IntegerInterval, False),
    "integer_log_uniform": (tuple[int, int], IntegerInterval, True),
}


def _range(builder: Builder, node: Node, path: str) -> Any:
    if not isinstance(node.value, Mapping):
        value = _hyperparameter_value(builder, node, path)
        return INVALID if value is INVALID else Fixed(value)
    if len(node.value) != 1:
        return builder.wrong(node, path, _RANGE_EXPECTED)
    ((kind, inner),) = node.value.items()
    if kind == "choice":
        if not isinstance(inner.value, tuple) or not inner.value:
            return builder.wrong(inner, f"{path}.choice", "a list of at least one value")
        values = [
            _hyperparameter_value(builder, item, f"{path}.choice[{i}]")
            for i, item in enumerate(inner.value)
        ]
        return INVALID if INVALID in values else Choice(tuple(values))
    if kind not in _RANGES:
        return builder.unknown_key(inner, path, kind, {**_RANGES, "choice": None})
    shape, make, logarithmic = _RANGES[kind]
    ends = builder.value(shape, inner, f"{path}.{kind}")
    return INVALID if ends is INVALID else make(*ends, logarithmic)


def _hyperparameter_value(builder: Builder, node: Node, path: str) -> Any:
    if isinstance(node.value, tuple):
        return builder.value(tuple[int, ...], node, path)
    if node.value is None or isinstance(node.value, Mapping):
        return builder.wrong(node, path, _RANGE_EXPECTED)
    return node.value

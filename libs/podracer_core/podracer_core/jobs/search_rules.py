"""What cannot be right in a job's `search`."""

from __future__ import annotations

import difflib

from podracer_core.catalogue.algorithms import (
    AlgorithmInfo,
    automatic_algorithms,
    check_action_space,
    find_algorithm,
)
from podracer_core.catalogue.hyperparameters import Hyperparameter
from podracer_core.catalogue.ranges import Choice, Fixed, IntegerInterval, Interval, Range
from podracer_core.catalogue.spaces import Space, describe
from podracer_core.errors import InvalidInput
from podracer_core.jobs.checks import Checks
from podracer_core.jobs.combinations import impossible_combinations
from podracer_core.jobs.spec import AlgorithmShare, Dimension, Search

__all__ = ["check_search", "searched_algorithms"]

MAX_SHARE = 1e6


def searched_algorithms(search: Search, action_space: Space | None) -> tuple[AlgorithmShare, ...]:
    """The algorithms of a search; for `auto` the automatic ones, in equal shares, that can act in `action_space`.

    Where that is None, not known yet, `auto` is every automatic one.
    """
    return search.algorithms or tuple(AlgorithmShare(name) for name in automatic_algorithms(action_space))


def check_search(check: Checks, search: Search, action_space: Space | None) -> None:
    """`action_space` is None while it is not known: then only what no action space could put right is noted."""
    names = [share.algorithm for share in search.algorithms]
    known = True
    for index, share in enumerate(search.algorithms):
        field = f"search.algorithms[{index}]"
        check.that(names.index(share.algorithm) == index, field, f"{share.algorithm!r} is there twice")
        check.positive(share.share, MAX_SHARE, field)
        try:
            find_algorithm(share.algorithm)
        except InvalidInput as error:
            known = check.that(False, field, error.message)
    if not known:
        return  # what the space or the environment says of an unknown algorithm would only confuse
    if action_space is not None:
        _check_action_space(check, search, action_space)
    infos = [find_algorithm(share.algorithm) for share in searched_algorithms(search, action_space)]
    if not infos:
        return  # nobody can act, which has been said
    keys = [dimension.key for dimension in search.space]
    for index, dimension in enumerate(search.space):
        if check.that(keys.index(dimension.key) == index, f"search.space.{dimension.key}", "is there twice"):
            same = [other for other in search.space if other.hyperparameter == dimension.hyperparameter]
            apart = {other.algorithm for other in same} - {dimension.algorithm}
            settled = bool(names) or action_space is not None
            _check_dimension(check, dimension, infos, apart, settled=settled)
    if not check.violations:  # else what is wrong by itself would be said again
        for info in infos:
            for hyperparameter, problem in impossible_combinations(search, info):
                check.that(False, f"search.space.{hyperparameter}", problem)


def _check_action_space(check: Checks, search: Search, action_space: Space) -> None:
    for index, share in enumerate(search.algorithms):
        try:
            check_action_space(share.algorithm, action_space)
        except InvalidInput as error:
            check.that(False, f"search.algorithms[{index}]", error.message)
    found = bool(searched_algorithms(search, action_space))
    check.that(found, "search.algorithms", f"no algorithm can act in {describe(action_space)}")


def _check_dimension(
    check: Checks, dimension: Dimension, infos: list[AlgorithmInfo], apart: set[str], *, settled: bool
) -> None:
    """`infos` are what is searched, or, while that is not `settled`, what may be: then one that fits is enough.

    The algorithms in `apart` have a range of their own for the same hyperparameter, which goes before a general one.
    """
    field = f"search.space.{dimension.key}"
    names = [info.name for info in infos]
    if dimension.algorithm and not check.that(
        dimension.algorithm in names, field, f"{dimension.algorithm!r} is not searched; expected {' or '.join(names)}"
    ):
        return
    searched = [info for info in infos if dimension.algorithm in ("", info.name)]
    known = list(dict.fromkeys(knob.name for info in searched for knob in info.hyperparameters))
    if dimension.hyperparameter in known:
        ruled = [info for info in searched if info.name not in apart]
        for problem in _dimension_problems(dimension, ruled, settled=settled):
            check.that(False, field, problem)
        return
    nearest = difflib.get_close_matches(dimension.hyperparameter, known, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"expected one of {', '.join(known)}"
    check.that(False, field, f"unknown hyperparameter {dimension.hyperparameter!r}; {hint}")


def _dimension_problems(dimension: Dimension, searched: list[AlgorithmInfo], *, settled: bool) -> list[str]:
    """What is wrong with a range. Algorithms may disagree on it: then each problem says whose it is."""
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
    return [text if names == having else f"{', '.join(names)}: {text}" for text, names in problems.items()]


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
            return [f"{knob.name} is not a whole number: use {'uniform' if knob.kind == 'float' else 'choice'}"]
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

"""Members with different hyperparameters: the first ones, and children of the best that replace the
worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from podracer_core.algorithms import Algorithm
from podracer_core.catalogue import Range, mutate, sample
from podracer_core.training import inherit

Values = dict[str, float]
"""A member's own hyperparameters that are searched."""

_REPLACED = 0.25
"""Part of the members: truncation selection of Jaderberg et al. 2017, Population Based Training,
arXiv:1711.09846."""


def first_members(
    ranges: Mapping[str, Range], defaults: Mapping[str, float], count: int, random: Random
) -> list[Values]:
    """The first member has the defaults if the ranges contain them, as a sound agent; the others
    are drawn."""
    drawn = [
        {name: _number(sample(where, random)) for name, where in sorted(ranges.items())}
        for _ in range(count)
    ]
    first = {
        name: defaults[name] if where.contains(defaults[name]) else drawn[0][name]
        for name, where in ranges.items()
    }
    return [first, *drawn[1:]]


def replace_worst(
    algorithm: Algorithm,
    returns: Sequence[float],
    values: list[Values],
    ranges: Mapping[str, Range],
    random: Random,
) -> None:
    """Replace the worst quarter of the members, by their `returns` [M], by children of the best
    quarter: with the parent's weights and mutated hyperparameters. Changes `values` accordingly."""
    active = algorithm.active.tolist()
    order = sorted(
        range(len(returns)), key=lambda member: (active[member], returns[member]), reverse=True
    )
    count = int(_REPLACED * len(order))
    for member in order[-count:]:
        parent = order[int(random.random() * count)]
        inherit(
            algorithm, member, "copy", [(algorithm.member_state(parent), 1.0)], keep_optimizer=True
        )
        values[member] = {
            name: _number(mutate(where, values[parent][name], random))
            for name, where in sorted(ranges.items())
        }
        algorithm.set_hyperparameters(member, values[member])


def _number(value: object) -> float:
    assert isinstance(value, int | float), "members differ in real numbers only"
    return float(value)

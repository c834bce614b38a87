"""Every hyperparameter that the code reads by name is described, and every described one is read.

A read is what mypy cannot check: `hyperparameters["gamma"]`. docs/adr/0037 says why it stays one.
"""

from __future__ import annotations

import ast
import functools
import inspect
from typing import Any

import pytest

from podracer_core.algorithms import (
    Experience,
    HTerm,
    OffPolicy,
    OnPolicy,
    Preparation,
    _architecture,
    algorithm_class,
)
from podracer_core.catalogue import BUILT_IN_ALGORITHMS, EXPLORATION_NOISE, H_TERM, LAYER_NORM
from podracer_core.networks import make_exploration

MAPPINGS = {"shared", "_shared", "hyperparameters", "_hyperparameters"}
PARTS: dict[type, tuple[Any, ...]] = {
    OffPolicy: (OffPolicy, Experience, HTerm, make_exploration),
    OnPolicy: (OnPolicy, _architecture, Preparation, HTerm),
}
"""What reads the hyperparameters of an algorithm, by its frame, beside the algorithm itself."""

OPTIONAL = [
    *({knob.name for knob in group} for group in (H_TERM, EXPLORATION_NOISE, LAYER_NORM)),
    {"noise_scale"},
    {"target_rate"},
]
"""What a frame reads where the algorithm has it: all of a group or none."""


@functools.cache
def reads(code: Any) -> frozenset[str]:
    """Names by which a class or a function reads hyperparameters."""
    names = set()
    for node in ast.walk(ast.parse(inspect.getsource(code))):
        match node:
            case (
                ast.Subscript(
                    value=ast.Name(id=mapping) | ast.Attribute(attr=mapping),
                    slice=ast.Constant(value=name),
                )
                | ast.Call(
                    func=ast.Attribute(value=ast.Name(id=mapping), attr="get"),
                    args=[ast.Constant(value=name), *_],
                )
            ) if mapping in MAPPINGS:
                names.add(name)
    return frozenset(names)


@pytest.mark.parametrize("name", BUILT_IN_ALGORITHMS)
def test_what_is_read_is_described_and_what_is_described_is_read(name):
    own = algorithm_class(name)
    frame = OffPolicy if issubclass(own, OffPolicy) else OnPolicy
    classes = own.__mro__[: own.__mro__.index(frame)]
    read = frozenset().union(*map(reads, (*classes, *PARTS[frame])))
    described = {knob.name for knob in BUILT_IN_ALGORITHMS[name].hyperparameters}
    assert described <= read
    for group in OPTIONAL:
        assert group <= described or not group & described
    assert read - described <= set().union(*OPTIONAL)

"""Spaces as plain values: JSON and back, and what they refuse."""

from __future__ import annotations

import json
import math

import pytest

from podracer_core.catalogue import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    TupleSpace,
    describe,
    form_of,
    from_json,
    to_json,
)
from podracer_core.errors import InvalidInput

SPACES: list[Space] = [
    BoxSpace(-1.0, 1.0, (3,)),
    BoxSpace((-math.inf, 0.5), (math.inf, 0.75), (2,), "float64"),
    BoxSpace(0.0, 255.0, (84, 84, 4), "uint8"),
    DiscreteSpace(4),
    DiscreteSpace(4, start=-1),
    MultiDiscreteSpace((3, 2)),
    MultiDiscreteSpace((3, 2), (1, 0)),
    MultiBinarySpace((5,)),
    DictSpace(
        (("z", BoxSpace(-1.0, 1.0, (3,))), ("a", TupleSpace((DiscreteSpace(2), DiscreteSpace(3)))))
    ),
]


@pytest.mark.parametrize("space", SPACES, ids=describe)
def test_json_there_and_back(space):
    text = json.dumps(to_json(space), allow_nan=False)
    assert from_json(json.loads(text)) == space
    assert hash(from_json(json.loads(text))) == hash(space)


@pytest.mark.parametrize(
    "value",
    [{}, {"kind": "text"}, {"kind": "box", "low": 0}, {"kind": "discrete", "n": "x", "start": 0}],
)
def test_anything_else_is_refused(value):
    with pytest.raises(InvalidInput):
        from_json(value)


def test_box():
    assert BoxSpace(0.0, 1.0, (2, 3)).size == 6
    assert BoxSpace(0.0, 1.0, ()).size == 1
    assert BoxSpace(0.0, 1.0, (2,)).bounded
    assert not BoxSpace(0.0, (1.0, math.inf), (2,)).bounded
    with pytest.raises(InvalidInput, match="3 numbers"):
        BoxSpace(0.0, (1.0, 2.0, 3.0), (2,))


def test_descriptions():
    assert [describe(space) for space in SPACES[3:6]] == [
        "Discrete(4)",
        "Discrete(4)",
        "MultiDiscrete([3, 2])",
    ]
    assert describe(SPACES[-1]) == "Dict(z: Box(3,), a: Tuple(Discrete(2), Discrete(3)))"


def test_what_decides_whether_a_network_fits():
    """Bounds of observations do not, and those of actions may be rounded, as in a catalogue and in
    float32."""
    exact = BoxSpace(-4.8, 4.8, (2,))
    rounded = BoxSpace((-4.800000190734863,) * 2, (4.800000190734863,) * 2, (2,))
    assert (
        form_of(exact, bounds=True)
        == form_of(rounded, bounds=True)
        != form_of(BoxSpace(-4.8, 4.9, (2,)), bounds=True)
    )
    unbounded = DictSpace((("seen", BoxSpace(-math.inf, math.inf, (2,), "float64")),))
    assert form_of(unbounded, bounds=False) == form_of(DictSpace((("seen", exact),)), bounds=False)
    assert form_of(exact, bounds=False) != form_of(
        BoxSpace(0.0, 255.0, (2,), "uint8"), bounds=False
    )

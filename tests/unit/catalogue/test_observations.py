"""The flat row of an observation: the same as Gymnasium's, with a name and a place for each
part."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from podracer_core.catalogue import flat_rows, parts_of, treatment
from podracer_core.environments import from_gymnasium
from podracer_core.errors import InvalidInput

ROBOT = spaces.Dict(
    speed=spaces.Box(-1e5, 1e5, (2,), np.float64),
    gear=spaces.Discrete(3, start=1),
    armed=spaces.MultiBinary(2),
)
NESTED = spaces.Dict(
    [
        (
            "z",
            spaces.Tuple([ROBOT, spaces.MultiDiscrete([[2, 3], [1, 4]], start=[[0, 5], [0, -1]])]),
        ),
        ("empty", spaces.Box(0, 1, (0, 4))),
        ("camera", spaces.Box(0, 255, (2, 2, 3), np.uint8)),
        ("a", spaces.Box(-1, 1, ())),
    ]
)


@pytest.mark.parametrize(
    "space", [ROBOT, NESTED, spaces.Discrete(5, start=-2), spaces.Box(0, 1, ())], ids=str
)
def test_rows_are_those_of_gymnasium(space):
    own = from_gymnasium(space)
    space.seed(0)
    observations = [space.sample() for _ in range(5)]
    expected = [spaces.flatten(space, each).astype(np.float32) for each in observations]
    for observation, row in zip(observations, expected, strict=True):
        rows, is_single = flat_rows(own, observation)
        assert is_single
        np.testing.assert_array_equal(rows.astype(np.float32), row[None])
    if isinstance(space, spaces.Dict):
        batch = gymnasium.vector.utils.concatenate(
            space, observations, gymnasium.vector.utils.create_empty_array(space, len(observations))
        )
        rows, is_single = flat_rows(own, batch)
        assert not is_single
        np.testing.assert_array_equal(rows.astype(np.float32), expected)


def test_parts_have_names_and_places():
    found = [(part.name, part.offset, part.size) for part in parts_of(from_gymnasium(NESTED))]
    assert found == [
        ("z/0/speed", 0, 2), ("z/0/gear", 2, 3), ("z/0/armed", 5, 2), ("z/1", 7, 10),
        ("empty", 17, 0), ("camera", 17, 12), ("a", 29, 1),
    ]  # fmt: skip
    gear = parts_of(from_gymnasium(ROBOT))[1]
    assert gear.to_json() == {
        "name": "gear",
        "offset": 2,
        "size": 3,
        "shape": [],
        "kind": "one_hot",
        "first": [1],
    }


def test_what_is_empty_is_a_constant():
    for space, observation in ((spaces.Dict(), {}), (spaces.Box(0, 1, (0,)), np.zeros(0))):
        rows, is_single = flat_rows(from_gymnasium(space), observation)
        assert (rows.tolist(), is_single) == ([[0.0]], True)


def test_text_is_left_out():
    rows, _ = flat_rows(
        from_gymnasium(spaces.Dict(numbers=spaces.Box(0, 9, (2,)))),
        {"numbers": [1, 2], "mission": "go"},
    )
    assert rows.tolist() == [[1.0, 2.0]]


GOOD = {"speed": np.zeros(2), "gear": 1, "armed": [0, 1]}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gear": 4}, "gear: expected a whole number from 1 to 3, got 4"),
        ({"gear": 1.5}, "gear: expected a whole number from 1 to 3, got 1.5"),
        ({"gear": "N"}, "gear: expected numbers, got an array of <U1"),
        ({"speed": np.zeros(3)}, r"speed: expected the shape \[2\] or \[B, 2\], got \[3\]"),
        (
            {"speed": np.zeros((4, 2))},
            r"expected one row of each part or B rows of each, got .*\[4, 2\] of speed",
        ),
        (
            {"more": 1},
            r"expected Dict\(.*gear: Discrete\(3\).*\), got the parts speed, gear, armed, more",
        ),
    ],
)
def test_what_does_not_fit_is_named(changed, message):
    with pytest.raises(InvalidInput, match=message):
        flat_rows(from_gymnasium(ROBOT), GOOD | changed)


@pytest.mark.parametrize(
    ("space", "line"),
    [
        (spaces.Box(-1, 1, (4,)), ""),
        (spaces.Box(-1, 1, ()), "the policy sees observation (1 number)"),
        (
            spaces.Box(0, 255, (84, 84, 4), np.uint8),
            "the policy sees an image 84×84×4 by convolutions",
        ),
        (ROBOT, "the policy sees speed (2 numbers), gear (one-hot, 3 numbers), armed (2 numbers)"),
        (
            spaces.Dict(camera=spaces.Box(0, 255, (84, 84, 4), np.uint8)),
            "the policy sees camera (an image 84×84×4, flattened into 28,224 numbers; "
            "convolutions read a uint8 Box of three axes that is the whole observation)",
        ),
        (spaces.Dict(), "the policy sees a constant 0: the observation is empty"),
    ],
    ids=str,
)
def test_a_line_for_people(space, line):
    assert treatment(from_gymnasium(space)) == line

"""Every kind of space into rows of a batch and out of them, as Gymnasium itself flattens it."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from podracer_core.environments import action_array_space, observation_array_space
from podracer_core.environments.processes import action_reader, observation_writer
from podracer_core.errors import InvalidInput
from support.errors import raises

NESTED = spaces.Tuple(
    [
        spaces.Dict(
            [("z", spaces.Discrete(2)), ("y", spaces.Tuple([spaces.Box(0, 255, (2,), np.uint8)]))]
        ),
        spaces.MultiBinary((2, 3)),
        spaces.Dict(
            {
                "b": spaces.MultiDiscrete([2, 3], start=[1, 5]),
                "a": spaces.Box(-1, 1, (2, 2), np.float64),
            }
        ),
    ]
)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5, start=-2),
        spaces.MultiDiscrete([2, 3], start=[1, 5]),
        spaces.MultiDiscrete(np.array([[2, 3], [4, 1]])),
        spaces.MultiBinary(4),
        spaces.MultiBinary((2, 3)),
        NESTED,
    ],
    ids=str,
)
def test_flat_observations(space):
    array_space = observation_array_space(space)
    array = np.full((3, *array_space.shape), 9, array_space.dtype)
    write = observation_writer(space, array_space, lambda: "step")
    space.seed(0)
    for _ in range(20):
        observation = space.sample()
        write(array, 1, observation)
        np.testing.assert_array_equal(
            array[1], spaces.utils.flatten(space, observation).astype(np.float32)
        )
        assert array_space.contains(array[1])
    assert (array[[0, 2]] == 9).all()


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
@pytest.mark.parametrize("is_part", [False, True])
def test_an_origin_is_subtracted_before_numbers_become_float32(dtype, is_part):
    box = spaces.Box(0, 2**40, (2,), dtype)
    space = spaces.Dict(choice=spaces.Discrete(2), time=box) if is_part else box
    array_space = observation_array_space(space)
    array = np.full((2, *array_space.shape), 9, np.float32)
    origin = (0.0, 0.0, 1.7e9) if is_part else (1.7e9,)
    write = observation_writer(space, array_space, lambda: "step", origin)
    time = np.array([1_700_000_001, 3], dtype)
    write(array, 1, {"choice": 1, "time": time} if is_part else time)
    assert array.tolist() == [[9] * len(array[0]), [0, 1, 1, 3] if is_part else [1, 3]]
    with pytest.raises(InvalidInput, match="observation"):
        write(array, 1, None)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int64, np.bool_])
def test_boxes_keep_their_shape(dtype):
    space = spaces.Box(0, 1, (2, 3), dtype)
    array_space = observation_array_space(space)
    assert array_space.dtype == (np.uint8 if dtype == np.uint8 else np.float32)
    array = np.full((2, 2, 3), 9, array_space.dtype)
    write = observation_writer(space, array_space, lambda: "step")
    observation = np.array([[1, 0, 1], [0, 0, 1]], dtype)
    for given in (observation, observation.tolist(), observation.astype(np.int8)):
        array.fill(9)
        write(array, 0, given)
        np.testing.assert_array_equal(array[0], observation)


@pytest.mark.parametrize(
    ("space", "observation", "complaint"),
    [
        (
            spaces.Box(0, 1, (2,)),
            np.zeros(3),
            r"step returned an observation of shape \[3\]; its space has \[2\]",
        ),
        (spaces.Box(0, 1, (2,)), 0.5, r"of shape \[\]; its space has \[2\]"),
        (spaces.Box(0, 1, (2,)), [[1], [1, 2]], "an observation that is no array"),
        (
            spaces.Box(0, 1, (2,)),
            np.array(["a", "b"]),
            "an observation of type <U1; its space needs float32",
        ),
        (spaces.Box(0, 1, (2,)), None, "returned None in place of an observation"),
        (
            spaces.Box(0, 255, (2,), np.uint8),
            np.array([0.1, 0.9]),
            "of type float64; its space needs uint8",
        ),
        (spaces.Box(0, 255, (2,), np.uint8), [1, 256], "with numbers outside the bounds of uint8"),
        (spaces.Discrete(3), 3, "the observation of step is int 3, which is not in Discrete"),
        (NESTED, {}, "the observation of step is dict {}, which is not in Tuple"),
        (
            spaces.Dict({"a": spaces.Discrete(2)}),
            {"b": 1},
            r"has the keys \['b'\]; its space has \['a'\]",
        ),
        (
            spaces.Dict({"a": spaces.Box(0, 1, (2,))}),
            {"a": np.zeros(3)},
            r"of shape \[3\]; its space has \[2\]",
        ),
    ],
)
def test_what_does_not_fit(space, observation, complaint):
    array_space = observation_array_space(space)
    write = observation_writer(space, array_space, lambda: "step")
    with pytest.raises(InvalidInput, match=complaint):
        write(np.zeros((1, *array_space.shape), array_space.dtype), 0, observation)


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (spaces.Discrete(3, start=4), np.array([0, 2])),
        (spaces.MultiDiscrete([2, 3], start=[0, 5]), np.array([[0, 2], [1, 0]])),
        (spaces.MultiBinary(2), np.array([[0, 1], [1, 1]])),
        (spaces.Box(-1, 1, (1,)), np.array([[-1], [1]], np.float32)),
        # float32(0.1) is above 0.1: it must not get through.
        (spaces.Box(-0.1, 0.1, (1,), np.float64), np.array([[-0.1], [0.1]], np.float32)),
    ],
    ids=str,
)
def test_actions(space, actions):
    """Each is in its space, and a copy."""
    read = list(action_reader(space)(actions))
    assert len(read) == 2
    assert all(space.contains(action) for action in read)
    before = np.array(read)
    actions += 1
    np.testing.assert_array_equal(np.array(read), before)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Box(0, 1, (2,)), None),
        spaces.OneOf([spaces.Discrete(2)]),
    ],
    ids=lambda space: type(space).__name__,
)
def test_spaces_without_a_size_are_refused(space):
    nested = spaces.Dict({"a": spaces.Tuple([space])})
    for each in (space, nested):
        with pytest.raises(InvalidInput, match=f"a {type(space).__name__} space has"):
            observation_array_space(each)
    for each in (space, nested):
        with raises(InvalidInput, "ACTION_SPACE_UNSUPPORTED", match="supported; use"):
            action_array_space(each)


def test_a_refusal_of_actions_names_them_and_what_would_be_right():
    space = spaces.Dict(gas=spaces.Box(0, 1, (1,)), gear=spaces.Discrete(3))
    with raises(InvalidInput, "ACTION_SPACE_UNSUPPORTED", match=r"gear: Discrete\(3\)\)"):
        action_array_space(space)


@pytest.mark.parametrize(
    "space",
    [spaces.Box(-1, 1, ()), spaces.Box(0, 1, (0,)), spaces.Dict(), spaces.Tuple([])],
    ids=str,
)
def test_observations_of_one_number_or_none(space):
    array_space = observation_array_space(space)
    assert (array_space.shape, array_space.dtype) == ((1,), np.float32)
    array = np.full((2, 1), 9, np.float32)
    observation = space.sample()
    observation_writer(space, array_space, lambda: "reset")(array, 1, observation)
    assert array.ravel().tolist() == [9, float(observation) if space.shape == () else 0]

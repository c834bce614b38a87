"""The table of algorithms: every default lies in its own range, and wrong values are named."""

from __future__ import annotations

import pytest

from podracer_core.catalogue.algorithms import ALGORITHMS, check_action_space, find_algorithm
from podracer_core.catalogue.spaces import BoxSpace, DiscreteSpace, MultiDiscreteSpace, Space
from podracer_core.errors import InvalidInput

KNOBS = [(info.name, knob.name) for info in ALGORITHMS.values() for knob in info.hyperparameters]


@pytest.mark.parametrize(("algorithm", "name"), KNOBS)
def test_every_row_is_sound(algorithm: str, name: str) -> None:
    knob = ALGORITHMS[algorithm].hyperparameter(name)
    knob.check(knob.default)
    assert knob.meaning
    if knob.scope == "member":
        assert knob.kind == "float", "members differ in continuous hyperparameters only"
    if knob.search is not None:
        assert knob.search.low < knob.search.high
        knob.check(knob.search.low)
        knob.check(knob.search.high)
        assert knob.search.low > 0 or not knob.search.logarithmic


def test_names_are_unique() -> None:
    assert len(set(KNOBS)) == len(KNOBS)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("gamma", 1.5, "gamma must be a number from 0 to 1, not 1.5"),
        ("gamma", float("nan"), "not nan"),
        ("gamma", "high", "must be a number, not 'high'"),
        ("gamma", True, "must be a number, not True"),
        ("learning_rate", 0, "must be a number from"),
        ("epochs", 2.5, "must be a whole number, not 2.5"),
        ("hidden_sizes", [64, 0], "each of which must be a whole number from 1"),
        ("hidden_sizes", [], "must be a list of whole numbers"),
        ("hidden_sizes", "64", "must be a list of whole numbers"),
        ("activation", "sine", "must be one of tanh"),
        ("normalize_observations", 1, "must be true or false"),
    ],
)
def test_wrong_values(name: str, value: object, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint) as caught:
        ALGORITHMS["ppo"].hyperparameter(name).check(value)
    assert caught.value.violations[0].field == name


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="did you mean ppo"):
        find_algorithm("ppq")
    with pytest.raises(InvalidInput, match="did you mean learning_rate"):
        find_algorithm("ppo").hyperparameter("lerning_rate")


def test_defaults_by_scope() -> None:
    info = find_algorithm("ppo")
    assert set(info.defaults("member")) >= {"learning_rate", "gamma", "gae_lambda", "clip_range"}
    assert "hidden_sizes" not in info.defaults("member", "cohort")
    assert len(info.defaults()) == len(info.hyperparameters)


@pytest.mark.parametrize("space", [DiscreteSpace(2), BoxSpace(-1.0, 1.0, (3,))])
def test_ppo_acts_in(space: Space) -> None:
    check_action_space("ppo", space)


@pytest.mark.parametrize(
    ("space", "complaint"),
    [
        (MultiDiscreteSpace((3, 2)), r"ppo cannot act in MultiDiscrete\(\[3, 2\]\); it acts in Box and Discrete"),
        (BoxSpace(0.0, 255.0, (3,), "uint8"), "Box of uint8"),
        (BoxSpace(0.0, 1.0, (0,)), "empty"),
    ],
)
def test_ppo_does_not_act_in(space: Space, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint) as caught:
        check_action_space("ppo", space)
    assert caught.value.reason == "ACTION_SPACE_UNSUPPORTED"

"""The table of algorithms: every row is sound, wrong values are named, and each algorithm acts only
where it can."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from podracer_core.catalogue import (
    BUILT_IN_ALGORITHMS,
    OFF_POLICY,
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    Fixed,
    Hyperparameter,
    Interval,
    MultiBinarySpace,
    MultiDiscreteSpace,
    adapted,
    automatic_algorithms,
    check_action_space,
    find_algorithm,
    known_algorithms,
    sought,
)
from podracer_core.errors import InvalidInput
from support.errors import raises

KNOBS = [
    (info.name, knob.name) for info in BUILT_IN_ALGORITHMS.values() for knob in info.hyperparameters
]
OFF = [name for name, info in BUILT_IN_ALGORITHMS.items() if not info.on_policy]

BOUNDED, UNBOUNDED = BoxSpace(-1.0, 1.0, (3,)), BoxSpace(-math.inf, math.inf, (3,))
HALF_BOUNDED = BoxSpace((-1.0, -1.0), (1.0, math.inf), (2,))
DISCRETE = DiscreteSpace(2)
MULTI_DISCRETE = MultiDiscreteSpace((3, 2))
BITS = MultiBinarySpace((5,))
CONTINUOUS = {"ddpg", "td3", "sac", "modsac", "redq", "crossq", "flash_sac"}
DISCRETE_ONLY = {"dqn", "double_dqn", "dueling_dqn", "d3qn", "qr_dqn", "discrete_sac"}


@pytest.mark.parametrize("algorithm", BUILT_IN_ALGORITHMS)
def test_every_row_is_sound(algorithm):
    for knob in BUILT_IN_ALGORITHMS[algorithm].hyperparameters:
        check_row(knob)


def check_row(knob: Hyperparameter) -> None:
    knob.check(knob.default)
    assert knob.meaning, knob.name
    assert knob.source, knob.name
    assert bool(knob.choices) == (knob.kind == "choice")
    if knob.scope == "member":
        assert knob.kind == "float", "members differ in continuous hyperparameters only"
    if isinstance(knob.search, Fixed):
        assert knob.scope != "member", "members differ in ranges"
        knob.check(knob.search.value)
    elif knob.search is not None:
        assert isinstance(knob.search, Interval), (
            "two values of what a cohort shares would take cohorts apart"
        )
        assert knob.scope == "member", "a range of what a cohort shares would take cohorts apart"
        assert knob.search.low < knob.search.high
        assert knob.search.contains(knob.default), "a job's first agents have the defaults"
        knob.check(knob.search.low)
        knob.check(knob.search.high)
        assert knob.search.low > 0 or not knob.search.logarithmic


def test_names_are_unique():
    assert len(set(KNOBS)) == len(KNOBS)


def test_these_are_all_of_them():
    assert set(BUILT_IN_ALGORITHMS) == {"ppo", "a2c"} | CONTINUOUS | DISCRETE_ONLY
    assert set(OFF) == CONTINUOUS | DISCRETE_ONLY
    assert set(known_algorithms()) >= set(BUILT_IN_ALGORITHMS)


@pytest.mark.parametrize("algorithm", OFF)
def test_what_learns_from_replay_has_the_same_knobs_of_the_same_form(algorithm):
    for knob in OFF_POLICY:
        if (algorithm, knob.name) == ("crossq", "target_rate"):
            continue  # it has no targets
        own = find_algorithm(algorithm).hyperparameter(knob.name)
        search = knob.search if isinstance(own.search, Fixed) else own.search
        assert replace(own, default=knob.default, source=knob.source, search=search) == knob


def test_only_a_known_hyperparameter_is_adapted():
    changed = adapted(OFF_POLICY, "me", batch_size=32)
    assert [(knob.name, knob.default, knob.source) for knob in changed if knob.source == "me"] == [
        ("batch_size", 32, "me")
    ]
    with pytest.raises(InvalidInput, match="batchsize"):
        adapted(OFF_POLICY, "me", batchsize=32)


def test_a_search_may_have_another_value_than_the_default():
    changed = {knob.name: knob for knob in sought(OFF_POLICY, batch_size=32)}
    assert changed["batch_size"].search == Fixed(32)
    assert changed["batch_size"].default == 256
    assert changed["horizon"].search is None
    with pytest.raises(InvalidInput, match="batchsize"):
        sought(OFF_POLICY, batchsize=32)


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
        ("hidden_sizes", [1] * 65, "must be a list of at most 64 whole numbers"),
        ("activation", "sine", "must be one of tanh"),
        ("normalize_observations", 1, "must be true or false"),
    ],
)
def test_wrong_values(name, value, complaint):
    with pytest.raises(InvalidInput, match=complaint) as caught:
        find_algorithm("ppo").hyperparameter(name).check(value)
    assert caught.value.violations[0].field == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("replay_capacity", -1),
        ("replay_capacity", 1 << 31),
        ("n_step", 0),
        ("updates_per_step", 0.0),
        ("target_rate", 0.0),
        ("replay", "everyone"),
        ("learning_starts", -1),
        ("max_gradient_norm", -1.0),
        ("h_term", "on"),
        ("exploration", "epsilon"),
    ],
)
def test_wrong_values_off_policy(name, value):
    with pytest.raises(InvalidInput, match=name):
        find_algorithm("sac").hyperparameter(name).check(value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"name": "My.Own"}, "no name of an algorithm"),
        ({"implementation": "my_package.mine"}, "not package.module:Class"),
        ({"hyperparameters": OFF_POLICY + OFF_POLICY[:1]}, "two hyperparameters learning_rate"),
        (
            {"hyperparameters": adapted(OFF_POLICY, "me", gamma=2.0)},
            "gamma must be a number from 0 to 1",
        ),
        (
            {"hyperparameters": (replace(OFF_POLICY[4], scope="member"),)},
            "real numbers only, not in int",
        ),
    ],
)
def test_an_algorithm_that_cannot_be_right(change, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        replace(find_algorithm("sac"), **change)


def test_unknown_names_are_answered_with_the_nearest():
    with raises(InvalidInput, "UNKNOWN_ALGORITHM"):
        find_algorithm("ppq")
    with raises(InvalidInput, field="lerning_rate"):
        find_algorithm("ppo").hyperparameter("lerning_rate")


def test_defaults_by_scope():
    info = find_algorithm("ppo")
    assert set(info.defaults("member")) >= {"learning_rate", "gamma", "gae_lambda", "clip_range"}
    assert "hidden_sizes" not in info.defaults("member", "cohort")
    assert len(info.defaults()) == len(info.hyperparameters)


@pytest.mark.parametrize(
    ("space", "names"),
    [
        (BOUNDED, {"ppo", "a2c"} | CONTINUOUS),
        (UNBOUNDED, {"ppo", "a2c"}),
        (HALF_BOUNDED, {"ppo", "a2c"}),
        (DISCRETE, {"ppo", "a2c"} | DISCRETE_ONLY),
        (MULTI_DISCRETE, {"ppo"}),
        (BITS, {"ppo"}),
        (DictSpace(()), set()),
    ],
)
def test_who_acts_where(space, names):
    able = set()
    for name in BUILT_IN_ALGORITHMS:
        try:
            check_action_space(name, space)
        except InvalidInput as error:
            assert error.reason == "ACTION_SPACE_UNSUPPORTED"
            continue
        able.add(name)
    assert able == names


@pytest.mark.parametrize(
    ("algorithm", "space", "complaint"),
    [
        (
            "ppo",
            DictSpace(()),
            r"ppo cannot act in Dict\(\); it acts in Box, Discrete, MultiDiscrete and MultiBinary$",
        ),
        ("ppo", BoxSpace(0.0, 255.0, (3,), "uint8"), "Box of uint8"),
        ("ppo", BoxSpace(0.0, 1.0, (0,)), "empty"),
        ("ppo", MultiBinarySpace((2, 2)), r"MultiBinary\(2, 2\); it acts in a vector of bits"),
        (
            "td3",
            UNBOUNDED,
            r"td3 cannot act in Box\(3,\) without bounds; it needs finite bounds, .*; ppo or a2c "
            r"can",
        ),
        ("sac", HALF_BOUNDED, "finite bounds"),
        (
            "dqn",
            MULTI_DISCRETE,
            r"dqn cannot act in MultiDiscrete\(\[3, 2\]\); it acts in Discrete; ppo can",
        ),
    ],
)
def test_who_cannot_act_is_told_why_and_who_can(algorithm, space, complaint):
    with pytest.raises(InvalidInput, match=complaint) as caught:
        check_action_space(algorithm, space)
    assert caught.value.violations[0].field == "search.algorithms"


@pytest.mark.parametrize(
    ("space", "names"),
    [
        (BOUNDED, {"ppo", "sac", "td3"}),
        (UNBOUNDED, {"ppo"}),
        (DISCRETE, {"ppo", "d3qn", "discrete_sac"}),
        (MULTI_DISCRETE, {"ppo"}),
        (BITS, {"ppo"}),
        (None, {"ppo", "sac", "td3", "d3qn", "discrete_sac"}),
    ],
)
def test_what_auto_stands_for(space, names):
    assert set(automatic_algorithms(space)) == names

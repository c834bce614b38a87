"""A range gives, and mutates into, nothing but its own values."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podracer_core.catalogue import Choice, Fixed, IntegerInterval, Interval, perturb, sample

positive = st.floats(1e-12, 1e12)
real = st.floats(-1e12, 1e12)
VALUES = st.one_of(
    real,
    st.integers(-100, 100),
    st.text(max_size=3),
    st.lists(st.integers(1, 9), max_size=3).map(tuple),
)


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    logarithmic = draw(st.booleans())
    if draw(st.booleans()):
        low, high = sorted(draw(st.tuples(*[st.floats(0.0, 1.0)] * 2)))
        return Interval(
            min(low, math.nextafter(high, 0.0)) if high else 0.0,
            high or 1.0,
            logarithmic,
            near_one=True,
        )
    low, high = sorted(draw(st.tuples(*[positive if logarithmic else real] * 2)))
    return Interval(low, max(high, math.nextafter(low, math.inf)), logarithmic)


@st.composite
def integer_intervals(draw: st.DrawFn) -> IntegerInterval:
    logarithmic = draw(st.booleans())
    low = draw(st.integers(1 if logarithmic else -(10**6), 10**6))
    return IntegerInterval(low, low + draw(st.integers(1, 10**6)), logarithmic)


RANGES = st.one_of(
    intervals(),
    integer_intervals(),
    VALUES.map(Fixed),
    st.lists(VALUES, min_size=1, max_size=5, unique=True).map(lambda values: Choice(tuple(values))),
)


@given(RANGES, st.integers(0, 2**32))
def test_samples_and_their_neighbours_stay_inside(search, seed):
    random = Random(seed)
    value = sample(search, random)
    assert search.contains(value)
    for _ in range(5):
        value = perturb(search, value, random)
        assert search.contains(value)


@given(RANGES, st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_values(search, seed):
    first, second = Random(seed), Random(seed)
    assert sample(search, first) == sample(search, second)


@given(integer_intervals(), st.integers(0, 2**32))
def test_a_neighbour_of_a_whole_number_is_another_one(search, seed):
    random = Random(seed)
    value = sample(search, random)
    neighbour = perturb(search, value, random)
    assert isinstance(neighbour, int)
    assert neighbour != value


def test_a_real_number_moves_by_a_fifth():
    search, random = Interval(1e-4, 1e-2, logarithmic=True), Random(0)
    moved = {perturb(search, 1e-3, random) for _ in range(50)}
    assert moved == {1e-3 * 0.8, 1e-3 * 1.2}


def test_at_an_end_it_moves_inwards():
    search, random = Interval(1e-4, 1e-2, logarithmic=True), Random(0)
    assert {perturb(search, 1e-2, random) for _ in range(50)} == {1e-2 * 0.8}


def test_where_both_neighbours_are_outside_they_are_clipped():
    assert {perturb(Interval(0.95, 0.999), 0.98, Random(seed)) for seed in range(50)} == {
        0.95,
        0.999,
    }
    assert {perturb(Interval(1e-4, 1e-2), 0.1, Random(seed)) for seed in range(50)} == {1e-2}, (
        "a founder's own"
    )
    assert perturb(IntegerInterval(8, 64), 1000, Random(0)) == round(64 * 0.8)


@pytest.mark.parametrize(
    ("low", "high", "value", "expected"),
    [
        (0.97, 0.999, 0.99, [0.988, 0.992]),  # 0.01 x 1.2 and x 0.8 away from 1
        (0.9, 0.98, 0.95, [0.94, 0.96]),
        (0.97, 0.999, 0.999, [0.9988]),  # 0.0008 away would be outside
        (0.9, 1.0, 1.0, [0.9988, 0.9992]),  # a hundredth of 0.1 stands for no distance
        (0.97, 0.999, 0.9, [0.97]),
    ],
)
def test_near_one_the_distance_from_it_moves_by_a_fifth(low, high, value, expected):
    search = Interval(low, high, logarithmic=True, near_one=True)
    assert sorted({perturb(search, value, Random(seed)) for seed in range(50)}) == pytest.approx(
        expected
    )


def test_near_one_every_decade_of_the_distance_has_its_share():
    """Half of what is drawn from 0.9 to 0.999 is above 0.99; of an even range that would be an
    eleventh."""
    search, random = Interval(0.9, 0.999, logarithmic=True, near_one=True), Random(0)
    assert sum(sample(search, random) > 0.99 for _ in range(4000)) / 4000 == pytest.approx(
        0.5, abs=0.03
    )
    even = Interval(0.9, 0.999, near_one=True)
    assert sum(sample(even, random) > 0.99 for _ in range(4000)) / 4000 == pytest.approx(
        1 / 11, abs=0.03
    )


def test_a_choice_moves_to_the_one_beside_it():
    search, random = Choice((0.9, 0.95, 0.99)), Random(0)
    assert {perturb(search, 0.9, random) for _ in range(50)} == {0.95}
    assert {perturb(search, 0.95, random) for _ in range(50)} == {0.9, 0.99}
    assert perturb(Choice(("tanh",)), "tanh", random) == "tanh"
    assert {perturb(Choice((1, 2)), 7, random) for _ in range(50)} == {1, 2}


@pytest.mark.parametrize("logarithmic", [False, True])
def test_both_ends_of_whole_numbers_are_drawn(logarithmic):
    search, random = IntegerInterval(1, 4, logarithmic), Random(0)
    assert {sample(search, random) for _ in range(200)} == {1, 2, 3, 4}


def test_a_logarithmic_range_gives_every_decade_its_share():
    search, random = Interval(1e-4, 1e-2, logarithmic=True), Random(0)
    lower = sum(sample(search, random) < 1e-3 for _ in range(4000))
    assert abs(lower / 4000 - 0.5) < 0.03

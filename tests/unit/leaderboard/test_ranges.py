"""A range gives, and mutates into, nothing but its own values."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podracer_leaderboard.ranges import Choice, Fixed, IntegerInterval, Interval, Range

positive = st.floats(1e-12, 1e12)
real = st.floats(-1e12, 1e12)
VALUES = st.one_of(
    real, st.integers(-100, 100), st.text(max_size=3), st.lists(st.integers(1, 9), max_size=3).map(tuple)
)


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    logarithmic = draw(st.booleans())
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
def test_samples_and_their_neighbours_stay_inside(search: Range, seed: int) -> None:
    random = Random(seed)
    value = search.sample(random)
    assert search.contains(value)
    for _ in range(5):
        value = search.perturb(value, random)
        assert search.contains(value)


@given(RANGES, st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_values(search: Range, seed: int) -> None:
    first, second = Random(seed), Random(seed)
    assert search.sample(first) == search.sample(second)


@given(integer_intervals(), st.integers(0, 2**32))
def test_a_neighbour_of_a_whole_number_is_another_one(search: IntegerInterval, seed: int) -> None:
    random = Random(seed)
    value = search.sample(random)
    neighbour = search.perturb(value, random)
    assert isinstance(neighbour, int)
    assert neighbour != value


def test_a_real_number_moves_by_a_fifth() -> None:
    search, random = Interval(1e-4, 1e-2, logarithmic=True), Random(0)
    moved = {search.perturb(1e-3, random) for _ in range(50)}
    assert moved == {1e-3 * 0.8, 1e-3 * 1.2}


def test_at_an_end_it_moves_inwards() -> None:
    search, random = Interval(1e-4, 1e-2, logarithmic=True), Random(0)
    assert {search.perturb(1e-2, random) for _ in range(50)} == {1e-2 * 0.8}


def test_where_both_neighbours_are_outside_it_is_drawn_anew() -> None:
    search, random = Interval(0.95, 0.999), Random(0)
    moved = {search.perturb(0.98, random) for _ in range(50)}
    assert len(moved) == 50
    assert all(search.contains(value) for value in moved)


def test_a_choice_moves_to_the_one_beside_it() -> None:
    search, random = Choice((0.9, 0.95, 0.99)), Random(0)
    assert {search.perturb(0.9, random) for _ in range(50)} == {0.95}
    assert {search.perturb(0.95, random) for _ in range(50)} == {0.9, 0.99}
    assert Choice(("tanh",)).perturb("tanh", random) == "tanh"


@pytest.mark.parametrize("logarithmic", [False, True])
def test_both_ends_of_whole_numbers_are_drawn(logarithmic: bool) -> None:
    search, random = IntegerInterval(1, 4, logarithmic), Random(0)
    assert {search.sample(random) for _ in range(200)} == {1, 2, 3, 4}


def test_a_logarithmic_range_gives_every_decade_its_share() -> None:
    search, random = Interval(1e-4, 1e-2, logarithmic=True), Random(0)
    lower = sum(search.sample(random) < 1e-3 for _ in range(4000))
    assert abs(lower / 4000 - 0.5) < 0.03

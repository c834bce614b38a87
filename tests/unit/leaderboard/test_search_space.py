"""New agents are complete and inside the space; children keep what their cohort shares."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podracer_core.catalogue import (
    Choice,
    Fixed,
    IntegerInterval,
    Interval,
    Range,
    Scope,
    find_algorithm,
)
from podracer_core.errors import InvalidInput
from podracer_core.evolution import SearchSpace, shape_of, weights_shape

PPO = find_algorithm("ppo")
SCOPES: tuple[Scope, ...] = ("member", "cohort", "network")
SEARCHABLE: Mapping[str, st.SearchStrategy[Range]] = {
    "learning_rate": st.just(Interval(1e-4, 1e-2, logarithmic=True)),
    "gamma": st.sampled_from([Choice((0.9, 0.95, 0.99)), Interval(0.9, 0.999), Fixed(0.97)]),
    "clip_range": st.just(Interval(0.1, 0.3)),
    "entropy_coefficient": st.just(Fixed(0.01)),
    "horizon": st.sampled_from([Choice((16, 32, 64)), IntegerInterval(8, 128, logarithmic=True)]),
    "hidden_sizes": st.just(Choice(((32, 32), (64, 64), (256, 256)))),
    "activation": st.just(Choice(("tanh", "relu"))),
}


@st.composite
def spaces(draw: st.DrawFn) -> SearchSpace:
    names = draw(st.sets(st.sampled_from(sorted(SEARCHABLE))))
    return SearchSpace({"ppo": 1.0}, {"ppo": {name: draw(SEARCHABLE[name]) for name in names}})


def check(space: SearchSpace, hyperparameters: Mapping[str, object]) -> None:
    assert set(hyperparameters) == {knob.name for knob in PPO.hyperparameters}
    for knob in PPO.hyperparameters:
        knob.check(hyperparameters[knob.name])
        search = space.ranges["ppo"].get(knob.name)
        if search is None:
            assert hyperparameters[knob.name] == knob.default
        else:
            assert search.contains(hyperparameters[knob.name])  # type: ignore[arg-type]


@given(spaces(), st.integers(0, 2**32))
def test_every_new_agent_is_complete_and_inside(space, seed):
    check(space, space.sample("ppo", Random(seed)))
    check(space, space.defaults("ppo", Random(seed)))


@given(spaces(), st.integers(0, 2**32))
def test_generations_of_mutation_stay_inside_and_keep_the_shape(space, seed):
    random = Random(seed)
    hyperparameters = space.sample("ppo", random)
    shape = shape_of("ppo", hyperparameters)
    for _ in range(20):
        hyperparameters = space.mutate("ppo", hyperparameters, random)
        check(space, hyperparameters)
        assert shape_of("ppo", hyperparameters) == shape


@given(spaces(), st.integers(0, 2**32))
def test_a_donor_is_never_changed(space, seed):
    donor = space.sample("ppo", Random(seed))
    before = dict(donor)
    space.mutate("ppo", donor, Random(seed))
    assert donor == before


def test_the_first_agent_takes_the_defaults_where_the_search_allows_them():
    ranges: dict[str, Range] = {
        "learning_rate": Interval(1e-4, 1e-2, True),
        "gamma": Choice((0.9, 0.95)),
    }
    space = SearchSpace({"ppo": 1.0}, {"ppo": ranges})
    first = space.defaults("ppo", Random(0))
    assert first["learning_rate"] == PPO.hyperparameter("learning_rate").default
    assert first["gamma"] in (0.9, 0.95)


def test_only_what_a_member_has_to_itself_is_mutated():
    ranges: dict[str, Range] = {
        "learning_rate": Interval(1e-4, 1e-2, True),
        "gamma": Fixed(0.95),
        "horizon": Choice((16, 32)),
    }
    assert SearchSpace({"ppo": 1.0}, {"ppo": ranges}).mutable("ppo") == ["learning_rate"]


def test_the_shape_is_everything_that_a_cohort_shares():
    algorithm, shared = shape_of("ppo", PPO.defaults())
    assert algorithm == "ppo"
    assert {"horizon", "minibatch_size", "epochs", "hidden_sizes", "activation"} <= {
        name for name, _ in shared
    }
    assert not {"learning_rate", "gamma", "clip_range"} & {name for name, _ in shared}


@given(space=spaces(), seed=st.integers(0, 2**32))
def test_whatever_is_drawn_mutated_varied_or_crossed_passes_the_check(space, seed):
    random = Random(seed)
    first, second = space.sample("ppo", random), space.defaults("ppo", random)
    mutation = space.mutate("ppo", first, random)
    cross = space.cross([first, second], "ppo", random)
    searched = [scope for scope in SCOPES if space.mutable("ppo", scope)]
    for child in (
        first,
        second,
        mutation,
        cross,
        *(space.vary("ppo", first, scope, random) for scope in searched),
    ):
        space.check("ppo", child)


@given(space=spaces(), seed=st.integers(0, 2**32))
def test_varying_changes_one_hyperparameter_of_its_scope_at_most(space, seed):
    random = Random(seed)
    parent = space.sample("ppo", random)
    scopes = {knob.name: knob.scope for knob in PPO.hyperparameters}
    for scope in SCOPES:
        if space.mutable("ppo", scope):
            child = space.vary("ppo", parent, scope, random)
            changed = [name for name in parent if child[name] != parent[name]]
            assert len(changed) <= 1
            assert all(scopes[name] == scope for name in changed)
            assert (weights_shape("ppo", child) == weights_shape("ppo", parent)) == (
                scope != "network" or not changed
            )


def test_crossing_takes_each_from_one_parent_and_both_have_a_say():
    space = SearchSpace(
        {"ppo": 1.0},
        {"ppo": {"learning_rate": Interval(1e-4, 1e-2), "gamma": Interval(0.9, 0.999)}},
    )
    parents = [space.sample("ppo", Random(seed)) for seed in (1, 2)]
    names = ("learning_rate", "gamma")
    drawn = {
        tuple(child[name] == parents[0][name] for name in names)
        for child in (space.cross(parents, "ppo", Random(seed)) for seed in range(50))
    }
    assert drawn == {(True, True), (True, False), (False, True), (False, False)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gamma": 0.5}, "gamma is 0.5, which is not inside Interval"),
        ({"gamma": 1}, "gamma is 1 of type int, expected float"),
        ({"gamma": 1.5}, "gamma must be a number from 0 to 1"),
        ({"epochs": 7}, "epochs is 7, expected its default 4: not searched"),
        ({"gama": 0.9}, "missing or unknown: gama"),
    ],
)
def test_what_is_outside_is_named(changes, expected):
    space = SearchSpace({"ppo": 1.0}, {"ppo": {"gamma": Interval(0.9, 0.999)}})
    with pytest.raises(InvalidInput, match=expected):
        space.check("ppo", {**PPO.defaults(), **changes})  # type: ignore[arg-type]

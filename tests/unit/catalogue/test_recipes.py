"""The table of the defaults for a kind of task on a device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from podracer_core.catalogue import (
    BUILT_IN_ALGORITHMS,
    BUILT_IN_ENVIRONMENTS,
    RECIPES,
    EnvironmentSpec,
    Fixed,
    Interval,
    find_recipe,
)
from podracer_core.in_process import Order, find_source
from podracer_core.sections import Dimension, Search
from podracer_platform.jobs import validate_spaces

DOCS = Path(__file__).parents[3] / "docs"
CELLS = [(kind, device, cell) for kind, row in RECIPES.items() for device, cell in row.items()]
ANT = {
    "horizon": 16, "epochs": 4, "minibatch_size": 0, "learning_rate": 1e-3, "desired_kl": 0.01,
    "hidden_sizes": (256, 128, 64), "activation": "elu",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "device", "recipe"), CELLS)
def test_every_cell_is_possible_and_has_its_evidence(kind, device, recipe):
    assert (DOCS / recipe.evidence).is_file()
    for algorithm, values in recipe.hyperparameters.items():
        for name, value in values.items():
            knob = BUILT_IN_ALGORITHMS[algorithm].hyperparameter(name)
            knob.check(list(value) if isinstance(value, tuple) else value)
            assert not isinstance(knob.search, Interval), (
                f"{name} is searched: a job's agents would all have {value}"
            )
    tasks = [
        each
        for each in BUILT_IN_ENVIRONMENTS.values()
        if find_recipe(EnvironmentSpec(each.id), device) is recipe
    ]
    assert tasks or kind == "processes"
    for action_space in {each.action_space for each in tasks} - {None}:
        validate_spaces(
            Search().filled(recipe, action_space),
            tasks[0].observation_space or action_space,
            action_space,
        )


def test_a_kind_is_known_by_the_catalogue_and_by_the_class():
    assert find_recipe(EnvironmentSpec("Ant-v5"), "cuda:1") is RECIPES["mujoco"]["cuda"]
    assert (
        find_recipe(EnvironmentSpec("Ant-v5", isolation="process"), "cuda")
        is RECIPES["processes"]["cuda"]
    )
    own = EnvironmentSpec(entry_point="mine:Mine")
    assert find_recipe(own, "cuda") is RECIPES["processes"]["cuda"]
    assert find_recipe(own, "cuda", is_batched=True) is RECIPES["torch"]["cuda"]
    assert [
        RECIPES["mujoco"]["cuda"].envs_per_member(members, on_policy=True) for members in (1, 8)
    ] == [8192, 1024]


def test_train_has_the_recipe_of_its_device_unless_start_or_the_caller_says_otherwise():
    order = Order(find_source("Ant-v5"), "ppo", 8, None, "mean", 100_000, None, 32, None, 0, "cuda")
    assert order.defaults.items() >= ANT.items()
    algorithm = BUILT_IN_ALGORITHMS["ppo"].defaults()
    assert replace(order, device="cpu").defaults == algorithm
    assert replace(order, device="auto").defaults == algorithm


def test_a_job_is_filled_in_where_it_leaves_a_value_open():
    recipe, actions = RECIPES["mujoco"]["cuda"], BUILT_IN_ENVIRONMENTS["Ant-v5"].action_space
    filled = {each.key: each.range for each in Search().filled(recipe, actions).space}
    assert filled["ppo.horizon"] == Fixed(16)
    assert filled["ppo.epochs"] == Fixed(4), "in place of the value in a search"
    assert (
        filled["ppo.learning_rate"]
        == BUILT_IN_ALGORITHMS["ppo"].hyperparameter("learning_rate").search
    )
    assert (
        filled["sac.batch_size"] == BUILT_IN_ALGORITHMS["sac"].hyperparameter("batch_size").search
    )
    own = (Dimension("horizon", Fixed(64)), Dimension("hidden_sizes", Fixed((8,)), "ppo"))
    kept = Search(space=own).filled(recipe, actions)
    assert kept.space[:2] == own
    assert {each.key for each in kept.space[2:]} == {
        "ppo.epochs",
        "ppo.desired_kl",
        "ppo.activation",
    }
    assert Search().filled(RECIPES["mujoco"]["cpu"], actions) == Search()
    assert Search().filled(recipe, None) == Search(), "auto knows its algorithms by the actions"

"""Names of environments: the built-in table, what is accepted unseen, and how a wrong name is
answered."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace

import gymnasium
import pytest

from podracer_core.catalogue import (
    ENVIRONMENT_GROUP,
    RECIPES,
    EnvironmentSpec,
    StoredFile,
    broken_environments,
    described_environment,
    find_environment,
    find_recipe,
    is_batched,
    known_environments,
)
from podracer_core.environments import CLASSIC_CONTROL, from_gymnasium, runs_on, to_gymnasium
from podracer_core.errors import InvalidInput, PreconditionFailed
from podracer_core.sections import Checks
from podracer_platform.jobs import check_environment
from support.errors import raises
from support.installed import install

__all__ = ["install"]

FILE = StoredFile("projects/p/artifacts/a/content", "0a" * 32, 1234, "prices.csv")


@pytest.mark.parametrize("environment_id", [info.id for info in CLASSIC_CONTROL])
def test_the_table_says_what_gymnasium_says(environment_id):
    info = find_environment(environment_id)
    reference = gymnasium.make(environment_id)
    assert not info.needs_inspection
    assert info.observation_space is not None
    assert info.action_space is not None
    assert to_gymnasium(info.observation_space) == reference.observation_space
    assert info.action_space == from_gymnasium(reference.action_space)
    assert reference.spec is not None
    assert info.max_episode_steps == reference.spec.max_episode_steps


def test_gymnasiums_other_ids_need_inspection():
    info = find_environment("FrozenLake-v1")
    assert info.needs_inspection
    assert info.backend == "gymnasium"


def test_an_id_of_a_users_module_is_left_to_inspection():
    assert find_environment("my_package.envs:Maze-v0").needs_inspection


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("CartPole-v7", "CartPole-v1"), ("Pendulum", "Pendulum-v1"), ("acrobot-v1", "Acrobot-v1")],
)
def test_a_wrong_id_is_answered_with_the_nearest(wrong, nearest):
    with raises(InvalidInput, field="environment.id", match=f"'{wrong}'.* mean .*{nearest}"):
        find_environment(wrong)


def test_without_gymnasium_an_id_of_its_form_is_taken_on_trust(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert find_environment("FrozenLake-v1").needs_inspection
    with raises(InvalidInput, "UNKNOWN_ENVIRONMENT", field="environment.id"):
        find_environment("Pendulumv1")


DESCRIBED = """
from podracer_core.catalogue import ArgumentInfo, EnvironmentInfo, Recipe

HALL = EnvironmentInfo(
    id="Hall-v0",
    description="A hall",
    backend="torch",
    devices=("cpu", "cuda"),
    factory="my_package.envs:Hall",
    arguments=(ArgumentInfo("plan", "a file", required=True, example="./plan.txt", is_file=True),),
    scores={"calm": "calmness"},
    recipes={"cuda": Recipe("hall.md", 64)},
)
ROOM = HALL
SETTING = "no description, so it is a factory"
"""


def test_an_installed_environment_describes_itself(install):
    install(
        "my-package", {"Hall-v0": "my_package.info:HALL"}, group=ENVIRONMENT_GROUP, info=DESCRIBED
    )
    info = described_environment("Hall-v0")
    assert info is not None
    assert info == find_environment("Hall-v0") == known_environments()["Hall-v0"]
    assert (info.backend, info.package) == ("torch", "my-package 1.2")
    assert info.score_name({"score": "calm"}) == "calmness"
    assert list(known_environments())[-1] == "mjlab", "a family of tasks comes last"
    assert is_batched("Hall-v0")
    spec = EnvironmentSpec("Hall-v0")
    assert find_recipe(spec, "cuda:0").cohort_envs == 64
    assert find_recipe(spec, "cpu") is RECIPES["torch"]["cpu"]
    assert find_recipe(replace(spec, isolation="process"), "cuda") is RECIPES["processes"]["cuda"]
    assert runs_on(spec, "cuda") and not runs_on(spec, "meta")
    checks = Checks()
    check_environment(checks, EnvironmentSpec("Hall-v0", kwargs={"plan": "x", "size": 1}), {})
    assert [violation.field for violation in checks.violations] == [
        "environment.kwargs.plan",
        "environment.kwargs.size",
    ]


def test_a_package_of_ours_counts_as_built_in(install):
    install(
        "podracer-hall",
        {"Hall-v0": "podracer_hall.info:HALL"},
        group=ENVIRONMENT_GROUP,
        info=DESCRIBED,
    )
    assert find_environment("Hall-v0").package == ""


def test_a_broken_description_is_named(install):
    entries = {
        "Room-v0": "my_package.info:ROOM",
        "Shed-v0": "my_package.shed:SHED",
        "Tent-v0": "my_package.info:SETTING",
    }
    install("my-package", entries, group=ENVIRONMENT_GROUP, info=DESCRIBED)
    start = "environment '{}' of package my-package 1.2: my_package."
    assert broken_environments() == [
        f"{start.format('Room-v0')}info:ROOM needs the id Room-v0 and a factory",
        f"{start.format('Shed-v0')}shed:SHED cannot be imported: ModuleNotFoundError: "
        "No module named 'my_package.shed'",
    ]
    with raises(InvalidInput, "BROKEN_ENVIRONMENT", field="environment.id"):
        find_environment("Room-v0")
    assert find_environment("Tent-v0").factory == "my_package.info:SETTING"
    assert described_environment("Tent-v0") is None


def test_installed_environments_are_found(install):
    install("my-package", {"Maze": "maze_package.envs:Maze"}, group=ENVIRONMENT_GROUP)
    info = find_environment("Maze")
    assert info.needs_inspection
    assert info.backend == "installed"
    assert info.factory == "maze_package.envs:Maze"


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({}, "either an id or an entry_point"),
        ({"id": "CartPole-v1", "entry_point": "a:B"}, "either an id or an entry_point"),
        ({"entry_point": "a.b"}, "form package.module:Name"),
        ({"entry_point": "a b:C"}, "form package.module:Name"),
        ({"id": "CartPole-v1", "code_path": "x"}, "environment.code: needs an entry_point"),
        ({"id": "CartPole-v1", "max_episode_steps": 0}, "at least 1"),
        ({"id": "CartPole-v1", "kwargs": {"a": object()}}, "JSON"),
        ({"id": "CartPole-v1", "code": FILE}, "environment.code: needs an entry_point"),
        ({"entry_point": "a:B", "code": FILE, "code_path": "x"}, "not both"),
        ({"id": "CartPole-v1", "data": {"a b": "x"}}, "data.a b: is not the name of an argument"),
        (
            {"id": "CartPole-v1", "data": {"a": "x"}, "kwargs": {"a": 1}},
            "data.a: is also in environment.kwargs",
        ),
    ],
)
def test_specs_that_cannot_be_right(fields, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        EnvironmentSpec(**fields)  # type: ignore[arg-type]


def test_spec_as_json():
    spec = EnvironmentSpec(
        entry_point="a.b:C", code_path="/x", kwargs={"size": [1, 2]}, max_episode_steps=7
    )
    assert EnvironmentSpec(**spec.to_json()) == spec
    assert spec.name == "a.b:C"


def test_a_package_folder_is_imported_from_the_folder_around_it(tmp_path):
    (tmp_path / "my_pkg").mkdir()
    spec = EnvironmentSpec(entry_point="my_pkg:Env", code_path=str(tmp_path / "my_pkg"))
    assert spec.to_json()["code_path"] == str(tmp_path / "my_pkg")
    (tmp_path / "my_pkg" / "__init__.py").touch()
    assert spec.to_json()["code_path"] == str(tmp_path)


def test_data_sets_are_arguments():
    spec = EnvironmentSpec(id="CartPole-v1", kwargs={"size": 3}, data={"table": "/x/prices.csv"})
    assert spec.to_json()["kwargs"] == {"size": 3, "table": "/x/prices.csv"}
    assert spec.stored_files == ()


def test_files_in_the_store_have_to_be_brought_first():
    spec = EnvironmentSpec(entry_point="a:B", code=FILE, data={"table": FILE, "map": "/x"})
    assert spec.stored_files == (FILE, FILE)
    with raises(PreconditionFailed, "FILES_MISSING"):
        spec.to_json()


def test_what_a_checkpoint_remembers():
    spec = EnvironmentSpec(
        entry_point="a:B", code=FILE, kwargs={"n": [1]}, data={"table": FILE, "map": "/x"}
    )
    assert EnvironmentSpec.from_metadata(json.loads(json.dumps(spec.to_metadata()))) == spec
    old = {
        "id": "CartPole-v1",
        "entry_point": "",
        "code_path": "",
        "kwargs": {},
        "max_episode_steps": None,
    }
    assert EnvironmentSpec.from_metadata(old) == EnvironmentSpec(id="CartPole-v1")


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("prices.csv", ".csv"),
        ("a.2019.csv", ".2019.csv"),
        ("x.tar.gz", ".tar.gz"),
        ("x", ""),
        ("", ""),
    ],
)
def test_a_local_copy_has_the_ending_of_the_file(name, ending):
    assert replace(FILE, name=name).local_name == FILE.sha256 + ending

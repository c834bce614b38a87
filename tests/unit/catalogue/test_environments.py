"""Names of environments: the built-in table, what is accepted unseen, and how a wrong name is answered."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys

import gymnasium
import pytest

from podracer_core.catalogue.environments import BUILT_IN, ENTRY_POINT_GROUP, EnvironmentSpec, find_environment
from podracer_core.environments.spaces import from_gymnasium, to_gymnasium
from podracer_core.errors import InvalidInput


@pytest.mark.parametrize("environment_id", BUILT_IN)
def test_the_table_says_what_gymnasium_says(environment_id: str) -> None:
    info = find_environment(environment_id)
    reference = gymnasium.make(environment_id)
    assert not info.needs_inspection
    assert info.observation_space is not None
    assert info.action_space is not None
    assert to_gymnasium(info.observation_space) == reference.observation_space
    assert info.action_space == from_gymnasium(reference.action_space)
    assert reference.spec is not None
    assert info.max_episode_steps == reference.spec.max_episode_steps


def test_gymnasiums_other_ids_need_inspection() -> None:
    info = find_environment("Acrobot-v1")
    assert info.needs_inspection
    assert info.backend == "gymnasium"


def test_an_id_of_a_users_module_is_left_to_inspection() -> None:
    assert find_environment("my_package.envs:Maze-v0").needs_inspection


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("CartPole-v7", "CartPole-v1"), ("Pendulum", "Pendulum-v1"), ("acrobot-v1", "Acrobot-v1")]
)
def test_a_wrong_id_is_answered_with_the_nearest(wrong: str, nearest: str) -> None:
    with pytest.raises(InvalidInput, match=f"unknown environment '{wrong}'; did you mean .*{nearest}") as caught:
        find_environment(wrong)
    assert caught.value.reason == "UNKNOWN_ENVIRONMENT"
    assert caught.value.violations[0].field == "environment.id"


def test_without_gymnasium_an_id_of_its_form_is_taken_on_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert find_environment("Ant-v5").needs_inspection
    with pytest.raises(InvalidInput, match="did you mean Pendulum-v1"):
        find_environment("Pendulumv1")


def test_installed_environments_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("Maze", "maze_package.envs:Maze", ENTRY_POINT_GROUP)
    found = importlib.metadata.EntryPoints([point])
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found)
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
        ({"id": "CartPole-v1", "code_path": "x"}, "code goes with an entry_point"),
        ({"id": "CartPole-v1", "max_episode_steps": 0}, "at least 1"),
        ({"id": "CartPole-v1", "kwargs": {"a": object()}}, "JSON"),
    ],
)
def test_specs_that_cannot_be_right(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        EnvironmentSpec(**fields)  # type: ignore[arg-type]


def test_spec_as_json() -> None:
    spec = EnvironmentSpec(entry_point="a.b:C", code_path="/x", kwargs={"size": [1, 2]}, max_episode_steps=7)
    assert EnvironmentSpec(**spec.to_json()) == spec
    assert spec.name == "a.b:C"


def test_the_catalogue_is_light() -> None:
    program = (
        "import sys, podracer_core.catalogue.algorithms; from podracer_core.catalogue import environments, spaces;"
        "environments.find_environment('CartPole-v1');"
        "print(*({'torch', 'numpy', 'gymnasium'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""

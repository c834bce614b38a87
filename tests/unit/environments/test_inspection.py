"""Looking at an environment before anything trains in it, and making a batch of whatever a spec
names."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from podracer_core.catalogue import (
    BUILT_IN_ENVIRONMENTS,
    ENVIRONMENT_GROUP,
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    EnvironmentSpec,
    installed_environments,
)
from podracer_core.environments import (
    CartPole,
    Pendulum,
    inspect_environment,
    make_vec_environment,
    to_gymnasium,
)
from podracer_core.environments.processes import PreprocessVecEnv
from podracer_core.errors import InvalidInput, UserCodeFailed
from podracer_platform.messages import space_from_message
from podracer_platform.training_messages import inspected
from support.errors import raises

FOLDER = str(Path(__file__).parent)


def user_spec(name: str, **kwargs: Any) -> EnvironmentSpec:
    return EnvironmentSpec(entry_point=f"user_environments:{name}", code_path=FOLDER, kwargs=kwargs)


@pytest.mark.parametrize(
    "environment_id",
    [name for name, info in BUILT_IN_ENVIRONMENTS.items() if not info.needs_inspection],
)
def test_built_in(environment_id):
    found, info = (
        inspect_environment(EnvironmentSpec(environment_id)),
        BUILT_IN_ENVIRONMENTS[environment_id],
    )
    assert found.max_episode_steps == info.max_episode_steps
    assert info.observation_space is not None
    assert info.action_space is not None
    # As arrays, because the bounds of the table are not rounded to float32.
    assert to_gymnasium(found.observation_space) == to_gymnasium(info.observation_space)
    assert to_gymnasium(found.action_space) == to_gymnasium(info.action_space)


def test_gymnasiums():
    found = inspect_environment(EnvironmentSpec("FrozenLake-v1"))
    assert found[:6] == (DiscreteSpace(16), DiscreteSpace(4), 100, False, "", ())
    assert found.step_s == 0.0, "Gymnasium's own are known"
    car = inspect_environment(
        EnvironmentSpec(entry_point="gymnasium.envs.classic_control:Continuous_MountainCarEnv")
    )
    assert car.action_space == BoxSpace(-1.0, 1.0, (1,))
    assert car.max_episode_steps is None


def test_a_users():
    found = inspected(user_spec("DictObservations"), 60.0).description
    assert isinstance(space_from_message(found.observation_space), DictSpace)
    assert space_from_message(found.action_space) == DiscreteSpace(3, start=1)
    assert found.max_episode_steps == 0
    parts = "count (1 number), place/0 (one-hot, 4 numbers), place/1 (2 numbers)"
    assert found.preparation == f"the policy sees {parts}"


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (user_spec("Counter", trouble="construction"), "construction raised ValueError"),
        (user_spec("Counter", trouble="raise", trouble_at=2), "step raised RuntimeError"),
        (user_spec("Counter", trouble="die", trouble_at=2), "killed by SIGSEGV in 'inspect'"),
    ],
)
def test_user_code_that_fails(spec, complaint):
    with pytest.raises(UserCodeFailed, match=complaint):
        inspect_environment(spec)


def test_user_code_that_hangs():
    with pytest.raises(UserCodeFailed, match="'inspect'"):
        inspect_environment(user_spec("Counter", trouble="hang", trouble_at=1), timeout_s=3.0)


@pytest.mark.parametrize(
    ("trouble", "complaint"),
    [
        (
            "fractions",
            "the observation of step has the type float64; its space has uint8, without fractions",
        ),
        (
            "bounds",
            r"the observation of reset is 2e\+06 at \[0\], outside the bounds \[-1e\+06, 1e\+06\]",
        ),
        ("nan", "the observation of step has NaN"),
        ("shape", r"the observation of step has the shape \[\]; its space has \[2\]"),
    ],
)
def test_data_outside_its_space(trouble, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        inspect_environment(user_spec("Counter", trouble=trouble, trouble_at=2))


def test_what_a_spec_names_is_made():
    cartpole = make_vec_environment(
        EnvironmentSpec("CartPole-v1", kwargs={"sutton_barto_reward": True}), 3
    )
    assert isinstance(cartpole, CartPole)
    assert (cartpole.num_envs, cartpole.max_episode_steps) == (3, 500)
    pendulum = make_vec_environment(EnvironmentSpec("Pendulum-v1", max_episode_steps=50), 2)
    assert isinstance(pendulum, Pendulum)
    assert pendulum.max_episode_steps == 50
    lake = make_vec_environment(EnvironmentSpec("FrozenLake-v1"), 3, processes=2)
    assert isinstance(lake, PreprocessVecEnv)
    assert len(lake.process_ids) == 2
    lake.close()


def test_what_cannot_be_made():
    with raises(InvalidInput, "UNKNOWN_ENVIRONMENT", field="environment.id"):
        make_vec_environment(EnvironmentSpec("CartPole"), 1)
    with raises(InvalidInput, field="environment.kwargs") as caught:
        make_vec_environment(EnvironmentSpec("CartPole-v1", kwargs={"gravity": 1}), 1)
    assert caught.value.violations[0].field == "environment.kwargs"


@pytest.fixture
def newly_installed() -> Iterator[None]:
    """Environments are looked for once more in the test, and after it."""
    installed_environments.cache_clear()
    yield
    installed_environments.cache_clear()


@pytest.mark.usefixtures("newly_installed")
def test_installed_environments(monkeypatch):
    """A batched class runs here; anything else that is installed runs in processes."""
    points = [
        importlib.metadata.EntryPoint(
            "Cart",
            "podracer_core.environments.classic_control:CartPole",
            ENVIRONMENT_GROUP,
        ),
        importlib.metadata.EntryPoint(
            "Car", "gymnasium.envs.classic_control:MountainCarEnv", ENVIRONMENT_GROUP
        ),
    ]
    real = importlib.metadata.entry_points
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda **group: (
            importlib.metadata.EntryPoints(points)
            if group["group"] == ENVIRONMENT_GROUP
            else real(**group)
        ),
    )
    assert isinstance(make_vec_environment(EnvironmentSpec("Cart"), 2), CartPole)
    car = make_vec_environment(EnvironmentSpec("Car", max_episode_steps=9), 2, processes=1)
    assert isinstance(car, PreprocessVecEnv)
    assert car.max_episode_steps == 9
    assert car.reset(torch.arange(2)).shape == (2, 2)
    car.close()
    assert inspect_environment(EnvironmentSpec("Car")).action_space == DiscreteSpace(3)

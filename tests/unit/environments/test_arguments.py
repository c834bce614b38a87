"""What a job may say in `environment.kwargs`, and where a built-in environment runs."""

from __future__ import annotations

import pytest
import torch

from podracer_core.catalogue import EnvironmentSpec, known_environments
from podracer_core.environments import make_vec_environment, require_device, runs_on
from podracer_core.errors import InvalidInput, PreconditionFailed
from support.errors import raises


@pytest.mark.parametrize(
    ("environment_id", "name", "value", "complaint"),
    [
        # `no` is a word in YAML 1.2, and a word is true in Python.
        ("Ant-v5", "terminate_when_unhealthy", "no", "expected true or false, got 'no'"),
        ("Ant-v5", "include_cfrc_ext_in_observation", "false", "expected true or false"),
        ("Ant-v5", "healthy_z_range", 5, "expected a list of 2 values, got 5"),
        ("Ant-v5", "healthy_z_range", [0.2], "expected a list of 2 values, got 1 of them"),
        ("Ant-v5", "healthy_z_range", [0.2, "high"], "expected a number, got 'high'"),
        ("Ant-v5", "ctrl_cost_weight", None, "expected a number, got nothing"),
        ("Ant-v5", "frame_skip", 2.5, "expected a whole number, got 2.5"),
        ("Ant-v5", "frame_skip", True, "expected a whole number, got True"),
        ("Ant-v5", "xml_file", 5, "expected text, got 5"),
        ("Ant-v5", "main_body", 1.5, "expected a whole number or text, got 1.5"),
        ("CartPole-v1", "sutton_barto_reward", "on", "expected true or false, got 'on'"),
        ("Acrobot-v1", "book_or_nips", "paper", "expected book or nips, got 'paper'"),
        ("PointChasing-v0", "dimensions", "two", "expected a whole number, got 'two'"),
        ("Pendulum-v1", "max_episode_steps", "many", "expected a whole number, got 'many'"),
    ],
)
def test_a_wrong_type_is_told_with_its_name(environment_id, name, value, complaint):
    with pytest.raises(InvalidInput, match=f"environment.kwargs.{name}.*: {complaint}") as caught:
        make_vec_environment(EnvironmentSpec(environment_id, kwargs={name: value}), 1)
    assert caught.value.violations[0].field.startswith(f"environment.kwargs.{name}")


def test_all_are_told_at_once():
    kwargs = {"g": "heavy", "max_episode_steps": "many"}
    with pytest.raises(InvalidInput) as caught:
        make_vec_environment(EnvironmentSpec("Pendulum-v1", kwargs=kwargs), 1)
    assert [violation.field for violation in caught.value.violations] == [
        f"environment.kwargs.{name}" for name in kwargs
    ]


@pytest.mark.parametrize("environment_id", ["CartPole-v1", "Hopper-v5"])
@pytest.mark.parametrize("limit", [0, -1])
def test_a_time_limit_is_one_step_at_least(environment_id, limit):
    with raises(InvalidInput, field="environment.max_episode_steps", match=f"1, not {limit}"):
        make_vec_environment(
            EnvironmentSpec(environment_id, kwargs={"max_episode_steps": limit}), 1
        )


@pytest.mark.parametrize("environment_id", ["CartPole-v1", "Hopper-v5"])
def test_a_time_limit_is_one_that_can_be_counted_to(environment_id):
    with raises(
        InvalidInput, field="environment.max_episode_steps", match=f"{2**63 - 1}, not {10**300}"
    ):
        make_vec_environment(
            EnvironmentSpec(environment_id, kwargs={"max_episode_steps": 10**300}), 1
        )


def test_no_time_limit():
    spec = EnvironmentSpec("CartPole-v1", kwargs={"max_episode_steps": None})
    assert make_vec_environment(spec, 1).max_episode_steps is None


def test_numbers_that_json_does_not_know():
    """No message on a wire could carry them."""
    with raises(InvalidInput, field="environment.kwargs"):
        EnvironmentSpec("Hopper-v5", kwargs={"healthy_z_range": [0.7, float("inf")]})


@pytest.mark.parametrize("environment_id", known_environments())
def test_where_a_built_in_environment_runs(environment_id):
    spec = EnvironmentSpec(environment_id)
    assert runs_on(spec, "cpu")
    assert runs_on(spec, torch.device("cuda", 1)) == (
        "cuda" in known_environments()[environment_id].devices
    )


@pytest.mark.parametrize("device", ["meta", "mps", "cuda:", "a\nb", "cuda:-1"])
def test_a_caller_names_a_device(device):
    assert require_device("cpu") == "cpu"
    with raises(InvalidInput, field="device"):
        require_device(device)
    with raises(PreconditionFailed, "NO_DEVICE"):
        require_device("cuda:99")


@pytest.mark.parametrize("environment_id", ["Reacher-v5", "InvertedPendulum-v5"])
def test_a_device_that_it_does_not_run_on_is_refused(environment_id):
    with pytest.raises(InvalidInput, match=f"{environment_id} .* cuda"):
        make_vec_environment(EnvironmentSpec(environment_id), 1, "cuda")
    with pytest.raises(InvalidInput, match="CartPole-v1 runs"):
        make_vec_environment(EnvironmentSpec("CartPole-v1"), 1, "meta")


@pytest.mark.parametrize("environment_id", ["CartPole-v1", "PointChasing-v0", "Hopper-v5"])
def test_a_policy_may_act_in_inference_mode_and_out_of_it(environment_id):
    """Both ways, over many ends of episodes, and to the same numbers."""
    one, other = (
        make_vec_environment(EnvironmentSpec(environment_id, max_episode_steps=2), 3)
        for _ in range(2)
    )
    shape = one.action_space.shape
    action = torch.zeros(3, *shape) if shape else torch.zeros(3, dtype=torch.int64)
    with torch.inference_mode():
        one.reset(torch.arange(3))
    other.reset(torch.arange(3))
    for number in range(60):
        expected = other.step(action)
        with torch.inference_mode(number // 7 % 2 == 0):
            found = one.step(action)
        assert torch.equal(found.observation, expected.observation)
        assert torch.equal(found.truncated, expected.truncated)
    with torch.inference_mode():
        saved = one.state()
    assert torch.equal(one.load_state(saved), other.load_state(other.state()))
    one.step(action)

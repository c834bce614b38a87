"""Every MuJoCo environment against Gymnasium's own, from the same states under the same actions.

The physics must agree bit by bit (float64). Observations and rewards are float32 here, so they
agree to its rounding: 2e-6 relative to the size of the number, and for rewards to that of the terms
they are the sum of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
import torch

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import Step, make_vec_environment
from podracer_core.environments.mujoco import MuJoCoEnvironment, load_model

NUM_ENVS = 4
# Gymnasium's own defaults, contact forces in observations aside; training leaves out their cost,
# too.
CONTACT_WEIGHTS = {
    "Ant-v5": "contact_cost_weight",
    "Humanoid-v5": "contact_cost_weight",
    "HumanoidStandup-v5": "impact_cost_weight",
}
IDS = (
    "Ant-v5",
    "HalfCheetah-v5",
    "Hopper-v5",
    "Humanoid-v5",
    "HumanoidStandup-v5",
    "InvertedDoublePendulum-v5",
    "InvertedPendulum-v5",
    "Pusher-v5",
    "Reacher-v5",
    "Swimmer-v5",
    "Walker2d-v5",
)
NEVER_ENDING = ("HalfCheetah-v5", "HumanoidStandup-v5", "Pusher-v5", "Reacher-v5", "Swimmer-v5")


@pytest.fixture(autouse=True)
def _no_log_file_of_gymnasium() -> None:
    """Gymnasium's loading of half_cheetah.xml would leave a MUJOCO_LOG.TXT in the repository."""
    config = mujoco.MjLogConfig.get()
    config.logto_file = False
    mujoco.MjLogConfig.set(config)


def make(
    environment_id: str,
    num_envs: int = NUM_ENVS,
    limit: int | None = None,
    *,
    evaluation: bool = False,
    **kwargs: Any,
) -> MuJoCoEnvironment:
    spec = EnvironmentSpec(id=environment_id, kwargs=kwargs, max_episode_steps=limit)
    environment = make_vec_environment(spec, num_envs, evaluation=evaluation)
    assert isinstance(environment, MuJoCoEnvironment)
    return environment


class Reference:
    """N of Gymnasium's own."""

    def __init__(
        self,
        environment: MuJoCoEnvironment,
        environment_id: str,
        limit: int | None,
        *,
        charged: bool,
        **kwargs: Any,
    ) -> None:
        self.ours = environment
        options = kwargs
        if environment_id in CONTACT_WEIGHTS:
            options = {"include_cfrc_ext_in_observation": False, **options}
            options |= {} if charged else {CONTACT_WEIGHTS[environment_id]: 0}
        self.wrapped = [
            gymnasium.make(environment_id, max_episode_steps=limit, **options)
            for _ in range(environment.num_envs)
        ]
        self.inner: list[Any] = [environment.unwrapped for environment in self.wrapped]

    def follow(self, rows: list[int]) -> None:
        """Put `rows` where ours are, at the beginning of an episode."""
        for row in rows:
            self.wrapped[row].reset()
            mujoco.mj_resetData(self.inner[row].model, self.inner[row].data)
            self.inner[row].set_state(self.ours.qpos[row].numpy(), self.ours.qvel[row].numpy())

    def step(self, actions: np.ndarray, our_step: Step) -> list[int]:
        """Step all, compare all, and return the rows whose episode ended."""
        ended = []
        for row, environment in enumerate(self.wrapped):
            observation, reward, terminated, truncated, info = environment.step(actions[row])
            assert bool(our_step.terminated[row]) == terminated
            assert bool(our_step.truncated[row]) == truncated
            assert bool(our_step.valid[row])
            np.testing.assert_allclose(
                our_step.final_observation[row].numpy(), observation, rtol=2e-6, atol=1e-6
            )
            terms = sum(
                abs(value) for name, value in info.items() if name.startswith("reward_")
            ) + abs(reward)
            assert abs(float(our_step.reward[row]) - reward) <= 2e-6 * max(terms, 1.0)
            if terminated or truncated:
                ended.append(row)
                continue
            data = self.inner[row].data
            np.testing.assert_array_equal(self.ours.qpos[row].numpy(), data.qpos)
            np.testing.assert_array_equal(self.ours.qvel[row].numpy(), data.qvel)
            assert torch.equal(our_step.observation[row], our_step.final_observation[row])
        return ended

    def check_first_observations(self, observation: torch.Tensor, rows: list[int]) -> None:
        for row in rows:
            expected = self.inner[row]._get_obs()
            np.testing.assert_allclose(observation[row].numpy(), expected, rtol=2e-6, atol=1e-6)


def compare(
    environment_id: str,
    steps: int,
    limit: int | None = None,
    *,
    evaluation: bool = False,
    **kwargs: Any,
) -> tuple[int, int]:
    """Step both `steps` times; returns how many episodes were terminated and truncated."""
    ours = make(environment_id, limit=limit, evaluation=evaluation, **kwargs)
    reference = Reference(ours, environment_id, limit, charged=evaluation, **kwargs)
    assert ours.observation_space.shape == reference.wrapped[0].observation_space.shape
    assert ours.action_space == reference.wrapped[0].action_space
    everyone = list(range(ours.num_envs))
    observation = ours.reset(torch.tensor([7, 8, 9, 10]))
    reference.follow(everyone)
    reference.check_first_observations(observation, everyone)
    random = np.random.default_rng(0)
    low, high = ours.action_space.low, ours.action_space.high
    terminated = truncated = 0
    for _ in range(steps):
        actions = random.uniform(low, high, (ours.num_envs, *low.shape)).astype(np.float32)
        step = ours.step(torch.from_numpy(actions))
        ended = reference.step(actions, step)
        reference.follow(ended)
        reference.check_first_observations(step.observation, ended)
        terminated += int(step.terminated.sum())
        truncated += int(step.truncated.sum())
    assert not ours.broken_count.any()
    return terminated, truncated


@pytest.mark.parametrize("environment_id", IDS)
def test_200_steps_are_gymnasiums(environment_id):
    """Through time limits and, where there is one, the task's own end."""
    terminated, _ = compare(environment_id, 200)
    assert (terminated > 0) == (environment_id not in NEVER_ENDING)
    _, truncated = compare(environment_id, 30, limit=3)
    assert truncated >= 5 * NUM_ENVS


@pytest.mark.parametrize(
    ("environment_id", "kwargs"),
    [
        ("Ant-v5", {}),
        ("Ant-v5", {"contact_cost_weight": 1.0, "terminate_when_unhealthy": False}),
        ("Humanoid-v5", {"terminate_when_unhealthy": False}),
        ("Humanoid-v5", {"contact_cost_weight": 1e-3, "terminate_when_unhealthy": False}),
        ("HumanoidStandup-v5", {}),
    ],
)
def test_an_evaluation_charges_for_contacts(environment_id, kwargs):
    """Gymnasium's default reward, through restarts; the second weights reach its limits."""
    compare(environment_id, 100, limit=60, evaluation=True, **kwargs)


@pytest.mark.parametrize(
    ("environment_id", "kwargs"),
    [
        (
            "Ant-v5",
            {
                "exclude_current_positions_from_observation": False,
                "healthy_z_range": [0.4, 0.8],
                "healthy_reward": 3,
                "forward_reward_weight": 0.5,
                "main_body": "front_left_leg",
                "ctrl_cost_weight": 0.1,
            },
        ),
        ("Ant-v5", {"reset_noise_scale": 0, "frame_skip": 2, "terminate_when_unhealthy": False}),
        (
            "Humanoid-v5",
            {
                "exclude_current_positions_from_observation": False,
                "include_cinert_in_observation": False,
                "include_qfrc_actuator_in_observation": False,
                "healthy_z_range": [1.2, 2.0],
                "terminate_when_unhealthy": False,
            },
        ),
        (
            "Humanoid-v5",
            {
                "include_cvel_in_observation": False,
                "forward_reward_weight": 3,
                "healthy_reward": 1.5,
            },
        ),
        ("HumanoidStandup-v5", {"include_cvel_in_observation": False, "ctrl_cost_weight": 2.0}),
        (
            "HalfCheetah-v5",
            {
                "exclude_current_positions_from_observation": False,
                "ctrl_cost_weight": 1.0,
                "reset_noise_scale": 0,
            },
        ),
        ("HalfCheetah-v5", {"forward_reward_weight": -2, "frame_skip": 1}),
        (
            "Hopper-v5",
            {
                "exclude_current_positions_from_observation": False,
                "healthy_angle_range": [-1.0, 0.05],
                "healthy_state_range": [-4.0, 3.0],
                "healthy_z_range": [0.5, 1.4],
                "healthy_reward": 2,
            },
        ),
        ("Hopper-v5", {"terminate_when_unhealthy": False, "ctrl_cost_weight": 1}),
        (
            "Walker2d-v5",
            {
                "healthy_z_range": [1.1, 1.3],
                "healthy_angle_range": [-0.2, 0.3],
                "reset_noise_scale": 0.05,
            },
        ),
        (
            "Walker2d-v5",
            {
                "exclude_current_positions_from_observation": False,
                "terminate_when_unhealthy": False,
            },
        ),
        (
            "Swimmer-v5",
            {"exclude_current_positions_from_observation": False, "ctrl_cost_weight": 0.3},
        ),
        ("Reacher-v5", {"reward_dist_weight": 3, "reward_control_weight": 0.2}),
        (
            "Pusher-v5",
            {
                "reward_near_weight": 2,
                "reward_dist_weight": 0.3,
                "reward_control_weight": 1,
                "xml_file": "pusher.xml",
            },
        ),
        ("InvertedPendulum-v5", {"reset_noise_scale": 0.1, "frame_skip": 1}),
        ("InvertedDoublePendulum-v5", {"healthy_reward": 1, "reset_noise_scale": 0.02}),
    ],
)
def test_other_arguments_mean_what_they_mean_there(environment_id, kwargs):
    compare(environment_id, 60, **kwargs)


@pytest.mark.parametrize("file", ["half_cheetah.xml", "ant.xml", "humanoid.xml", "walker2d_v5.xml"])
def test_models_are_gymnasiums_byte_by_byte(file):
    path = str(Path(gymnasium.envs.__file__).parent / "mujoco" / "assets" / file)
    assert (
        _bytes(load_model(file))
        == _bytes(mujoco.MjModel.from_xml_path(path))
        == _bytes(load_model(path))
    )


def _bytes(model: Any) -> bytes:
    found = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, found)
    return found.tobytes()

"""Gymnasium's MuJoCo tasks (v5), batched by MuJoCo itself on a CPU, some also by MuJoCo Warp on CUDA."""

from __future__ import annotations

import math
import re

from podracer_core.catalogue.environments.info import ArgumentInfo, EnvironmentInfo
from podracer_core.catalogue.spaces import BoxSpace

__all__ = ["BUILT_IN"]

_MEANINGS = {
    "xml_file": "the model: one of Gymnasium's, or a path that starts with . ~ or /",
    "frame_skip": "physics steps that make one step",
    "forward_reward_weight": "of the velocity along x",
    "ctrl_cost_weight": "of the sum of squared actions",
    "contact_cost_weight": "must be 0: contact forces are not computed here",
    "impact_cost_weight": "must be 0: contact forces are not computed here",
    "healthy_reward": "for every step that is healthy",
    "main_body": "whose velocity counts, a number or a name",
    "terminate_when_unhealthy": "end the episode with the first unhealthy step",
    "healthy_state_range": "in which all but x and the height must lie",
    "healthy_z_range": "in which the height of the torso must lie, m",
    "healthy_angle_range": "in which the angle of the torso must lie, rad",
    "reset_noise_scale": "of the noise about the model's own state at the start of an episode",
    "exclude_current_positions_from_observation": "leave out how far it has come",
    "include_cinert_in_observation": "mass and inertia of the bodies",
    "include_cvel_in_observation": "velocities of the bodies",
    "include_qfrc_actuator_in_observation": "forces of the motors",
    "include_cfrc_ext_in_observation": "must be false: contact forces are not computed here",
    "reward_dist_weight": "of the distance to the goal",
    "reward_near_weight": "of the distance of arm and cylinder",
    "reward_control_weight": "of the sum of squared actions",
    "engine": "auto, mujoco (C, on a CPU), or warp (a CUDA device; on a CPU for tests only)",
}


def _task(
    name: str,
    description: str,
    sizes: tuple[int, int],
    arguments: dict[str, object],
    *,
    action_limit: float = 1.0,
    max_episode_steps: int = 1000,
) -> EnvironmentInfo:
    """`name` of the class, whose module has the same name in lower case; `sizes` of observation and action."""
    module = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    observation_size, action_size = sizes
    return EnvironmentInfo(
        id=f"{name}-v5",
        description=description,
        backend="mujoco",
        devices=("cpu", "cuda") if "engine" in arguments else ("cpu",),
        observation_space=BoxSpace(-math.inf, math.inf, (observation_size,)),
        action_space=BoxSpace(-action_limit, action_limit, (action_size,)),
        max_episode_steps=max_episode_steps,
        factory=f"podracer_core.environments.mujoco.tasks.{module}:{name}",
        arguments=tuple(ArgumentInfo(name, _MEANINGS[name], default) for name, default in arguments.items()),
    )


# Ant, Humanoid and HumanoidStandup show no contact forces: see docs/environments/mujoco.md.
BUILT_IN = (
    _task(
        "Ant",
        "Walk on four legs without falling over; 6,000 is very good",
        (27, 8),
        {
            "xml_file": "ant.xml",
            "frame_skip": 5,
            "forward_reward_weight": 1.0,
            "ctrl_cost_weight": 0.5,
            "contact_cost_weight": 0.0,
            "healthy_reward": 1.0,
            "main_body": 1,
            "terminate_when_unhealthy": True,
            "healthy_z_range": (0.2, 1.0),
            "reset_noise_scale": 0.1,
            "exclude_current_positions_from_observation": True,
            "include_cfrc_ext_in_observation": False,
            "engine": "auto",
        },
    ),
    _task(
        "HalfCheetah",
        "Run on two legs, in a plane; 10,000 is very good",
        (17, 6),
        {
            "xml_file": "half_cheetah.xml",
            "frame_skip": 5,
            "forward_reward_weight": 1.0,
            "ctrl_cost_weight": 0.1,
            "reset_noise_scale": 0.1,
            "exclude_current_positions_from_observation": True,
            "engine": "auto",
        },
    ),
    _task(
        "Hopper",
        "Hop on one leg, in a plane, without falling; 3,500 is very good",
        (11, 3),
        {
            "xml_file": "hopper.xml",
            "frame_skip": 4,
            "forward_reward_weight": 1.0,
            "ctrl_cost_weight": 1e-3,
            "healthy_reward": 1.0,
            "terminate_when_unhealthy": True,
            "healthy_state_range": (-100.0, 100.0),
            "healthy_z_range": (0.7, math.inf),
            "healthy_angle_range": (-0.2, 0.2),
            "reset_noise_scale": 5e-3,
            "exclude_current_positions_from_observation": True,
            "engine": "auto",
        },
    ),
    _task(
        "Humanoid",
        "Walk on two legs without falling; 5,000 is good",
        (270, 17),
        {
            "xml_file": "humanoid.xml",
            "frame_skip": 5,
            "forward_reward_weight": 1.25,
            "ctrl_cost_weight": 0.1,
            "contact_cost_weight": 0.0,
            "healthy_reward": 5.0,
            "terminate_when_unhealthy": True,
            "healthy_z_range": (1.0, 2.0),
            "reset_noise_scale": 1e-2,
            "exclude_current_positions_from_observation": True,
            "include_cinert_in_observation": True,
            "include_cvel_in_observation": True,
            "include_qfrc_actuator_in_observation": True,
            "include_cfrc_ext_in_observation": False,
            "engine": "auto",
        },
        action_limit=0.4,
    ),
    _task(
        "HumanoidStandup",
        "Stand up from lying on the back; 150,000 is good",
        (270, 17),
        {
            "xml_file": "humanoidstandup.xml",
            "frame_skip": 5,
            "ctrl_cost_weight": 0.1,
            "impact_cost_weight": 0.0,
            "reset_noise_scale": 1e-2,
            "exclude_current_positions_from_observation": True,
            "include_cinert_in_observation": True,
            "include_cvel_in_observation": True,
            "include_qfrc_actuator_in_observation": True,
            "include_cfrc_ext_in_observation": False,
        },
        action_limit=0.4,
    ),
    _task(
        "InvertedDoublePendulum",
        "Balance two poles, one upon the other, on a cart; about 9,350 at best",
        (9, 1),
        {
            "xml_file": "inverted_double_pendulum.xml",
            "frame_skip": 5,
            "healthy_reward": 10.0,
            "reset_noise_scale": 0.1,
        },
    ),
    _task(
        "InvertedPendulum",
        "Balance a pole on a cart; 1 a step, 1,000 at best",
        (4, 1),
        {"xml_file": "inverted_pendulum.xml", "frame_skip": 2, "reset_noise_scale": 0.01},
        action_limit=3.0,
    ),
    _task(
        "Pusher",
        "Push a cylinder to its goal with an arm; -30 is good",
        (23, 7),
        {
            "xml_file": "pusher_v5.xml",
            "frame_skip": 5,
            "reward_near_weight": 0.5,
            "reward_dist_weight": 1.0,
            "reward_control_weight": 0.1,
        },
        action_limit=2.0,
        max_episode_steps=100,
    ),
    _task(
        "Reacher",
        "Bring the tip of an arm to a target; -4 is good",
        (10, 2),
        {"xml_file": "reacher.xml", "frame_skip": 2, "reward_dist_weight": 1.0, "reward_control_weight": 1.0},
        max_episode_steps=50,
    ),
    _task(
        "Swimmer",
        "Swim with three links through a viscous fluid, in a plane; 360 is very good",
        (8, 2),
        {
            "xml_file": "swimmer.xml",
            "frame_skip": 4,
            "forward_reward_weight": 1.0,
            "ctrl_cost_weight": 1e-4,
            "reset_noise_scale": 0.1,
            "exclude_current_positions_from_observation": True,
        },
    ),
    _task(
        "Walker2d",
        "Walk on two legs, in a plane, without falling; 4,000 is good",
        (17, 6),
        {
            "xml_file": "walker2d_v5.xml",
            "frame_skip": 4,
            "forward_reward_weight": 1.0,
            "ctrl_cost_weight": 1e-3,
            "healthy_reward": 1.0,
            "terminate_when_unhealthy": True,
            "healthy_z_range": (0.8, 2.0),
            "healthy_angle_range": (-1.0, 1.0),
            "reset_noise_scale": 5e-3,
            "exclude_current_positions_from_observation": True,
            "engine": "auto",
        },
    ),
)

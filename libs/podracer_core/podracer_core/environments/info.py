"""The built-in environments' descriptions: Gymnasium's classic control, in torch; its MuJoCo tasks
(v5), batched by MuJoCo itself on a CPU, some also by MuJoCo Warp on CUDA; the chase; mjlab's
tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from podracer_core.catalogue import ArgumentInfo, BoxSpace, DiscreteSpace, EnvironmentInfo
from podracer_core.errors import InvalidInput

_CART_POLE_HIGH = (4.8, math.inf, 24 * math.pi / 180, math.inf)
_ACROBOT_HIGH = (1.0, 1.0, 1.0, 1.0, 4 * math.pi, 9 * math.pi)
_MOUNTAIN_CAR_LOW = (-1.2, -0.07)
_MOUNTAIN_CAR_HIGH = (0.6, 0.07)
_GOAL_VELOCITY = ArgumentInfo("goal_velocity", "how fast the car must at least be at the top", 0.0)

CART_POLE = EnvironmentInfo(
    id="CartPole-v1",
    description="Balance a pole on a cart by pushing it left or right; 1 a step, 500 at most",
    backend="torch",
    devices=("cpu", "cuda"),
    observation_space=BoxSpace(tuple(-high for high in _CART_POLE_HIGH), _CART_POLE_HIGH, (4,)),
    action_space=DiscreteSpace(2),
    max_episode_steps=500,
    most_reward=1.0,
    factory="podracer_core.environments.classic_control:CartPole",
    arguments=(
        ArgumentInfo(
            "sutton_barto_reward",
            "reward -1 for falling and 0 otherwise, instead of 1 a step",
            False,
        ),
    ),
)

PENDULUM = EnvironmentInfo(
    id="Pendulum-v1",
    description="Swing a pendulum up and hold it with a weak motor; about -150 an episode is good, "
    "0 the best",
    backend="torch",
    devices=("cpu", "cuda"),
    observation_space=BoxSpace((-1.0, -1.0, -8.0), (1.0, 1.0, 8.0), (3,)),
    action_space=BoxSpace(-2.0, 2.0, (1,)),
    max_episode_steps=200,
    most_reward=0.0,
    factory="podracer_core.environments.classic_control:Pendulum",
    arguments=(ArgumentInfo("g", "acceleration of gravity, m/s²", 10.0),),
)

ACROBOT = EnvironmentInfo(
    id="Acrobot-v1",
    description="Swing the end of a double pendulum up by a motor in its middle joint; -1 a step, "
    "-100 is good",
    backend="torch",
    devices=("cpu", "cuda"),
    observation_space=BoxSpace(tuple(-high for high in _ACROBOT_HIGH), _ACROBOT_HIGH, (6,)),
    action_space=DiscreteSpace(3),
    max_episode_steps=500,
    most_reward=0.0,
    factory="podracer_core.environments.classic_control:Acrobot",
    arguments=(
        ArgumentInfo(
            "book_or_nips", "equations of Sutton and Barto's book, or nips: of the paper", "book"
        ),
        ArgumentInfo("dt", "seconds a step", 0.2),
        ArgumentInfo(
            "torque_noise_max", "N m; a number uniform in ± this is added to the torque", 0.0
        ),
    ),
)

MOUNTAIN_CAR = EnvironmentInfo(
    id="MountainCar-v0",
    description="Rock a weak car out of a valley, by one of three pushes; -1 a step, -110 is good",
    backend="torch",
    devices=("cpu", "cuda"),
    observation_space=BoxSpace(_MOUNTAIN_CAR_LOW, _MOUNTAIN_CAR_HIGH, (2,)),
    action_space=DiscreteSpace(3),
    max_episode_steps=200,
    most_reward=0.0,
    factory="podracer_core.environments.classic_control:MountainCar",
    arguments=(_GOAL_VELOCITY,),
)

MOUNTAIN_CAR_CONTINUOUS = EnvironmentInfo(
    id="MountainCarContinuous-v0",
    description="Rock a weak car out of a valley, burning little fuel; 100 at the top, 90 is good",
    backend="torch",
    devices=("cpu", "cuda"),
    observation_space=BoxSpace(_MOUNTAIN_CAR_LOW, _MOUNTAIN_CAR_HIGH, (2,)),
    action_space=BoxSpace(-1.0, 1.0, (1,)),
    max_episode_steps=999,
    factory="podracer_core.environments.classic_control:MountainCarContinuous",
    arguments=(_GOAL_VELOCITY,),
)

CLASSIC_CONTROL = (CART_POLE, PENDULUM, ACROBOT, MOUNTAIN_CAR, MOUNTAIN_CAR_CONTINUOUS)


Engine = Literal["auto", "mujoco", "warp"]

_MEANINGS = {
    "xml_file": "the model: one of Gymnasium's, or a path that starts with . ~ or /",
    "frame_skip": "physics steps that make one step",
    "forward_reward_weight": "of the velocity along x",
    "ctrl_cost_weight": "of the sum of squared actions",
    "contact_cost_weight": "of the contact forces; only evaluations charge it",
    "impact_cost_weight": "of the contact forces; only evaluations charge it",
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
    "include_cfrc_ext_in_observation": "must be false: observations have no contact forces",
    "reward_dist_weight": "of the distance to the goal",
    "reward_near_weight": "of the distance of arm and cylinder",
    "reward_control_weight": "of the sum of squared actions",
    "engine": "auto, mujoco (C, on a CPU), or warp (a CUDA device; on a CPU for tests only)",
}


@dataclass(frozen=True, kw_only=True)
class TaskArguments:
    """Arguments of a task's constructor, besides `num_envs` and `device`."""

    max_episode_steps: int | None = 1000
    xml_file: str
    frame_skip: int

    @property
    def reset_noise_scale(self) -> float:
        """Of the noise about the model's own state; a field of the tasks that have it."""
        raise NotImplementedError

    @property
    def contact_weight(self) -> float:
        """Of the contact forces, in evaluations."""
        return float(getattr(self, "contact_cost_weight", getattr(self, "impact_cost_weight", 0.0)))


@dataclass(frozen=True, kw_only=True)
class RunArguments(TaskArguments):
    """Arguments of tasks that reward the speed along x."""

    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float
    reset_noise_scale: float = 0.1
    exclude_current_positions_from_observation: bool = True


@dataclass(frozen=True, kw_only=True)
class SwimmerArguments(RunArguments):
    xml_file: str = "swimmer.xml"
    frame_skip: int = 4
    ctrl_cost_weight: float = 1e-4


@dataclass(frozen=True, kw_only=True)
class HalfCheetahArguments(RunArguments):
    xml_file: str = "half_cheetah.xml"
    frame_skip: int = 5
    ctrl_cost_weight: float = 0.1
    engine: Engine = "auto"


@dataclass(frozen=True, kw_only=True)
class WalkArguments(RunArguments):
    """Arguments of tasks in which the robot can fall."""

    healthy_reward: float = 1.0
    terminate_when_unhealthy: bool = True
    healthy_z_range: tuple[float, float]
    engine: Engine = "auto"


@dataclass(frozen=True, kw_only=True)
class HopperArguments(WalkArguments):
    xml_file: str = "hopper.xml"
    frame_skip: int = 4
    ctrl_cost_weight: float = 1e-3
    healthy_state_range: tuple[float, float] = (-100.0, 100.0)
    healthy_z_range: tuple[float, float] = (0.7, math.inf)
    healthy_angle_range: tuple[float, float] = (-0.2, 0.2)
    reset_noise_scale: float = 5e-3


@dataclass(frozen=True, kw_only=True)
class Walker2dArguments(WalkArguments):
    xml_file: str = "walker2d_v5.xml"
    frame_skip: int = 4
    ctrl_cost_weight: float = 1e-3
    healthy_z_range: tuple[float, float] = (0.8, 2.0)
    healthy_angle_range: tuple[float, float] = (-1.0, 1.0)
    reset_noise_scale: float = 5e-3


@dataclass(frozen=True, kw_only=True)
class AntArguments(WalkArguments):
    xml_file: str = "ant.xml"
    frame_skip: int = 5
    ctrl_cost_weight: float = 0.5
    contact_cost_weight: float = 5e-4
    main_body: int | str = 1
    healthy_z_range: tuple[float, float] = (0.2, 1.0)
    include_cfrc_ext_in_observation: bool = False

    def __post_init__(self) -> None:
        _refuse_contact_forces(self, "ant_v5:AntEnv")


@dataclass(frozen=True, kw_only=True)
class HumanoidParts(TaskArguments):
    """Parts of the observation of Humanoid and HumanoidStandup."""

    frame_skip: int = 5
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 1e-2
    exclude_current_positions_from_observation: bool = True
    include_cinert_in_observation: bool = True
    include_cvel_in_observation: bool = True
    include_qfrc_actuator_in_observation: bool = True
    include_cfrc_ext_in_observation: bool = False


@dataclass(frozen=True, kw_only=True)
class HumanoidArguments(HumanoidParts):
    xml_file: str = "humanoid.xml"
    forward_reward_weight: float = 1.25
    contact_cost_weight: float = 5e-7
    healthy_reward: float = 5.0
    terminate_when_unhealthy: bool = True
    healthy_z_range: tuple[float, float] = (1.0, 2.0)
    engine: Engine = "auto"

    def __post_init__(self) -> None:
        _refuse_contact_forces(self, "humanoid_v5:HumanoidEnv")


@dataclass(frozen=True, kw_only=True)
class HumanoidStandupArguments(HumanoidParts):
    xml_file: str = "humanoidstandup.xml"
    impact_cost_weight: float = 5e-7

    def __post_init__(self) -> None:
        _refuse_contact_forces(self, "humanoidstandup_v5:HumanoidStandupEnv")


@dataclass(frozen=True, kw_only=True)
class InvertedDoublePendulumArguments(TaskArguments):
    xml_file: str = "inverted_double_pendulum.xml"
    frame_skip: int = 5
    healthy_reward: float = 10.0
    reset_noise_scale: float = 0.1


@dataclass(frozen=True, kw_only=True)
class InvertedPendulumArguments(TaskArguments):
    xml_file: str = "inverted_pendulum.xml"
    frame_skip: int = 2
    reset_noise_scale: float = 0.01


@dataclass(frozen=True, kw_only=True)
class PusherArguments(TaskArguments):
    max_episode_steps: int | None = 100
    xml_file: str = "pusher_v5.xml"
    frame_skip: int = 5
    reward_near_weight: float = 0.5
    reward_dist_weight: float = 1.0
    reward_control_weight: float = 0.1


@dataclass(frozen=True, kw_only=True)
class ReacherArguments(TaskArguments):
    max_episode_steps: int | None = 50
    xml_file: str = "reacher.xml"
    frame_skip: int = 2
    reward_dist_weight: float = 1.0
    reward_control_weight: float = 1.0


# Gymnasium calls `mj_rnePostConstraint` on every world after the last physics step. `BatchPhysics`
# does so in evaluations. MuJoCo Warp's contacts are others. Rather than show other numbers under
# the same name, no observation has contact forces, and training is not charged for them.
def _refuse_contact_forces(asked: AntArguments | HumanoidParts, entry_point: str) -> None:
    """InvalidInput if a task is asked to show contact forces; `entry_point` is Gymnasium's class,
    which does."""
    if asked.include_cfrc_ext_in_observation:
        problem = (
            "must be false: contact forces are not observed here; for Gymnasium's own environment, "
            f"in processes, name the entry_point gymnasium.envs.mujoco.{entry_point} instead of "
            "the id"
        )
        raise InvalidInput.of("environment.kwargs.include_cfrc_ext_in_observation", problem)


def _task(
    name: str,
    arguments: type[TaskArguments],
    description: str,
    sizes: tuple[int, int],
    action_limit: float = 1.0,
) -> EnvironmentInfo:
    """`name` is that of the class in `mujoco.tasks`; `sizes` of observation and action."""
    defaults = {field.name: field.default for field in fields(arguments)}
    limit = defaults.pop("max_episode_steps")
    observation_size, action_size = sizes
    return EnvironmentInfo(
        id=f"{name}-v5",
        description=description,
        backend="mujoco",
        devices=("cpu", "cuda") if "engine" in defaults else ("cpu",),
        observation_space=BoxSpace(-math.inf, math.inf, (observation_size,)),
        action_space=BoxSpace(-action_limit, action_limit, (action_size,)),
        max_episode_steps=limit if isinstance(limit, int) else None,
        factory=f"podracer_core.environments.mujoco.tasks:{name}",
        arguments=tuple(
            ArgumentInfo(each, _MEANINGS[each], default) for each, default in defaults.items()
        ),
    )


# Ant, Humanoid and HumanoidStandup show no contact forces: see docs/environments/mujoco.md.
_MUJOCO = (
    _task(
        "Ant",
        AntArguments,
        "Walk on four legs without falling over; 6,000 is very good",
        (27, 8),
    ),
    _task(
        "HalfCheetah",
        HalfCheetahArguments,
        "Run on two legs, in a plane; 10,000 is very good",
        (17, 6),
    ),
    _task(
        "Hopper",
        HopperArguments,
        "Hop on one leg, in a plane, without falling; 3,500 is very good",
        (11, 3),
    ),
    _task(
        "Humanoid",
        HumanoidArguments,
        "Walk on two legs without falling; 5,000 is good",
        (270, 17),
        0.4,
    ),
    _task(
        "HumanoidStandup",
        HumanoidStandupArguments,
        "Stand up from lying on the back; 150,000 is good",
        (270, 17),
        0.4,
    ),
    _task(
        "InvertedDoublePendulum",
        InvertedDoublePendulumArguments,
        "Balance two poles, one upon the other, on a cart; about 9,350 at best",
        (9, 1),
    ),
    _task(
        "InvertedPendulum",
        InvertedPendulumArguments,
        "Balance a pole on a cart; 1 a step, 1,000 at best",
        (4, 1),
        3.0,
    ),
    _task(
        "Pusher",
        PusherArguments,
        "Push a cylinder to its goal with an arm; -30 is good",
        (23, 7),
        2.0,
    ),
    _task(
        "Reacher",
        ReacherArguments,
        "Bring the tip of an arm to a target; -4 is good",
        (10, 2),
    ),
    _task(
        "Swimmer",
        SwimmerArguments,
        "Swim with three links through a viscous fluid, in a plane; 360 is very good",
        (8, 2),
    ),
    _task(
        "Walker2d",
        Walker2dArguments,
        "Walk on two legs, in a plane, without falling; 4,000 is good",
        (17, 6),
    ),
)


_DIMENSIONS = ArgumentInfo("dimensions", "of the space in which the points move", 2)

_POINT_CHASING = (
    EnvironmentInfo(
        id="PointChasing-v0",
        description="Accelerate until a drifting point is caught, in any number of dimensions; 2 "
        "is good in two",
        backend="torch",
        devices=("cpu", "cuda"),
        observation_space=BoxSpace(-math.inf, math.inf, (8,)),
        action_space=BoxSpace(-1.0, 1.0, (2,)),
        max_episode_steps=1024,
        factory="podracer_core.environments.point_chasing:PointChasing",
        arguments=(_DIMENSIONS,),
    ),
    EnvironmentInfo(
        id="PointChasingDiscrete-v0",
        description="The same chase, with -1, 0 or 1 in each dimension; 2 is good in two",
        backend="torch",
        devices=("cpu", "cuda"),
        observation_space=BoxSpace(-math.inf, math.inf, (8,)),
        action_space=DiscreteSpace(9),
        max_episode_steps=1024,
        factory="podracer_core.environments.point_chasing:PointChasingDiscrete",
        arguments=(
            _DIMENSIONS,
            ArgumentInfo(
                "factored",
                "actions are a choice for each dimension instead of one out of 3^d",
                False,
            ),
        ),
    ),
)


_MJLAB = EnvironmentInfo(
    id="mjlab",
    description="A task of mjlab, by its name: robots on MuJoCo Warp",
    backend="torch",
    devices=("cpu", "cuda"),
    factory="podracer_core.environments.rsl_rl:Mjlab",
    arguments=(
        ArgumentInfo(
            "task",
            "its name in mjlab",
            required=True,
            example="Mjlab-Velocity-Flat-Unitree-Go1",
        ),
    ),
)

BUILT_IN = (*CLASSIC_CONTROL, *_MUJOCO, *_POINT_CHASING, _MJLAB)

"""Gymnasium's tasks (v5): their models, views and rewards. Reacher, Pusher and both inverted
pendulums stay in place; HalfCheetah, Hopper, Walker2d and Swimmer move in a plane; Ant, Humanoid
and HumanoidStandup in space, without contact forces in the observation.

Evaluations subtract the cost of these forces from the reward as Gymnasium does; training leaves it
out.

The humanoids are of Tassa, Erez and Todorov 2012, "Synthesis and Stabilization of Complex Behaviors
through Online Trajectory Optimization". Both observe float32 [N, 270], in this order: positions (x
and y left out), velocities, then for all bodies but the world

    cinert          mass and inertia in the frame of the centre of mass, 10 a body
    cvel            velocity in that frame, 6 a body
    qfrc_actuator   the forces of the motors, one a coordinate other than the root's

Action [N, 17]: torques of the hinges. Gymnasium's default is `include_cfrc_ext_in_observation`
true; here it is InvalidInput."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from podracer_core.environments.info import (
    AntArguments,
    HalfCheetahArguments,
    HopperArguments,
    HumanoidArguments,
    HumanoidParts,
    HumanoidStandupArguments,
    InvertedDoublePendulumArguments,
    InvertedPendulumArguments,
    PusherArguments,
    ReacherArguments,
    SwimmerArguments,
    Walker2dArguments,
)
from podracer_core.environments.mujoco.environment import MuJoCoEnvironment
from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import uniform

_VELOCITY_NOISE = 0.005

# Of Reacher.
_POSITION_NOISE = 0.1
_GOAL_RADIUS = 0.2  # m

# Of Pusher.
_ARM_JOINTS = 7
_MIN_GOAL_DISTANCE = 0.17  # m, of the cylinder from its goal
# places for the cylinder; all are too near once in 10^13 episodes, and then the first is taken
_CANDIDATES = 32

# Of the pendulums: the angle of the single one, the rest of the double one.
_MAX_ANGLE = 0.2  # rad
_MAX_OBSERVED = 10.0
_UPRIGHT_HEIGHT = 2.0  # about that of the tip, in metres
_MIN_HEIGHT = 1.0


class Reacher(MuJoCoEnvironment):
    """Bring the tip of a two-link arm to a target in its plane; it never ends by itself.

    Observation float32 [N, 10]: cosines and sines of both angles, position of the target, angular
    velocities, and the way from the target to the tip in the plane. Action [N, 2]: torques of the
    hinges. Reward: minus the distance of tip and target, minus Σ action²."""

    arguments_type = ReacherArguments
    arguments: ReacherArguments

    def fields(self) -> Sequence[str]:
        return ("xpos",)

    def set_up(self) -> Sequence[Tensor]:
        self._tip, self._target = _bodies(self, "fingertip", "target")
        return (
            self.qpos[:, :2],
            self.qpos[:, :2],
            self.qpos[:, 2:],
            self.qvel[:, :2],
            self._target[:, :2],
        )

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform angles and velocities, and a target at rest, uniform in a disc."""
        qpos, _ = self.noisy_state(key, _POSITION_NOISE)
        _, qvel = self.noisy_state(key, _VELOCITY_NOISE)
        free = qpos.shape[1] + qvel.shape[1]  # the first counter that the noise leaves
        radius = uniform(key, free).to(qpos.dtype).sqrt_().mul_(_GOAL_RADIUS)
        angle = uniform(key, free + 1).to(qpos.dtype).mul_(2 * math.pi)
        torch.stack([radius * angle.cos(), radius * angle.sin()], 1, out=qpos[:, -2:])
        qvel[:, -2:] = 0
        return qpos, qvel

    def observe(self, out: Tensor) -> None:
        """Cosines, sines, target, velocities, way."""
        angles, _, goal, velocities, _ = self.observed
        way = (self._tip - self._target)[:, :2]
        torch.cat([angles.cos(), angles.sin(), goal, velocities, way], 1, out=out)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Minus distance and control cost."""
        reward = torch.linalg.vector_norm(self._tip - self._target, dim=1).mul_(
            -self.arguments.reward_dist_weight
        )
        return reward.sub_(
            self.ctrl.square().sum(1), alpha=self.arguments.reward_control_weight
        ), self.never


class Pusher(MuJoCoEnvironment):
    """Push a cylinder to its goal on a table with an arm of seven joints; it never ends by itself.

    Observation float32 [N, 23]: angles and angular velocities of the arm, positions of its tip, the
    cylinder and the goal. Action [N, 7]: torques of the hinges. Reward: minus half the distance of
    tip and cylinder, minus that of cylinder and goal, minus 0.1 · Σ action²."""

    arguments_type = PusherArguments
    arguments: PusherArguments

    def fields(self) -> Sequence[str]:
        return ("xpos",)

    def set_up(self) -> Sequence[Tensor]:
        self._tip, self._cylinder, self._goal = bodies = _bodies(self, "tips_arm", "object", "goal")
        self._candidates = torch.arange(_CANDIDATES, device=self.device)
        return self.qpos[:, :_ARM_JOINTS], self.qvel[:, :_ARM_JOINTS], *bodies

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """The arm at rest but for a little velocity, the cylinder uniform in a rectangle, not too
        near to its goal."""
        _, qvel = self.noisy_state(key, _VELOCITY_NOISE)
        qvel[:, -4:] = 0
        free = self.qpos.shape[1] + qvel.shape[1]  # the first counter that the noise leaves
        counter = self._candidates.add(free)
        x = uniform(key[:, None], counter).to(self.qpos.dtype).mul_(0.3).sub_(0.3)
        y = uniform(key[:, None], counter + _CANDIDATES).to(self.qpos.dtype).mul_(0.4).sub_(0.2)
        far = torch.hypot(x, y) > _MIN_GOAL_DISTANCE
        chosen = far.to(torch.uint8).argmax(1, keepdim=True)  # the first of them
        qpos = self._constants.qpos0.repeat(key.shape[0], 1)
        qpos[:, -4:-3], qpos[:, -3:-2] = x.gather(1, chosen), y.gather(1, chosen)
        qpos[:, -2:] = 0
        return qpos, qvel

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Minus both distances and control cost."""
        asked = self.arguments
        near = torch.linalg.vector_norm(self._cylinder - self._tip, dim=1).mul_(
            -asked.reward_near_weight
        )
        distance = torch.linalg.vector_norm(self._cylinder - self._goal, dim=1)
        reward = near.sub_(distance, alpha=asked.reward_dist_weight)
        return reward.sub_(self.ctrl.square().sum(1), alpha=asked.reward_control_weight), self.never


def _bodies(task: MuJoCoEnvironment, *names: str) -> list[Tensor]:
    """The positions of the named bodies, [N, 3] each."""
    return [task.physics.field("xpos")[:, task.physics.model.body(name).id] for name in names]


class InvertedPendulum(MuJoCoEnvironment):
    """Keep a pole upright on a cart by pushing the cart along x.

    Barto, Sutton and Anderson 1983, "Neuronlike Adaptive Elements That Can Solve Difficult Learning
    Control Problems". Observation float32 [N, 4]: position of the cart, angle of the pole, and
    their velocities. Action [N, 1]: the force on the cart. Reward 1 a step; it ends, with reward 0,
    when the pole leans more than 0.2 rad."""

    arguments_type = InvertedPendulumArguments
    arguments: InvertedPendulumArguments

    def set_up(self) -> Sequence[Tensor]:
        self._angle = self.qpos[:, 1]
        return self.qpos, self.qvel

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """1 until it falls."""
        fallen = self._angle.abs() > _MAX_ANGLE
        return fallen.logical_not(), fallen


class InvertedDoublePendulum(MuJoCoEnvironment):
    """Keep two poles, one upon the other, upright on a cart by pushing the cart along x.

    Observation float32 [N, 9]: position of the cart, sines and cosines of both angles, velocities
    within ±10, and the constraint force on the cart within ±10. Action [N, 1]: the force on the
    cart. Reward: 10, minus 0.01 x² + (height - 2)² of the tip, minus 0.001 ω₁² + 0.005 ω₂². It
    ends, without the 10, when the tip is not higher than 1 m."""

    arguments_type = InvertedDoublePendulumArguments
    arguments: InvertedDoublePendulumArguments
    normal_velocity = True

    def fields(self) -> Sequence[str]:
        return "site_xpos", "qfrc_constraint"

    def set_up(self) -> Sequence[Tensor]:
        cart = self.qpos[:, :1]
        angles = self.qpos[:, 1:]
        force = self.physics.field("qfrc_constraint")[:, :1]
        self._tip_x, _, self._tip_height = self.physics.field("site_xpos")[:, 0].unbind(1)
        self._angular_velocities = self.qvel[:, 1:3]
        self._velocity_weights = torch.tensor(
            [1e-3, 5e-3], dtype=self.physics.dtype, device=self.device
        )
        return cart, angles, angles, self.qvel, force

    def observe(self, out: Tensor) -> None:
        """Cart, sines, cosines, velocities, force."""
        cart, angles, _, velocities, force = self.observed
        limited = (part.clamp(-_MAX_OBSERVED, _MAX_OBSERVED) for part in (velocities, force))
        torch.cat([cart, angles.sin(), angles.cos(), *limited], 1, out=out)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Healthy reward minus distance and velocity penalties; the end when it has fallen."""
        fallen = self._tip_height <= _MIN_HEIGHT
        distance = (
            self._tip_x.square().mul_(0.01).add_(self._tip_height.sub(_UPRIGHT_HEIGHT).square_())
        )
        reward = (
            fallen.logical_not()
            .to(distance.dtype)
            .mul_(self.arguments.healthy_reward)
            .sub_(distance)
        )
        return reward.sub_(self._angular_velocities.square() @ self._velocity_weights), fallen


_MAX_OBSERVED_SPEED = 10.0


class HalfCheetah(MuJoCoEnvironment):
    """Run along x as fast as possible; it never ends by itself.

    Wawrzyński 2009, "A Cat-Like Robot Real-Time Learning to Run". Observation float32 [N, 17]:
    positions (x left out) and velocities. Action [N, 6]: torques of the hinges. Reward: forward
    velocity minus 0.1 · Σ action²."""

    arguments_type = HalfCheetahArguments
    arguments: HalfCheetahArguments
    normal_velocity = True

    def set_up(self) -> Sequence[Tensor]:
        return self.positions(1, self.arguments), self.qvel

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Forward reward minus control cost."""
        reward = velocity.mul_(self.arguments.forward_reward_weight)
        return reward.sub_(
            self.ctrl.square().sum(1), alpha=self.arguments.ctrl_cost_weight
        ), self.never


class Swimmer(MuJoCoEnvironment):
    """Three links swim along x through a viscous fluid; it never ends by itself.

    Coulom 2002, "Reinforcement Learning Using Neural Networks, with Applications to Motor Control".
    Observation float32 [N, 8]: positions (x and y left out) and velocities. Action [N, 2]: torques
    of the hinges. Reward: forward velocity minus 0.0001 · Σ action²."""

    arguments_type = SwimmerArguments
    arguments: SwimmerArguments

    def set_up(self) -> Sequence[Tensor]:
        return self.positions(2, self.arguments), self.qvel

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Forward reward minus control cost."""
        reward = velocity.mul_(self.arguments.forward_reward_weight)
        return reward.sub_(
            self.ctrl.square().sum(1), alpha=self.arguments.ctrl_cost_weight
        ), self.never


class Hopper(MuJoCoEnvironment):
    """Hop along x on one leg without falling.

    Erez, Tassa and Todorov 2011, "Infinite-Horizon Model Predictive Control for Periodic Tasks with
    Contacts". Observation float32 [N, 11]: positions (x left out) and velocities within ±10. Action
    [N, 3]: torques of the hinges. Reward: forward velocity, plus 1 while healthy, minus 0.001 · Σ
    action². It ends when unhealthy: height or angle of the torso, or anything but x and height, out
    of its range."""

    arguments_type = HopperArguments
    arguments: HopperArguments

    def set_up(self) -> Sequence[Tensor]:
        asked = self.arguments
        # Every coordinate's range, x aside: height and angle have their own, and the angle both.
        lows, highs = (
            [
                asked.healthy_z_range[side],
                *[asked.healthy_state_range[side]] * (self.qpos.shape[1] + self.qvel.shape[1] - 2),
            ]
            for side in (0, 1)
        )
        low, high = asked.healthy_angle_range
        lows[1], highs[1] = max(lows[1], low), min(highs[1], high)
        self._lows, self._highs = (
            torch.tensor(side, device=self.device, dtype=self.physics.dtype)
            for side in (lows, highs)
        )
        return self.positions(1, self.arguments), self.qvel

    def observe(self, out: Tensor) -> None:
        """Positions, and velocities within ±10."""
        _observe_slowly(self.observed, out)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Forward and healthy reward minus control cost; the end when unhealthy."""
        state = torch.cat([self.qpos[:, 1:], self.qvel], 1)
        healthy = (state > self._lows).logical_and_(state < self._highs).all(1)
        return self.walked(velocity, healthy, self.arguments)


class Walker2d(MuJoCoEnvironment):
    """Walk along x on two legs without falling.

    Observation float32 [N, 17]: positions (x left out) and velocities within ±10. Action [N, 6]:
    torques of the hinges. Reward: forward velocity, plus 1 while healthy, minus 0.001 · Σ action².
    It ends when unhealthy: height or angle of the torso out of its range."""

    arguments_type = Walker2dArguments
    arguments: Walker2dArguments

    def set_up(self) -> Sequence[Tensor]:
        ranges = [self.arguments.healthy_z_range, self.arguments.healthy_angle_range]
        self._lows, self._highs = torch.tensor(
            ranges, device=self.device, dtype=self.physics.dtype
        ).unbind(1)
        self._height_and_angle = self.qpos[:, 1:3]
        return self.positions(1, self.arguments), self.qvel

    def observe(self, out: Tensor) -> None:
        """Positions, and velocities within ±10."""
        _observe_slowly(self.observed, out)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Forward and healthy reward minus control cost; the end when unhealthy."""
        state = self._height_and_angle
        healthy = (state > self._lows).logical_and_(state < self._highs).all(1)
        return self.walked(velocity, healthy, self.arguments)


def _observe_slowly(observed: Sequence[Tensor], out: Tensor) -> None:
    positions, speeds = observed
    torch.cat([positions, speeds.clamp(-_MAX_OBSERVED_SPEED, _MAX_OBSERVED_SPEED)], 1, out=out)


_ROOT_COORDINATES = 6  # of the free joint, which no motor drives


class Ant(MuJoCoEnvironment):
    """Four legs walk along x without falling over.

    Schulman, Moritz, Levine, Jordan and Abbeel 2016, "High-Dimensional Continuous Control Using
    Generalized Advantage Estimation". Observation float32 [N, 27]: positions (x and y left out) and
    velocities. Action [N, 8]: torques of the hinges. Reward: forward velocity of `main_body`
    (number or name), plus 1 while healthy, minus 0.5 · Σ action². It ends when unhealthy: height of
    the torso out of its range."""

    arguments_type = AntArguments
    contact_force_range = (-1.0, 1.0)
    arguments: AntArguments
    normal_velocity = True

    def fields(self) -> Sequence[str]:
        return ("xpos",)

    def set_up(self) -> Sequence[Tensor]:
        self._height = self.qpos[:, 2]
        self._body_x = self.physics.field("xpos")[:, self._body_index(self.arguments.main_body), 0]
        return self.positions(2, self.arguments), self.qvel

    def position(self) -> Tensor:
        """x of the main body."""
        return self._body_x

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Forward and healthy reward minus control cost; the end when unhealthy."""
        low, high = self.arguments.healthy_z_range
        healthy = (self._height >= low).logical_and_(self._height <= high)
        return self.walked(velocity, healthy, self.arguments)

    def _body_index(self, body: int | str) -> int:
        model = self.physics.model
        try:
            return int(model.body(body).id)
        except (KeyError, IndexError) as error:
            names = ", ".join(
                filter(None, (model.body(index).name for index in range(model.nbody)))
            )
            message = f"main_body must be a body of the model ({names}) or its number, not {body!r}"
            raise InvalidInput(message, field="environment.kwargs.main_body") from error


class HumanoidStandup(MuJoCoEnvironment):
    """Stand up from lying on the back, and stay up; it never ends by itself.

    Reward: height of the torso over the physics time step, plus 1, minus 0.1 · Σ action².
    (Gymnasium's `uph_cost_weight` multiplies nothing there, and is not taken here.)"""

    arguments_type = HumanoidStandupArguments
    most_contact_cost = 10.0
    arguments: HumanoidStandupArguments

    def fields(self) -> Sequence[str]:
        return _parts(self.arguments)

    def set_up(self) -> Sequence[Tensor]:
        self._height = self.qpos[:, 2]
        self._time_step = float(self.physics.model.opt.timestep)
        return _views(self, self.arguments)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Height minus control cost."""
        reward = self._height.div(self._time_step)
        return reward.sub_(self.ctrl.square().sum(1), alpha=self.arguments.ctrl_cost_weight).add_(
            1
        ), self.never


class Humanoid(MuJoCoEnvironment):
    """Walk along x on two legs without falling.

    Reward: 1.25 · forward velocity of the centre of mass, plus 5 while healthy, minus 0.1 · Σ
    action². It ends when unhealthy: height of the torso out of its range."""

    arguments_type = HumanoidArguments
    most_contact_cost = 10.0
    arguments: HumanoidArguments

    def fields(self) -> Sequence[str]:
        return "xipos", *_parts(self.arguments)

    def set_up(self) -> Sequence[Tensor]:
        self._height = self.qpos[:, 2]
        self._body_x = self.physics.field("xipos")[:, :, 0]
        mass = torch.as_tensor(
            self.physics.model.body_mass, dtype=self.physics.dtype, device=self.device
        )
        self._mass_share = mass / mass.sum()
        return _views(self, self.arguments)

    def position(self) -> Tensor:
        """x of the centre of mass."""
        return self._body_x @ self._mass_share

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Forward and healthy reward minus control cost; the end when unhealthy."""
        low, high = self.arguments.healthy_z_range
        healthy = (self._height > low).logical_and_(self._height < high)
        return self.walked(velocity, healthy, self.arguments)


def _parts(asked: HumanoidParts) -> list[str]:
    """The derived fields of `mjData` that are observed."""
    names = ("cinert", "cvel", "qfrc_actuator")
    return [name for name in names if getattr(asked, f"include_{name}_in_observation")]


def _views(task: MuJoCoEnvironment, asked: HumanoidParts) -> list[Tensor]:
    """Live views [N, k] of all that is observed."""
    found = [task.positions(2, asked), task.qvel]
    for name in _parts(asked):
        field = task.physics.field(name)
        # A copy would not be live, and `view` refuses to make one.
        without_world = (
            field[:, 1:].view(field.shape[0], -1)
            if field.dim() > 2
            else field[:, _ROOT_COORDINATES:]
        )
        found.append(without_world)
    return found

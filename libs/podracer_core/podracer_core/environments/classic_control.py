"""Gymnasium's classic control, batched in torch, with the numbers and the integration steps of its
environments.

States are float64 as they are there, so that both agree for a whole episode: CartPole's upright
pole is unstable, and a rounding error of float32 would grow a millionfold in 200 steps; Acrobot's
motion is chaotic. That of MountainCarContinuous is rounded to float32 after every step, as it is
there.

CartPole      Barto, Sutton and Anderson 1983, "Neuronlike Adaptive Elements That Can Solve
              Difficult Learning Control Problems"
MountainCar   Moore 1990, "Efficient Memory-based Learning for Robot Control"
Acrobot       Sutton 1996, "Generalization in Reinforcement Learning: Successful Examples Using
              Sparse Coarse Coding"
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from podracer_core.environments.info import (
    ACROBOT,
    CART_POLE,
    MOUNTAIN_CAR,
    MOUNTAIN_CAR_CONTINUOUS,
    PENDULUM,
)
from podracer_core.environments.spaces import spaces_of
from podracer_core.environments.torch_environment import State, TorchEnvironment
from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import derive_key, uniform

_CART_GRAVITY = 9.8  # m/s²
_CART_MASS = 1.0  # kg
_POLE_MASS = 0.1  # kg
_TOTAL_MASS = _CART_MASS + _POLE_MASS
_HALF_LENGTH = 0.5  # m, of the pole
_CART_FORCE = 10.0  # N
_CART_TIME_STEP = 0.02  # s
_POSITION_LIMIT = 2.4  # m
_ANGLE_LIMIT = 12 * 2 * math.pi / 360  # rad
_CART_INITIAL_RANGE = 0.05

_POLE_RATIO = _POLE_MASS * _HALF_LENGTH / _TOTAL_MASS


class CartPole(TorchEnvironment):
    """Push a cart left (0) or right (1) so that the pole on it stays up.

    State "physics" float64 [4, N] and observation float32 [N, 4]: cart position, cart velocity,
    pole angle, pole angular velocity. Reward 1 a step, or with `sutton_barto_reward` -1 for falling
    and 0 otherwise."""

    graph_safe = True
    can_diverge = False

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = CART_POLE.max_episode_steps,
        sutton_barto_reward: bool = False,
    ) -> None:
        super().__init__(num_envs, device, *spaces_of(CART_POLE), max_episode_steps)
        self._sutton_barto_reward = sutton_barto_reward
        self._push_left = torch.tensor(
            -_CART_FORCE / _TOTAL_MASS, dtype=torch.float64, device=self.device
        )
        self._inertia = torch.tensor(
            _HALF_LENGTH * 4.0 / 3.0, dtype=torch.float64, device=self.device
        )
        self._one = torch.ones(num_envs, device=self.device)
        self._variables = torch.arange(4, device=self.device)[:, None]

    def initial_state(self, key: Tensor) -> State:
        """All four variables uniform in ±0.05."""
        physics = uniform(key, self._variables).double()
        return {"physics": physics.mul_(2 * _CART_INITIAL_RANGE).sub_(_CART_INITIAL_RANGE)}

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """One Euler step of Florian 2007, "Correct equations for the dynamics of the cart-pole
        system", eq. 23 and 24 without friction, as in Gymnasium."""
        position, velocity, angle, angular_velocity = state["physics"].unbind()
        cosine, sine = angle.cos(), angle.sin()
        force = torch.add(self._push_left, action, alpha=2 * _CART_FORCE / _TOTAL_MASS)
        # Both equations share (force + m l ω² sin θ) / (M + m).
        push = force.addcmul_(angular_velocity.square(), sine, value=_POLE_RATIO)
        inertia = self._inertia.addcmul(
            cosine, cosine, value=-_HALF_LENGTH * _POLE_MASS / _TOTAL_MASS
        )
        angular_acceleration = (
            sine.mul_(_CART_GRAVITY).addcmul_(cosine, push, value=-1).div_(inertia)
        )
        acceleration = push.addcmul_(angular_acceleration, cosine, value=-_POLE_RATIO)
        position.add_(velocity, alpha=_CART_TIME_STEP)
        angle.add_(angular_velocity, alpha=_CART_TIME_STEP)
        velocity.add_(acceleration, alpha=_CART_TIME_STEP)
        angular_velocity.add_(angular_acceleration, alpha=_CART_TIME_STEP)
        terminated = (position.abs() > _POSITION_LIMIT).logical_or_(angle.abs() > _ANGLE_LIMIT)
        return state, -terminated.float() if self._sutton_barto_reward else self._one, terminated

    def observe(self, state: State, out: Tensor) -> None:
        """The state itself, in float32."""
        out.copy_(state["physics"].t())


_PENDULUM_MAX_SPEED = 8.0  # rad/s
_MAX_TORQUE = 2.0  # N m
_PENDULUM_TIME_STEP = 0.05  # s
_PENDULUM_MASS = 1.0  # kg
_PENDULUM_LENGTH = 1.0  # m
_INITIAL_ANGLE = math.pi  # rad
_INITIAL_SPEED = 1.0  # rad/s


class Pendulum(TorchEnvironment):
    """Swing a pendulum up and hold it there with a motor too weak to lift it directly.

    State "physics" float64 [2, N]: angle (0 is upright, not wrapped) and angular velocity.
    Observation float32 [N, 3]: its cosine, sine and the angular velocity. Action [N, 1]: torque in
    ±2 N m. Reward -(angle² + 0.1 velocity² + 0.001 torque²) of the state before the step, the angle
    taken within ±π. `g` in m/s²."""

    graph_safe = True

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = PENDULUM.max_episode_steps,
        g: float = 10.0,
    ) -> None:
        super().__init__(num_envs, device, *spaces_of(PENDULUM), max_episode_steps)
        self._gravity_factor = 3 * g / (2 * _PENDULUM_LENGTH)
        self._ranges = torch.tensor(
            [[_INITIAL_ANGLE], [_INITIAL_SPEED]], dtype=torch.float64, device=self.device
        )
        self._never = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self._variables = torch.arange(2, device=self.device)[:, None]

    def initial_state(self, key: Tensor) -> State:
        """Any angle, and an angular velocity in ±1."""
        return {
            "physics": uniform(key, self._variables).double().mul_(2).sub_(1).mul_(self._ranges)
        }

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """ω += (3g/2l sin θ + 3/ml² u) dt, limited; θ += ω dt. It never ends by itself."""
        angle, speed = state["physics"].unbind()
        torque = action[:, 0].clamp(-_MAX_TORQUE, _MAX_TORQUE)
        turns = angle.mul(1 / (2 * math.pi)).round_()
        wrapped = angle.sub(turns, alpha=2 * math.pi)
        reward = (
            wrapped.square_()
            .addcmul_(speed, speed, value=0.1)
            .add_(torque.square(), alpha=0.001)
            .neg_()
        )
        # In float32, as Gymnasium rounds it; a swinging pendulum makes a hundred times more of a
        # difference here.
        push = torque.mul(3.0 / (_PENDULUM_MASS * _PENDULUM_LENGTH**2))
        acceleration = angle.sin().mul_(self._gravity_factor).add_(push)
        speed.add_(acceleration, alpha=_PENDULUM_TIME_STEP).clamp_(
            -_PENDULUM_MAX_SPEED, _PENDULUM_MAX_SPEED
        )
        angle.add_(speed, alpha=_PENDULUM_TIME_STEP)
        return state, reward, self._never

    def observe(self, state: State, out: Tensor) -> None:
        """cos θ, sin θ, ω in float32."""
        angle, speed = state["physics"].unbind()
        cosine, sine, third = out.unbind(1)
        cosine.copy_(angle.cos())
        sine.copy_(angle.sin())
        third.copy_(speed)


# Both links alike: 1 kg, 1 m, the centre of mass in the middle, a moment of inertia of 1 kg m².
_ACROBOT_MASS = 1.0
_ACROBOT_LENGTH = 1.0
_CENTRE = 0.5
_INERTIA = 1.0
_ACROBOT_GRAVITY = 9.8  # m/s²
_MAX_SPEEDS = (4 * math.pi, 9 * math.pi)  # rad/s
_ACROBOT_INITIAL_RANGE = 0.1

# What the equations of motion are made of.
_COUPLING = _ACROBOT_MASS * _ACROBOT_LENGTH * _CENTRE
_OUTER_INERTIA = _ACROBOT_MASS * _CENTRE**2 + _INERTIA
_WHOLE_INERTIA = (
    _ACROBOT_MASS * _CENTRE**2 + _ACROBOT_MASS * (_ACROBOT_LENGTH**2 + _CENTRE**2) + 2 * _INERTIA
)
_OUTER_WEIGHT = _ACROBOT_MASS * _CENTRE * _ACROBOT_GRAVITY
_INNER_WEIGHT = (_ACROBOT_MASS * _CENTRE + _ACROBOT_MASS * _ACROBOT_LENGTH) * _ACROBOT_GRAVITY


class Acrobot(TorchEnvironment):
    """Swing the free end of a double pendulum one link's length above its axis, by a torque of -1,
    0 or 1 N m (actions 0, 1, 2) on the joint in the middle.

    State "physics" float64 [4, N]: angle of the first link (0 hangs down), angle of the second
    against the first, both within ±π, and their velocities. Observation float32 [N, 6]: cosine and
    sine of the one, of the other, and the velocities. Reward -1 a step, 0 for the last.

    book_or_nips        the equations of Sutton and Barto's book, or those of the paper, which lack
                        a term
    dt                  s a step, one Runge-Kutta step
    torque_noise_max    N m; a number uniform in ± this is added to the torque. With it the state
                        has two more parts, "noise_key" and "noise_count", int64 [N]
    """

    graph_safe = True
    can_diverge = False

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = ACROBOT.max_episode_steps,
        book_or_nips: Literal["book", "nips"] = "book",
        dt: float = 0.2,
        torque_noise_max: float = 0.0,
    ) -> None:
        if book_or_nips not in ("book", "nips"):
            raise InvalidInput(f"book_or_nips must be 'book' or 'nips', not {book_or_nips!r}")
        if not (dt > 0 and math.isfinite(dt)):
            raise InvalidInput(f"dt must be a positive number of seconds, not {dt!r}")
        if not (torque_noise_max >= 0 and math.isfinite(torque_noise_max)):
            raise InvalidInput(
                f"torque_noise_max must be a number from 0 on, not {torque_noise_max!r}"
            )
        self._book = book_or_nips == "book"
        self._dt = dt
        self._noise = torque_noise_max
        super().__init__(num_envs, device, *spaces_of(ACROBOT), max_episode_steps)
        self._first_torque = torch.tensor(-1.0, dtype=torch.float64, device=self.device)
        self._max_speeds = torch.tensor(_MAX_SPEEDS, dtype=torch.float64, device=self.device)[
            :, None
        ]
        self._variables = torch.arange(4, device=self.device)[:, None]

    def initial_state(self, key: Tensor) -> State:
        """All four variables uniform in ±0.1."""
        physics = (
            uniform(key, self._variables)
            .double()
            .mul_(2 * _ACROBOT_INITIAL_RANGE)
            .sub_(_ACROBOT_INITIAL_RANGE)
        )
        if not self._noise:
            return {"physics": physics}
        return {
            "physics": physics,
            "noise_key": derive_key(key, 1),
            "noise_count": torch.zeros_like(key),
        }

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """One classical Runge-Kutta step, then angles within ±π and velocities limited."""
        physics = state["physics"]
        torque = self._first_torque + action
        if self._noise:
            drawn = uniform(state["noise_key"], state["noise_count"])
            torque.add_(drawn.mul_(2).sub_(1), alpha=self._noise)
            state["noise_count"] += 1
        first = self._derivative(physics, torque)
        second = self._derivative(physics.add(first, alpha=self._dt / 2), torque)
        third = self._derivative(physics.add(second, alpha=self._dt / 2), torque)
        fourth = self._derivative(physics.add(third, alpha=self._dt), torque)
        slope = first.add_(second, alpha=2).add_(third, alpha=2).add_(fourth)
        physics.add_(slope, alpha=self._dt / 6)
        angles, velocities = physics.view(2, 2, -1).unbind()
        angles.sub_(angles.mul(1 / (2 * math.pi)).round_(), alpha=2 * math.pi)
        torch.clamp(velocities, -self._max_speeds, self._max_speeds, out=velocities)
        height = angles[0].cos().add_(angles.sum(0).cos_()).neg_()
        terminated = height > 1.0
        return state, terminated.float().sub_(1), terminated

    def _derivative(self, physics: Tensor, torque: Tensor) -> Tensor:
        """The time derivative [4, N] of `physics` (Sutton and Barto, section 11.3 of the first
        edition).

        With θ the angles and M = [[d1, d2], [d2, m lc² + I]] the matrix of inertia, M θ'' = (-φ1, τ
        - φ2 - …)."""
        angle, joint_angle, speed, joint_speed = physics.unbind()
        cosine, sine = joint_angle.cos(), joint_angle.sin()
        d1 = cosine.mul(2 * _COUPLING).add_(_WHOLE_INERTIA)
        d2 = cosine.mul_(_COUPLING).add_(_OUTER_INERTIA)
        phi2 = (angle + joint_angle).sin_().mul_(_OUTER_WEIGHT)
        swing = joint_speed.add(speed, alpha=2).mul_(joint_speed).mul_(sine)
        phi1 = angle.sin().mul_(_INNER_WEIGHT).add_(phi2).sub_(swing, alpha=_COUPLING)
        ratio = d2 / d1
        push = torch.addcmul(torque, ratio, phi1).sub_(phi2)
        if self._book:
            push.addcmul_(speed.square(), sine, value=-_COUPLING)
        derivative = torch.empty_like(physics)
        derivative[:2] = physics[2:]
        joint_acceleration = torch.div(
            push, ratio.mul_(d2).neg_().add_(_OUTER_INERTIA), out=derivative[3]
        )
        torch.div(d2.mul_(joint_acceleration).add_(phi1).neg_(), d1, out=derivative[2])
        return derivative

    def observe(self, state: State, out: Tensor) -> None:
        """cos θ1, sin θ1, cos θ2, sin θ2 and both velocities, in float32."""
        angles, velocities = state["physics"].view(2, 2, -1).unbind()
        out[:, 0:4:2].copy_(angles.cos().t())
        out[:, 1:4:2].copy_(angles.sin().t())
        out[:, 4:].copy_(velocities.t())


_MIN_POSITION = -1.2
_MAX_POSITION = 0.6
_CAR_MAX_SPEED = 0.07  # a step
_CAR_FORCE = 0.001
_POWER = 0.0015  # of the continuous engine
_CAR_GRAVITY = 0.0025
_GOAL = 0.5
_CONTINUOUS_GOAL = 0.45
_START = (-0.6, -0.4)


class MountainCar(TorchEnvironment):
    """Drive a car out of a valley with an engine too weak for the slope: push left (0), not at all
    (1) or right (2).

    State "physics" float64 [2, N] and observation float32 [N, 2]: position in -1.2 … 0.6 and
    velocity in ±0.07. Reward -1 a step, until the car stands at 0.5 or beyond with a velocity of at
    least `goal_velocity`."""

    graph_safe = True
    can_diverge = False

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = MOUNTAIN_CAR.max_episode_steps,
        goal_velocity: float = 0.0,
    ) -> None:
        super().__init__(num_envs, device, *spaces_of(MOUNTAIN_CAR), max_episode_steps)
        self._goal_velocity = goal_velocity
        self._coast = torch.tensor(-_CAR_FORCE, dtype=torch.float64, device=self.device)
        self._minus_one = torch.full((num_envs,), -1.0, device=self.device)

    def initial_state(self, key: Tensor) -> State:
        """Standing still, at a position uniform in -0.6 … -0.4."""
        return {"physics": _start(key, torch.float64)}

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """v += (action - 1) F - g cos 3x; x += v, both limited; the wall on the left takes all
        speed."""
        position = state["physics"][0]
        slope = position.mul(3).cos_()
        push = torch.add(self._coast, action, alpha=_CAR_FORCE).sub_(slope, alpha=_CAR_GRAVITY)
        terminated = _drive(state["physics"], push, _GOAL, self._goal_velocity)
        return state, self._minus_one, terminated

    def observe(self, state: State, out: Tensor) -> None:
        """The state itself, in float32."""
        out.copy_(state["physics"].t())


class MountainCarContinuous(TorchEnvironment):
    """The same valley with a stronger engine that burns fuel; action [N, 1]: the push, in ±1.

    State "physics" float32 [2, N] and observation float32 [N, 2]: position in -1.2 … 0.6 and
    velocity in ±0.07. Reward -0.1 action² a step, and 100 for standing at 0.45 or beyond with a
    velocity of at least `goal_velocity`, which ends the episode. An action outside ±1 is clipped,
    and costs what the clipped one does; Gymnasium clips it too, but charges for the one that it was
    given."""

    graph_safe = True

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = MOUNTAIN_CAR_CONTINUOUS.max_episode_steps,
        goal_velocity: float = 0.0,
    ) -> None:
        super().__init__(num_envs, device, *spaces_of(MOUNTAIN_CAR_CONTINUOUS), max_episode_steps)
        self._goal_velocity = goal_velocity

    def initial_state(self, key: Tensor) -> State:
        """Standing still, at a position uniform in -0.6 … -0.4."""
        return {"physics": _start(key, torch.float32)}

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """v += power action - g cos 3x; x += v, both limited; the wall on the left takes all
        speed."""
        force = action[:, 0].clamp(-1.0, 1.0)
        # The cosine alone is float64 there.
        slope = state["physics"][0].mul(3).double().cos_().mul_(_CAR_GRAVITY).float()
        terminated = _drive(
            state["physics"], force.mul(_POWER).sub_(slope), _CONTINUOUS_GOAL, self._goal_velocity
        )
        reward = force.square_().mul_(-0.1).add_(terminated, alpha=100.0)
        return state, reward, terminated

    def observe(self, state: State, out: Tensor) -> None:
        """The state itself."""
        out.copy_(state["physics"].t())


def _start(key: Tensor, dtype: torch.dtype) -> Tensor:
    """Positions and velocities [2, K] of cars that begin."""
    physics = torch.zeros(2, key.shape[0], dtype=dtype, device=key.device)
    low, high = _START
    physics[0] = uniform(key, 0).to(dtype).mul_(high - low).add_(low)
    return physics


def _drive(physics: Tensor, push: Tensor, goal: float, goal_velocity: float) -> Tensor:
    """Add `push` [N] to the velocities in `physics` [2, N], and move; returns which cars have
    arrived, bool [N]."""
    position, velocity = physics.unbind()
    velocity.add_(push).clamp_(-_CAR_MAX_SPEED, _CAR_MAX_SPEED)
    position.add_(velocity).clamp_(_MIN_POSITION, _MAX_POSITION)
    velocity.masked_fill_((position == _MIN_POSITION).logical_and_(velocity < 0), 0)
    return (position >= goal).logical_and_(velocity >= goal_velocity)

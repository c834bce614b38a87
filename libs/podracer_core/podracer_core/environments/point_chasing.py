"""PointChasing-v0 and PointChasingDiscrete-v0, batched in torch: a point chases another one that
drifts away.

The task is that of ElegantRL's `PointChasingEnv` (AI4Finance-Foundation/ElegantRL, elegantrl/envs),
with its numbers, in any number of dimensions. Both points begin at rest, the target near the origin
and the chaser near (-8, …, -8). In every step, with the action a,

    chaser    v <- 0.75 v + a / max(|a|, 1),                x <- x + 0.01 v
    target    v <- 0.5 v + u, u uniform in [0, 1),          x <- x + 0.01 v
    reward    distance before - distance after - 0.02 max(|a|, 1)

and the episode ends when the distance is less than the number of dimensions, or after 1,024 steps.
Differences:

- Being caught terminates, the time limit truncates; there, both are one "done".
- Continuous actions are clipped to ±1 in each dimension before anything else; there they come from
  a tanh.
- The first reward of every episode is measured from that episode's own first distance; ElegantRL's
  vectorized version keeps the distance of the episode before.
- The random numbers are our own (keyed by seed and episode), of the same distributions.

In d dimensions the target flees at about 0.01 √d a step and the chaser makes 0.04 at most. Heading
straight for the target catches it in about 235 steps in one dimension, 370 in two, 740 in five and
mostly in time in six; in more, the time limit comes first. From about 66 on they begin close
enough."""

from __future__ import annotations

import gymnasium
import numpy as np
import torch
from torch import Tensor

from podracer_core.environments.torch_environment import State, TorchEnvironment
from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import derive_key, normal, uniform

_CHASER_START = -8.0  # in each dimension
_CHASER_DAMPING = 0.75  # of the velocity, a step
_TARGET_DAMPING = 0.5
_TIME_STEP = 0.01
_ACTION_COST = 0.02
_MOST = 1024  # dimensions
_MAX_JOINT_DIMENSIONS = 12  # 3^12 is half a million actions


class _Chase:
    """Both points in d `dimensions`: what the two environments share."""

    def __init__(self, dimensions: int, device: torch.device | str) -> None:
        if (
            isinstance(dimensions, bool)
            or not isinstance(dimensions, int)
            or not 1 <= dimensions <= _MOST
        ):
            raise InvalidInput(
                f"dimensions must be a whole number from 1 to {_MOST}, not {dimensions!r}"
            )
        self._dimensions = dimensions
        self._counters = torch.arange(2 * dimensions, device=device)[:, None]
        self.observation_space = gymnasium.spaces.Box(
            -np.inf, np.inf, (4 * dimensions,), np.float32
        )

    def start(self, key: Tensor) -> State:
        physics = torch.zeros(
            4, self._dimensions, key.shape[0], dtype=torch.float64, device=key.device
        )
        physics[0::2] = normal(key, self._counters).view(2, self._dimensions, -1)
        physics[2] += _CHASER_START
        return {
            "physics": physics,
            "target_key": derive_key(key, 1),
            "target_count": torch.zeros_like(key),
        }

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """`TorchEnvironment.dynamics`; `action` float64 [d, N] is scratch."""
        physics = state["physics"]
        target, target_velocity, chaser, chaser_velocity = physics.unbind()
        before = _length(target - chaser)
        effort = _length(action).clamp_(min=1.0)
        chaser_velocity.mul_(_CHASER_DAMPING).add_(action.div_(effort))
        drift = uniform(
            state["target_key"], state["target_count"] + self._counters[: self._dimensions]
        )
        state["target_count"] += self._dimensions
        target_velocity.mul_(_TARGET_DAMPING).add_(drift)
        positions, velocities = physics[0::2], physics[1::2]
        positions.add_(velocities, alpha=_TIME_STEP)
        after = _length(target - chaser)
        reward = before.sub_(after).sub_(effort, alpha=_ACTION_COST)
        return state, reward, after < self._dimensions

    def observe(self, state: State, out: Tensor) -> None:
        out.copy_(state["physics"].flatten(0, 1).t())


def _length(vectors: Tensor) -> Tensor:
    """The lengths [N] of `vectors` [d, N]."""
    return vectors.square().sum(0).sqrt_()


class PointChasing(TorchEnvironment):
    """Catch the target by accelerating: action [N, d] in ±1; one that is longer than 1 is shortened
    to that, and costs its own length.

    State: "physics" float64 [4, d, N], position and velocity of the target, then those of the
    chaser; "target_key" and "target_count" int64 [N], where the target's random walk stands.
    Observation float32 [N, 4 d]: the physics."""

    graph_safe = True

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = 1024,
        dimensions: int = 2,
    ) -> None:
        self._chase = _Chase(dimensions, device)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (dimensions,), np.float32)
        super().__init__(
            num_envs, device, self._chase.observation_space, action_space, max_episode_steps
        )

    def initial_state(self, key: Tensor) -> State:
        """Both at rest, every coordinate normal with variance 1 around 0 (target) and -8
        (chaser)."""
        return self._chase.start(key)

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """See the head of this file."""
        return self._chase.advance(state, action.clamp(-1.0, 1.0).t().double().contiguous())

    def observe(self, state: State, out: Tensor) -> None:
        """The physics in float32."""
        self._chase.observe(state, out)


class PointChasingDiscrete(TorchEnvironment):
    """The same chase with an acceleration of -1, 0 or 1 in each dimension.

    One action stands for the whole vector: Discrete(3^d), digit j of the number in base 3 less 1 is
    component j, the lowest digit first, as in ElegantRL and so that the algorithms for Discrete
    actions can play. That ends at twelve dimensions; with `factored` the actions are MultiDiscrete,
    d choices out of three ([N, d]), for any d.

    State and observation are those of `PointChasing`.
    """

    graph_safe = True

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = 1024,
        dimensions: int = 2,
        factored: bool = False,
    ) -> None:
        self._chase = _Chase(dimensions, device)
        if not factored and dimensions > _MAX_JOINT_DIMENSIONS:
            raise InvalidInput(
                f"{dimensions} dimensions would make 3^{dimensions} actions; "
                f"give factored: true, or {_MAX_JOINT_DIMENSIONS} dimensions at most",
                dimensions=dimensions,
            )
        super().__init__(
            num_envs,
            device,
            observation_space=self._chase.observation_space,
            action_space=(
                gymnasium.spaces.MultiDiscrete([3] * dimensions)
                if factored
                else gymnasium.spaces.Discrete(3**dimensions)
            ),
            max_episode_steps=max_episode_steps,
        )
        self._factored = factored
        places = [1] if factored else [3**place for place in range(dimensions)]
        self._places = torch.tensor(places, device=self.device)[:, None]

    def initial_state(self, key: Tensor) -> State:
        """See `PointChasing`."""
        return self._chase.start(key)

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """See the head of this file."""
        choice = (
            action.t()
            if self._factored
            else action.div(self._places, rounding_mode="floor").remainder_(3)
        )
        return self._chase.advance(state, choice.sub(1).double().contiguous())

    def observe(self, state: State, out: Tensor) -> None:
        """See `PointChasing`."""
        self._chase.observe(state, out)

"""The one protocol of every environment here: N environments stepped as one, in tensors on one device.

N = M * E: environment e of cohort member m has the index m * E + e.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import gymnasium
import torch
from torch import Tensor

from podracer_core.environments.spaces import action_mask_size
from podracer_core.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class EpisodeStatistic:
    """`value` is what policies are ranked by, `lower_bound` to `upper_bound` its 95 % interval; `statistics` are
    further ones by name. All are finite."""

    value: float
    lower_bound: float
    upper_bound: float
    statistics: Mapping[str, float] = field(default_factory=dict)


_MOST_STEPS = (1 << 63) - 1  # of an episode: int64


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of N environments gave. Every tensor lies on the environment's device.

    observation         [N, *obs]  what to act on next; of a new episode where the old one ended with this step
    reward              [N]        float32
    terminated          [N]        bool, the task itself ended: the value of what follows is zero
    truncated           [N]        bool, cut off from outside (a time limit, a dead process): bootstrap from
                                   `final_observation`. Both can be true at once; neither implies the other
    final_observation   [N, *obs]  always filled: the true next observation, before any reset. A target is
                                   reward + gamma * (1 - terminated) * V(final_observation), everywhere
    action_mask         [N, n] bool, the allowed actions in `observation` (n of Discrete, or the sum of nvec of
                        MultiDiscrete, part after part), or None where the environment has no masks: all are
    valid               [N]        bool, false where the world broke (a dead process, NaN); such rows leave every loss.
                                   They count as truncated, with reward 0
    """

    observation: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_observation: Tensor
    action_mask: Tensor | None
    valid: Tensor


class VecEnvironment(ABC):
    """N environments with same-step autoreset: the step that ends an episode returns the next one's first observation.

    `observation_space` and `action_space` are those of a single environment. Actions: Discrete int64 [N] in 0 … n-1
    (the environment adds `start`), MultiDiscrete and MultiBinary int64 [N, k], Box float32 [N, *shape], which the
    environment clips to its bounds. Every `step` begins with `check_action`. It looks at the shape and the type only:
    a number outside 0 … n-1 is the caller's mistake, and its effect is undefined. Tensors that `reset` and `step`
    return are valid until the next step; to keep them, pass `out` or copy them.
    """

    num_envs: int
    device: torch.device
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    max_episode_steps: int | None
    # True where all episodes of an environment made for evaluation are alike, as in a back-test. The class says so, and
    # its constructor takes `evaluation: bool`.
    deterministic_evaluation: bool = False
    # What it did to the user's data before anything was stepped, for people: shown once when a job is inspected.
    preparation: str = ""
    # Whether a CUDA graph can take steps in: see `cuda_graphs.Graphed`. Every class says so for itself.
    graph_safe: ClassVar[bool] = False
    # Whether `load_state` goes on within episodes; else it can only begin the next ones.
    resumes_episodes: bool = True
    has_action_mask: bool = False  # true where every step has an `action_mask`; it never changes

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.graph_safe = vars(cls).get("graph_safe", False)

    @property
    def action_mask(self) -> Tensor | None:
        """The allowed actions in the present observation, [N, n] bool; None where all are.

        The present one is what `reset`, `load_state` or `step` gave last, wherever the step was written to. The tensor
        lives until the next of these.
        """
        return None

    @abstractmethod
    def reset(self, seeds: Tensor) -> Tensor:
        """Start episode 0 everywhere and return the observation [N, *obs].

        seeds int64 [N], one key an environment. Episode k of environment i draws its random numbers from
        (seeds[i], k) alone: neither the number of environments nor their order changes it.
        """

    def set_ages(self, ages: Tensor) -> bool:
        """Let the present episode of each environment count as `ages` steps old, int64 [N], so that its time limit cuts
        it off that much sooner. Only training asks for it, right after `reset`; later episodes have their whole length.

        Returns False where that is not possible: by default, and where the time limit is inside of a user's code.
        """
        return False

    def play_once(self) -> bool:
        """Let each environment stand still from the end of its present episode until the next `reset`. It shows the
        observation that it acted on last, reward 0 and no other end. Only evaluation asks for it, right after `reset`.

        Returns False where that is not possible, as by default: every environment goes on with its next episode.
        """
        return False

    @abstractmethod
    def step(self, action: Tensor, out: Step | None = None) -> Step:
        """Act once in every environment; writes into `out` (contiguous tensors, as `allocate_step` makes) if given."""

    def check_action(self, action: Tensor) -> None:
        """InvalidInput unless `action` has the shape and the type of a batch of actions; waits for no device."""
        shape, dtype = self._action_form
        if action.shape != shape or action.dtype != dtype:
            right = f"{dtype} {list(shape)}"
            raise InvalidInput(
                f"actions for {self.num_envs} × {self.action_space} must be {right}, "
                f"not {action.dtype} {list(action.shape)}"
            )

    @cached_property
    def _action_form(self) -> tuple[torch.Size, torch.dtype]:
        is_box = isinstance(self.action_space, gymnasium.spaces.Box)
        shape = torch.Size((self.num_envs, *(self.action_space.shape or ())))
        return shape, torch.float32 if is_box else torch.int64

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """A copy of all that the future depends on; the first axis of every tensor is N, so a member is a slice."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Tensor]) -> Tensor:
        """Go back to what `state` returned, and return the current observation [N, *obs]."""

    def episode_statistic(self, rewards: Tensor) -> EpisodeStatistic | None:
        """What policies are ranked by instead of the mean return, where `deterministic_evaluation` is true.

        rewards float64 [T] on the CPU, those of the one episode that an evaluation plays, from its start. None: their
        sum is certain, and its interval has no width. Environments that are loaded in processes of their own are not
        asked.
        """
        return None

    def close(self) -> None:  # noqa: B027 - most environments have nothing to give back
        """Give back processes and memory. Closing twice is harmless."""


def allocate_step(environment: VecEnvironment) -> Step:
    """An empty Step of the right shapes, to pass as `out`. `valid` and `action_mask` start true."""
    count, device = environment.num_envs, environment.device
    space = environment.observation_space
    if space.shape is None or space.dtype is None:
        raise InvalidInput(f"a VecEnvironment's observations must be arrays, not {space}")
    dtype = getattr(torch, space.dtype.name)

    def flags(value: bool) -> Tensor:
        return torch.full((count,), value, dtype=torch.bool, device=device)

    action_mask = None
    if environment.has_action_mask:
        action_mask = torch.ones(count, action_mask_size(environment.action_space), dtype=torch.bool, device=device)
    return Step(
        observation=torch.zeros(count, *space.shape, dtype=dtype, device=device),
        reward=torch.zeros(count, device=device),
        terminated=flags(False),
        truncated=flags(False),
        final_observation=torch.zeros(count, *space.shape, dtype=dtype, device=device),
        action_mask=action_mask,
        valid=flags(True),
    )


def check_time_limit(max_episode_steps: int | None) -> None:
    """InvalidInput unless it is None (no limit) or a number of steps, 1 at least, that a counter can reach."""
    if max_episode_steps is not None and not 1 <= max_episode_steps <= _MOST_STEPS:
        bound = "at least 1" if max_episode_steps < 1 else f"at most {_MOST_STEPS}"
        message = f"max_episode_steps must be {bound}, not {max_episode_steps}"
        raise InvalidInput(message, field="environment.max_episode_steps")

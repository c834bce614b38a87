"""The protocol of all environments: N environments stepped as one, in tensors on one device.

N = M * E: environment e of cohort member m has the index m * E + e.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import gymnasium
import torch
from torch import Tensor

from podracer_core.catalogue import Space
from podracer_core.environments.spaces import action_mask_size
from podracer_core.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class EpisodeStatistic:
    """Policies are ranked by `value`; `lower_bound` to `upper_bound` is its 95 % interval.
    `statistics` are further ones by name. All are finite."""

    value: float
    lower_bound: float
    upper_bound: float
    statistics: Mapping[str, float] = field(default_factory=dict)


_MOST_STEPS = (1 << 63) - 1  # of an episode: int64


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one step of N environments. Every tensor is on the environment's device.

    observation         [N, *obs]  to act on next; after the end of an episode the first one of the
                                   next episode
    reward              [N]        float32
    terminated          [N]        bool, the task itself ended: the value of what follows is zero
    truncated           [N]        bool, cut off from outside (a time limit, a dead process):
                                   bootstrap from `final_observation`. Both can be true at once;
                                   neither implies the other
    final_observation   [N, *obs]  always filled: the true next observation, before any reset. A
                                   target is reward + gamma * (1 - terminated) *
                                   V(final_observation), everywhere
    action_mask         [N, n] bool, the allowed actions in `observation` (n of Discrete, or the sum
                        of nvec of MultiDiscrete, part after part), or None where the environment
                        has no masks: all are
    valid               [N]        bool, false where the world broke (a dead process, NaN); such
                                   rows leave every loss. They count as truncated, with reward 0
    """

    observation: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_observation: Tensor
    action_mask: Tensor | None
    valid: Tensor


def step_over(arrays: Any) -> Step:
    """A step whose tensors share memory with the `arrays` of these names; a mask without columns is
    none."""
    tensors: dict[str, Any] = {
        name: torch.from_numpy(getattr(arrays, name)) for name in Step.__slots__
    }
    if not tensors["action_mask"].shape[1]:
        tensors["action_mask"] = None
    return Step(**tensors)


@dataclass(frozen=True, slots=True)
class Break:
    """What ended an episode that therefore has no return.

    row        the environment's index
    numbers    whether a number was not finite; else the code raised or its process died
    text       "step 13: the reward was nan", "reset: KeyError: 'price'"
    traceback  the user's own; empty where there is none
    """

    row: int
    numbers: bool
    text: str
    traceback: str = ""


class VecEnvironment(ABC):
    """N environments with same-step autoreset: the step that ends an episode returns the next one's
    first observation.

    `observation_space` and `action_space` are those of a single environment. Actions: Discrete
    int64 [N] in 0 … n-1 (the environment adds `start`), MultiDiscrete and MultiBinary int64 [N, k],
    Box float32 [N, *shape], which the environment clips to its bounds. Every `step` begins with
    `check_action`. It looks at the shape and the type only: a number outside 0 … n-1 is the
    caller's mistake, and its effect is undefined. Tensors that `reset` and `step` return are valid
    until the next step; to keep them, pass `out` or copy them."""

    num_envs: int
    device: torch.device
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    # What a user's environment observes, if the batch flattens it; see `catalogue.observations`.
    original_space: Space | None = None
    max_episode_steps: int | None
    # Steps after which evaluation cuts an episode where there is no time limit; None: the default.
    evaluation_steps: int | None = None
    # True where all episodes of an environment made for evaluation are alike, as in a back-test.
    # The class says so, and its constructor takes `evaluation: bool`.
    deterministic_evaluation: bool = False
    # A text on how it has prepared the user's data; shown once when a job is inspected.
    preparation: str = ""
    # Whether its steps can be captured in a CUDA graph: see `device.Graphed`. Not inherited.
    graph_safe: ClassVar[bool] = False
    # Whether `load_state` resumes within episodes; else it only begins the next ones.
    resumes_episodes: bool = True

    # How many environments an evaluation should play in at a time, where each is expensive; see
    # `resize`.
    most_at_once: int | None = None
    has_action_mask: bool = False  # true where every step has an `action_mask`; it never changes

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.graph_safe = vars(cls).get("graph_safe", False)

    @property
    def action_mask(self) -> Tensor | None:
        """The allowed actions in the current observation, [N, n] bool; None if all are.

        The current one is the last that `reset`, `load_state` or `step` returned. The tensor is
        valid until the next of these calls."""
        return None

    @abstractmethod
    def reset(self, seeds: Tensor) -> Tensor:
        """Start episode 0 everywhere and return the observation [N, *obs].

        seeds int64 [N], one key an environment. Episode k of environment i draws its random numbers
        from (seeds[i], k) alone: neither the number of environments nor their order changes it."""

    def set_ages(self, ages: Tensor) -> bool:
        """Let the current episode of each environment count as `ages` steps old, int64 [N], so that
        its time limit ends it that much sooner. Only training calls it, right after `reset`; later
        episodes have their full length.

        Returns False if not supported: by default, and if the time limit is inside a user's code.
        """
        return False

    def compile(self) -> None:  # noqa: B027 - optional
        """Let steps be as few kernels as possible from now on, on a device that has them. Only
        training calls it."""

    def play_once(self) -> bool:
        """Let each environment stand still from the end of its current episode until the next
        `reset`. It returns its last observation, reward 0 and no further end. Only evaluation calls
        it, right after `reset`.

        Returns False if not supported, as by default: every environment continues with its next
        episode."""
        return False

    @abstractmethod
    def step(self, action: Tensor, out: Step | None = None) -> Step:
        """Act once in every environment; writes into `out` (contiguous tensors, as `allocate_step`
        makes) if given."""

    def check_action(self, action: Tensor) -> None:
        """Raises InvalidInput unless `action` has the shape and dtype of a batch of actions; does
        not synchronize."""
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
        """A copy of the complete state; the first axis of every tensor is N, so a member is a
        slice."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Tensor]) -> Tensor:
        """Restore a `state` and return the current observation [N, *obs]."""

    def episode_statistic(self, rewards: Tensor) -> EpisodeStatistic | None:
        """The statistic that ranks policies instead of the mean return, if
        `deterministic_evaluation` is true.

        rewards float64 [T] on the CPU, of the one episode that an evaluation plays, from its start.
        None: the return ranks, with an interval of no width. Not called for environments in
        processes of their own."""
        return None

    def take_breaks(self) -> list[Break]:
        """What has broken since the last call, as far as the environment can tell; `valid` of the
        steps tells where."""
        return []

    def resize(self, num_envs: int) -> bool:
        """Have `num_envs` environments from the next `reset` on, if possible without another start
        of those that are there; returns whether it is. Only where `most_at_once` is not None."""
        return False

    def close(self) -> None:  # noqa: B027 - optional
        """Release processes and memory. Closing twice is harmless."""


def allocate_step(environment: VecEnvironment) -> Step:
    """An empty Step to pass as `out`. `valid` and `action_mask` start true."""
    count, device = environment.num_envs, environment.device
    space = environment.observation_space
    if space.shape is None or space.dtype is None:
        raise InvalidInput(f"a VecEnvironment's observations must be arrays, not {space}")
    dtype = getattr(torch, space.dtype.name)

    def flags(value: bool) -> Tensor:
        return torch.full((count,), value, dtype=torch.bool, device=device)

    action_mask = None
    if environment.has_action_mask:
        action_mask = torch.ones(
            count, action_mask_size(environment.action_space), dtype=torch.bool, device=device
        )
    return Step(
        observation=torch.zeros(count, *space.shape, dtype=dtype, device=device),
        reward=torch.zeros(count, device=device),
        terminated=flags(False),
        truncated=flags(False),
        final_observation=torch.zeros(count, *space.shape, dtype=dtype, device=device),
        action_mask=action_mask,
        valid=flags(True),
    )


def set_aside_broken_worlds(step: Step) -> None:
    """Have a world with NaN or infinity count as truncated and invalid, with zeros as reward and
    final observation."""
    final, reward = step.final_observation, step.reward
    if reward.device.type == "cpu" and math.isfinite(float(final.sum() + reward.sum())):
        return
    finite = (final.flatten(1).sum(1) + reward).isfinite()
    broken = finite.logical_not()
    step.valid.copy_(finite)
    step.terminated.logical_and_(finite)
    step.truncated.logical_or_(broken)
    reward.masked_fill_(broken, 0)
    final.masked_fill_(broken.view(-1, *[1] * (final.dim() - 1)), 0)


def check_seeds(seeds: Tensor, num_envs: int) -> None:
    """Raises InvalidInput unless there is a seed for each environment."""
    if seeds.shape != (num_envs,):
        raise InvalidInput(f"seeds must have the shape [{num_envs}], not {list(seeds.shape)}")


def check_state(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raises InvalidInput unless `state` has every tensor of `expected`, in its form."""
    for name, value in expected.items():
        if (
            name not in state
            or state[name].shape != value.shape
            or state[name].dtype != value.dtype
        ):
            found = f"{state[name].dtype} {list(state[name].shape)}" if name in state else "nothing"
            raise InvalidInput(
                f"state[{name!r}] must be {value.dtype} {list(value.shape)}, not {found}"
            )


def count_step(elapsed: Tensor, max_episode_steps: int | None, out: Step) -> None:
    """Count a step in `elapsed` [N], and write whether it has reached the time limit into
    `out.truncated`."""
    elapsed += 1
    if max_episode_steps is None:
        out.truncated.zero_()
    else:
        torch.ge(elapsed, max_episode_steps, out=out.truncated)


def check_time_limit(max_episode_steps: int | None) -> None:
    """Raises InvalidInput unless it is None (no limit) or a number of steps from 1 to what a
    counter can reach."""
    if max_episode_steps is not None and not 1 <= max_episode_steps <= _MOST_STEPS:
        bound = "at least 1" if max_episode_steps < 1 else f"at most {_MOST_STEPS}"
        message = f"max_episode_steps must be {bound}, not {max_episode_steps}"
        raise InvalidInput(message, field="environment.max_episode_steps")

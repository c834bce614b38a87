"""Checks that a user's batched environment follows the interface `VecEnvironment`, with a clear
error if it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from podracer_core.environments.processes.row_codec import check_in_space
from podracer_core.environments.spaces import check_mask, sample_allowed
from podracer_core.environments.torch_environment import TorchEnvironment
from podracer_core.environments.vec_environment import Step, VecEnvironment
from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import derive_key

_ATTRIBUTES = ("num_envs", "device", "observation_space", "action_space", "max_episode_steps")


def check_attributes(environment: VecEnvironment, count: int) -> None:
    """Raises InvalidInput unless its attributes exist and are right for `count` environments."""
    name = type(environment).__name__
    for attribute in _ATTRIBUTES:
        if not hasattr(environment, attribute):
            raise InvalidInput(
                f"{name} has no {attribute}; does its constructor call super().__init__?"
            )
    if environment.num_envs != count:
        raise InvalidInput(
            f"{name} was asked for {count} environments and has num_envs = {environment.num_envs}"
        )
    for attribute in ("observation_space", "action_space"):
        if not isinstance(getattr(environment, attribute), gymnasium.Space):
            raise InvalidInput(f"{attribute} of {name} must be a gymnasium.Space")
    if not isinstance(environment.observation_space, gymnasium.spaces.Box):
        space = environment.observation_space
        raise InvalidInput(
            f"the observations of {name} are one tensor, so their space must be a Box, not {space}"
        )
    if not environment.observation_space.shape or not environment.observation_space.low.size:
        raise InvalidInput(
            f"the observations of {name} must have a number: a Box of the shape (1,), for example"
        )
    if environment.observation_space.dtype not in (np.float32, np.uint8):
        dtype = environment.observation_space.dtype
        raise InvalidInput(f"the observations of {name} must be float32 or uint8, not {dtype}")


def inspect_batched(
    environment: VecEnvironment, steps: int, announce: Callable[[str], None]
) -> None:
    """Check everything; raises InvalidInput for the first fault. `announce` is called with the name
    of each check."""
    environment.action_space.seed(0)
    keys = torch.arange(environment.num_envs)
    if isinstance(environment, TorchEnvironment):
        _inspect_functions(environment, derive_key(keys), announce)
    announce("reset")
    observation = environment.reset(keys)
    _check_observation(environment, observation, "the observation of reset")
    first = observation.clone()
    for _ in range(steps):
        announce("action_mask")
        action = _random_action(environment)
        announce("step")
        _check_step(environment, environment.step(action))
    announce("state")
    saved = environment.state()
    for name, value in saved.items():
        _check_tensor(
            value, (environment.num_envs, *value.shape[1:]), value.dtype, f"state()[{name!r}]"
        )
    announce("reset")
    again = environment.reset(keys)
    if not torch.equal(again, first):
        raise InvalidInput(
            "reset gave other observations for the same seeds: draw random numbers from the keys, "
            "with podracer_core.random_numbers"
        )
    announce("load_state")
    _check_observation(environment, environment.load_state(saved), "the observation of load_state")


def _inspect_functions(
    environment: TorchEnvironment, keys: Tensor, announce: Callable[[str], None]
) -> None:
    """Check the user's functions one by one, so that the message names the faulty one."""
    count = keys.numel()
    announce("initial_state")
    state = environment.initial_state(keys)
    _check_state(state, count, "initial_state")
    fewer = environment.initial_state(keys[1:])
    _check_state(fewer, count - 1, "initial_state")
    for name, value in state.items():
        if not torch.equal(value[..., 1:], fewer[name]):
            raise InvalidInput(
                f"initial_state gave another {name!r} for the same keys: draw random numbers from "
                "the keys, with podracer_core.random_numbers, one stream an episode"
            )
    announce("observe")
    space = environment.observation_space
    out = torch.zeros(count, *(space.shape or ()), dtype=getattr(torch, np.dtype(space.dtype).name))
    if out.is_floating_point():
        out.fill_(torch.nan)
    environment.observe(state, out)
    _check_observation(environment, out, "the observation")
    announce("dynamics")
    action = _sampled(environment, [None] * count)
    result = environment.dynamics({name: value.clone() for name, value in state.items()}, action)
    if not (isinstance(result, tuple) and len(result) == 3):
        raise InvalidInput(
            f"dynamics must return (state, reward, terminated), not a {type(result).__name__}"
        )
    after, reward, terminated = result
    _check_state(after, count, "dynamics")
    for name, value in state.items():
        if (
            name not in after
            or after[name].shape != value.shape
            or after[name].dtype != value.dtype
        ):
            found = f"{after[name].dtype} {list(after[name].shape)}" if name in after else "nothing"
            raise InvalidInput(
                f"dynamics returned {found} as {name!r} of the state, "
                f"which initial_state gave as {value.dtype} {list(value.shape)}"
            )
    _check_tensor(
        reward,
        (count,),
        reward.dtype if isinstance(reward, Tensor) else torch.float32,
        "the reward",
    )
    _check_tensor(terminated, (count,), torch.bool, "terminated")


def _check_state(state: Any, count: int, what: str) -> None:
    if not isinstance(state, dict) or not state:
        raise InvalidInput(
            f"{what} must give the state as a dict of tensors, not as {state!r:.100}"
        )
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.shape[-1:] != (count,):
            found = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InvalidInput(
                f"{what} gave {name!r} as {found}; the last axis of every tensor of a state is the "
                f"environment's: […, {count}] for {count} environments"
            )


def _check_step(environment: VecEnvironment, step: Any) -> None:
    if not isinstance(step, Step):
        raise InvalidInput(f"step must return a Step, not a {type(step).__name__}")
    count = (environment.num_envs,)
    for name in ("terminated", "truncated", "valid"):
        _check_tensor(getattr(step, name), count, torch.bool, f"{name} of step")
    if not step.valid.all():
        world = int(step.valid.long().argmin())
        raise InvalidInput(
            f"step broke world {world} of {environment.num_envs}: NaN or infinity, or valid is "
            "false"
        )
    _check_tensor(step.reward, count, torch.float32, "the reward of step")
    if not step.reward.isfinite().all():
        raise InvalidInput(f"the reward of step must be finite, not {step.reward.tolist()}")
    _check_observation(environment, step.observation, "the observation of step")
    _check_observation(environment, step.final_observation, "the final observation of step")
    going_on = ~(step.terminated | step.truncated)
    if not torch.equal(step.observation[going_on], step.final_observation[going_on]):
        raise InvalidInput(
            "where no episode ends, observation and final_observation of step must be equal"
        )


def _check_observation(environment: VecEnvironment, observation: Any, what: str) -> None:
    space = environment.observation_space
    dtype = getattr(torch, np.dtype(space.dtype).name)
    _check_tensor(observation, (environment.num_envs, *(space.shape or ())), dtype, what)
    for row in observation:
        check_in_space(space, row.numpy(), what)


def _check_tensor(value: Any, shape: tuple[int, ...], dtype: torch.dtype, what: str) -> None:
    if not isinstance(value, Tensor):
        raise InvalidInput(f"{what} must be a tensor, not a {type(value).__name__}")
    if value.shape != shape or value.dtype != dtype:
        found = f"{value.dtype} {list(value.shape)}"
        raise InvalidInput(f"{what} must be {dtype} {list(shape)}, not {found}")


def _random_action(environment: VecEnvironment) -> Tensor:
    if not environment.has_action_mask:
        return _sampled(environment, [None] * environment.num_envs)
    mask = environment.action_mask
    if mask is None:
        raise InvalidInput("has_action_mask is true and action_mask is None")
    return _sampled(
        environment,
        [check_mask(environment.action_space, row.numpy(), "action_mask") for row in mask],
    )


def _sampled(environment: VecEnvironment, masks: list[Any]) -> Tensor:
    """One random action per row, in the form of a batch."""
    space = environment.action_space
    rows = np.stack([np.asarray(sample_allowed(space, mask)) for mask in masks])
    if isinstance(space, gymnasium.spaces.Box):
        return torch.from_numpy(rows.astype(np.float32))
    return torch.from_numpy(rows.astype(np.int64) - getattr(space, "start", 0))

"""A user's own `VecEnvironment` as rows of a batch: one instance, which writes directly into the
shared arrays.

It is checked first that it follows the interface, with a clear error if it does not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import gymnasium
import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from podracer_core.environments.processes.row_codec import check_in_space
from podracer_core.environments.processes.rows import (
    IN_A_ROW,
    Rows,
    describe_error,
    describe_spaces,
    episode_seed,
    name_number,
)
from podracer_core.environments.spaces import check_mask, sample_allowed
from podracer_core.environments.torch_environment import TorchEnvironment
from podracer_core.environments.vec_environment import Step, VecEnvironment, step_over
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


_INSPECTED_STEPS = 10
_INSPECTED_ROWS = 3  # more than one, so that an axis too many or too few shows


class BatchedRows(Rows):
    """The instance sees only its own rows; as random numbers depend on seeds only, that changes no
    result."""

    def __init__(
        self,
        kind: type[VecEnvironment],
        count: int,
        kwargs: Mapping[str, Any],
        max_episode_steps: int | None,
    ) -> None:
        super().__init__()
        torch.set_num_threads(1)  # several processes share the cores
        self._kind = kind
        self._arguments = dict(kwargs)
        if max_episode_steps is not None:
            self._arguments["max_episode_steps"] = max_episode_steps
        self._environment = self._make(count)
        self._out: Step | None = None
        self._action: Tensor | None = None
        self.count = count
        self._steps = 0
        self._is_ruined = False  # another instance takes its place before the next episodes
        self._began_at = np.zeros(count, np.int64)  # the present episode in each row
        self.observation_space = self._environment.observation_space
        self.action_space = self._environment.action_space

    def describe(self) -> dict[str, Any]:
        """See `Rows.describe`."""
        return {
            **describe_spaces(self.observation_space, self.action_space),
            "batched": True,
            "max_episode_steps": self._environment.max_episode_steps,
            "deterministic_evaluation": bool(self._environment.deterministic_evaluation),
            "preparation": str(self._environment.preparation),
        }

    def inspect(self) -> dict[str, Any]:
        """See `Rows.inspect`."""
        environment = self._make(_INSPECTED_ROWS)
        try:
            inspect_batched(environment, _INSPECTED_STEPS, announce=self._announce)
        finally:
            environment.close()
        return {}

    def has_action_mask(self) -> bool:
        """See `Rows.has_action_mask`."""
        return self._environment.has_action_mask

    def map(self, memory: int, num_envs: int, first: int, mask_size: int) -> None:
        """See `Rows.map`."""
        super().map(memory, num_envs, first, mask_size)
        self._out = step_over(self.arrays)
        self._action = torch.from_numpy(self.arrays.action)

    def start(self) -> None:
        """See `Rows.start`: if earlier episodes were lost, it continues with other seeds. What
        breaks is repeated with the next ones, in another instance, once it has worked; the third
        time in a row it is raised."""
        for attempt in range(1, IN_A_ROW + 1):
            try:
                self._begin()
                break
            except (Exception, SystemExit) as error:
                if not self.breaks.worked:
                    raise
                self._note(error, [0] * self.count)
                if attempt == IN_A_ROW:
                    raise

    def _begin(self) -> None:
        if self._is_ruined:
            np.add(self.arrays.episode, 1, out=self.arrays.episode)
            self._environment.close()
            self.doing = "construction"
            self._environment = self._make(self.count)
            self._is_ruined = False
        pairs = zip(self.arrays.seed.tolist(), self.arrays.episode.tolist(), strict=True)
        seeds = [episode_seed(seed, episode) if episode else seed for seed, episode in pairs]
        self.doing = "reset"
        self._show(self._environment.reset(torch.tensor(seeds, dtype=torch.int64)))
        if what := name_number(0.0, self.arrays.observation):
            raise InvalidInput(f"reset gave numbers that are not finite: {what}")
        self.breaks.begun += self.count
        self._began_at.fill(self._steps)

    def set_ages(self, ages: bytes) -> bool:
        """See `Rows.set_ages`."""
        self.doing = "set_ages"
        return bool(
            self._environment.set_ages(torch.frombuffer(bytearray(ages), dtype=torch.int64))
        )

    def play_once(self) -> bool:
        """See `Rows.play_once`."""
        self.doing = "play_once"
        return bool(self._environment.play_once())

    def step(self) -> None:
        """See `Rows.step`. What breaks the instance breaks all its rows."""
        self._steps += 1
        try:
            self._act()
        except (Exception, SystemExit) as error:
            if not self.breaks.worked:
                raise
            self._break_off(error)
        self.breaks.worked = True

    def _act(self) -> None:
        arrays, out = self.arrays, self._out
        self.doing = "step"
        if out is None or self._action is None:
            raise InvalidInput("map must come before step")
        step = self._environment.step(self._action, out)
        if step is not out:
            _copy(step, out)
        total = np.add.reduce(arrays.reward)
        if arrays.final_observation.dtype.kind == "f":
            total += np.add.reduce(arrays.final_observation, axis=None) + np.add.reduce(
                arrays.observation, axis=None
            )
        if not np.isfinite(total):
            self._refuse_broken_rows()
        ended = arrays.terminated | arrays.truncated
        np.add(arrays.episode, ended, out=arrays.episode)
        np.putmask(self._began_at, ended, self._steps)

    def _break_off(self, error: BaseException) -> None:
        """End all episodes after an exception or a result that cannot be right, and go on with the
        next ones in another instance. Raises the exception if it is not tolerated."""
        arrays = self.arrays
        self._note(error, (self._steps - self._began_at).tolist())
        arrays.final_observation.fill(0)
        arrays.break_off(slice(None))
        self.start()

    def _note(self, error: BaseException, steps: list[int]) -> None:
        """Note that the instance broke in these steps of its rows' episodes."""
        self._is_ruined = True
        is_wrong = isinstance(error, InvalidInput)
        if not is_wrong:
            self.breaks.fail(0, steps[0], int(self.arrays.seed[0]), self._steps, error)
        what = error.message if isinstance(error, InvalidInput) else describe_error(error)[0]
        for row in range(0 if is_wrong else 1, self.count):
            self.breaks.note(row, steps[row], what, numbers=is_wrong)

    def state(self) -> bytes:
        """See `Rows.state`: as safetensors."""
        self.doing = "state"
        state = self._environment.state()
        for name, value in state.items():
            if not isinstance(value, Tensor) or value.shape[:1] != (self.count,):
                found = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise InvalidInput(
                    f"state()[{name!r}] must be a tensor whose first axis is the environment's "
                    f"({self.count} here), not {found}"
                )
        return safetensors.torch.save({name: value.contiguous() for name, value in state.items()})

    def load_state(self, state: bytes) -> None:
        """See `Rows.load_state`."""
        self.doing = "load_state"
        self._show(self._environment.load_state(safetensors.torch.load(state)))

    def close(self) -> None:
        """See `Rows.close`."""
        self._environment.close()

    def _announce(self, doing: str) -> None:
        self.doing = doing

    def _make(self, count: int) -> VecEnvironment:
        try:
            inspect.signature(self._kind).bind(count, device="cpu", **self._arguments)
        except TypeError as error:
            message = (
                f"{self._kind.__name__}(num_envs, device=…) does not take these arguments: {error}"
            )
            raise InvalidInput(message, field="environment.kwargs") from error
        constructor: Any = self._kind
        environment: VecEnvironment = constructor(count, device="cpu", **self._arguments)
        check_attributes(environment, count)
        return environment

    def _show(self, observation: Tensor) -> None:
        """Write the result of a reset into the arrays."""
        shape = (self.count, *(self.observation_space.shape or ()))
        if not isinstance(observation, Tensor) or observation.shape != shape:
            found = (
                list(observation.shape)
                if isinstance(observation, Tensor)
                else type(observation).__name__
            )
            raise InvalidInput(
                f"{self.doing} must return the observations, a tensor {list(shape)}, not {found}"
            )
        torch.from_numpy(self.arrays.observation).copy_(observation)
        mask = self._environment.action_mask
        if mask is not None and self._out is not None and self._out.action_mask is not None:
            self._out.action_mask.copy_(mask)

    def _refuse_broken_rows(self) -> None:
        """Refuse rows with numbers that are not finite but valid: only the environment itself can
        restart a broken world."""
        arrays = self.arrays
        finite = np.isfinite(arrays.reward)
        for observations in (arrays.observation, arrays.final_observation):
            finite &= np.isfinite(observations.reshape(self.count, -1)).all(axis=1)
        if not finite.all():
            raise InvalidInput(
                f"step gave NaN or infinity in row {int(finite.argmin())}; a TorchEnvironment with "
                "can_diverge starts such worlds anew, any other environment has to do that itself "
                "and say valid = False"
            )


def _copy(step: Any, out: Step) -> None:
    """Copy the result of an environment that ignores `out`."""
    if not isinstance(step, Step):
        raise InvalidInput(f"step must return a Step, not {type(step).__name__}")
    for field in fields(Step):
        value, place = getattr(step, field.name), getattr(out, field.name)
        if place is None:
            continue
        if not isinstance(value, Tensor) or value.shape != place.shape:
            found = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InvalidInput(
                f"{field.name} of step must be a tensor {list(place.shape)}, not {found}"
            )
        place.copy_(value)

"""A user's own `VecEnvironment` as rows of a batch: one instance, which writes directly into the
shared arrays."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from podracer_core.environments.processes.batched_inspection import (
    check_attributes,
    inspect_batched,
)
from podracer_core.environments.processes.breaks import IN_A_ROW, describe_error, name_number
from podracer_core.environments.processes.rows import Rows, describe_spaces, episode_seed
from podracer_core.environments.vec_environment import Step, VecEnvironment, step_over
from podracer_core.errors import InvalidInput

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

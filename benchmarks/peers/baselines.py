"""Stable-Baselines3's agents, and those of SBX, which has the same interface, trained until
something says that it is enough."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

warnings.simplefilter("ignore")

from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402 - silenced first

FOREVER = 1_000_000_000  # steps


class _Over(Exception):
    pass


class _Follow(BaseCallback):
    def __init__(self, is_over: Callable[[int], bool], every: int) -> None:
        super().__init__()
        self._is_over, self._every, self._before = is_over, every, 0

    def _on_rollout_start(self) -> None:
        if not self._every:
            self._ask()

    def _on_step(self) -> bool:
        if self._every and self.n_calls % self._every == 0:
            self._ask()
        return True

    def _on_training_end(self) -> None:
        self._before += self.num_timesteps

    def _ask(self) -> None:
        if self._is_over(self._before + self.num_timesteps):
            raise _Over


def learn_until(
    model: Any, is_over: Callable[[int], bool], every: int = 0, schedule_steps: int = FOREVER
) -> None:
    """Ask with the steps taken so far, before every rollout or after `every` calls of the
    environments. Schedules end after `schedule_steps` and then begin anew."""
    follow = _Follow(is_over, every)
    with contextlib.suppress(_Over):
        while True:
            model.learn(schedule_steps, callback=follow)

"""Tells the user of a training what has broken: once for each kind, and how often at the end."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from podracer_core.environments.vec_environment import VecEnvironment
from podracer_core.errors import UserCodeFailed
from podracer_core.evaluate import EvaluationResult

_IN_VAIN = 3  # rollouts in a row


class Breakages:
    """What has broken in the training environments and in evaluations.

    warnings   what was told, after that which was told `before`
    first      the first break in training, as a sentence; empty if nothing has broken
    """

    def __init__(self, environment: VecEnvironment, told: Sequence[str] = ()) -> None:
        self._environment = environment
        self._name = getattr(environment, "name", type(environment).__name__)
        self.warnings = list(told)
        self.first = ""
        self._traceback = ""
        self._judged, self._judged_broken = 0, 0
        self._failed_starts = 0

    def warn(self, text: str) -> None:
        """Tell the user, and remember it for the result."""
        self.warnings.append(text)
        warnings.warn(text, stacklevel=5)

    def look(self) -> None:
        """Look at what has broken in training since the last call."""
        for each in self._environment.take_breaks():
            self._failed_starts += each.text.startswith("reset: ")
            self._traceback = self._traceback or each.traceback
            if not self.first:
                self._tell_first(each.text)

    def take(self, results: Sequence[EvaluationResult]) -> None:
        """Take the results of a look, or of an evaluation."""
        broken = sum(result.broken for result in results)
        if broken and not self._judged_broken:
            first = next(result.first_break for result in results if result.broken)
            self.warn(f"{self._name}: an evaluation episode broke; {first}. Broken episodes have no return")
        self._judged_broken += broken
        self._judged += broken + sum(result.episodes for result in results)

    def check(self, breaks: tuple[int, int, int]) -> None:
        """Take `TrainingSession.breaks`. Raises UserCodeFailed if training has not seen a valid step for three
        rollouts."""
        broken, _, in_vain = breaks
        if broken and not self.first:
            self._tell_first("a number was not finite")
        if in_vain >= _IN_VAIN:
            message = f"{self._name}: every step of {in_vain} rollouts broke. {self.first}"
            raise UserCodeFailed(message, user_traceback=self._traceback, environment=self._name)

    def conclude(self, breaks: tuple[int, int, int]) -> None:
        """Tell how many episodes have broken."""
        broken, ended, _ = breaks
        broken, ended = broken + self._failed_starts, ended + self._failed_starts
        parts = []
        if broken:
            parts.append(f"{broken:,} of {ended:,} training episodes")
        if self._judged_broken:
            parts.append(f"{self._judged_broken:,} of {self._judged:,} evaluation episodes")
        if parts:
            self.warn(f"{self._name}: {' and '.join(parts)} broke")

    def _tell_first(self, text: str) -> None:
        self.first = f"The first training episode that broke: {text}"
        self.warn(f"{self._name}: a training episode broke; {text}. Broken episodes are left out")

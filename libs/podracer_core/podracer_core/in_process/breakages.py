"""Tells the user of a training what has broken: once for each kind, and how often at the end."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from podracer_core.environments.vec_environment import VecEnvironment
from podracer_core.errors import UserCodeFailed
from podracer_core.training.selection import Selection
from podracer_core.training.session import TrainingSession

_IN_VAIN = 3  # rollouts in a row


class Breakages:
    """What has broken in the training environments and in evaluations.

    warnings   what was told, after that which was told `before`
    first      the first break in training, as a sentence; empty if nothing has broken
    """

    def __init__(
        self, environment: VecEnvironment, session: TrainingSession, selection: Selection, told: Sequence[str]
    ) -> None:
        self._environment, self._session, self._selection = environment, session, selection
        self._name = getattr(environment, "name", type(environment).__name__)
        self.warnings = list(told)
        self.first = self._traceback = ""
        self._has_told_evaluation = False
        self._failed_starts = 0

    def warn(self, text: str) -> None:
        """Tell the user, and remember it for the result."""
        self.warnings.append(text)
        warnings.warn(text, stacklevel=5)

    def look(self) -> None:
        """Look at what has broken since the last call."""
        for each in self._environment.take_breaks():
            self._failed_starts += each.text.startswith("reset: ")
            self._traceback = self._traceback or each.traceback
            self._tell_first(each.text)
        if (text := self._selection.first_break) and not self._has_told_evaluation:
            self._has_told_evaluation = True
            self.warn(f"{self._name}: an evaluation episode broke; {text}. Broken episodes have no return")

    def check(self) -> None:
        """Raises UserCodeFailed if training has not seen a valid step for three rollouts. Synchronizes with the
        device."""
        broken, _, in_vain = self._session.breaks()
        if broken:
            self._tell_first("a number was not finite")
        if in_vain >= _IN_VAIN:
            message = f"{self._name}: every step of {in_vain} rollouts broke. {self.first}"
            raise UserCodeFailed(message, user_traceback=self._traceback, environment=self._name)

    def conclude(self) -> None:
        """Tell how many episodes have broken."""
        broken, ended, _ = (count + self._failed_starts for count in self._session.breaks())
        counts = {"training": (broken, ended), "evaluation": (sum(self._selection.broken), sum(self._selection.played))}
        parts = [f"{bad:,} of {every:,} {kind} episodes" for kind, (bad, every) in counts.items() if bad]
        if parts:
            self.warn(f"{self._name}: {' and '.join(parts)} broke")

    def _tell_first(self, text: str) -> None:
        if not self.first:
            self.first = f"The first training episode that broke: {text}"
            self.warn(f"{self._name}: a training episode broke; {text}. Broken episodes are left out")

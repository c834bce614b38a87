"""Find the way from S to G."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left


class Maze(gymnasium.Env):
    """The observation is the cell; an episode ends at G, which gives 1. Every step costs 0.01,
    walls cannot be entered.

    plan   text file with one line a row: # wall, S start, G goal, anything else free
    """

    def __init__(self, plan: str) -> None:
        rows = Path(plan).read_text().split()
        if not rows or {len(row) for row in rows} != {len(rows[0])}:
            raise ValueError(
                f"the rows of the plan must be of one length, not {[len(row) for row in rows]}"
            )
        self.cells = np.array([list(row) for row in rows])
        if [(self.cells == letter).sum() for letter in "SG"] != [1, 1]:
            raise ValueError("the plan needs one S and one G")
        self.observation_space = gymnasium.spaces.Discrete(self.cells.size)
        self.action_space = gymnasium.spaces.Discrete(len(MOVES))
        self.position = self.start = tuple(np.argwhere(self.cells == "S")[0])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = self.start
        return self._cell(), {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        if self.action_masks()[action]:
            self.position = self._after(action)
        at_goal = self.cells[self.position] == "G"
        return self._cell(), float(at_goal) - 0.01, bool(at_goal), False, {}

    def action_masks(self) -> np.ndarray:
        """Which moves are possible here."""
        allowed = np.zeros(len(MOVES), dtype=bool)
        for action in range(len(MOVES)):
            row, column = self._after(action)
            inside = 0 <= row < self.cells.shape[0] and 0 <= column < self.cells.shape[1]
            allowed[action] = inside and self.cells[row, column] != "#"
        return allowed

    def _after(self, action: int) -> tuple[int, int]:
        return self.position[0] + MOVES[action][0], self.position[1] + MOVES[action][1]

    def _cell(self) -> int:
        return int(self.position[0] * self.cells.shape[1] + self.position[1])

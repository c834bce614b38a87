"""A greedy evaluation obeys action masks: the environment asserts that every action is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments.processes import PreprocessVecEnv
from podracer_core.evaluate import GreedyEvaluator

FOLDER = str(Path(__file__).parents[1] / "environments")
SPEC = EnvironmentSpec(entry_point="user_environments:MethodMasks", code_path=FOLDER)


class FirstAllowed:
    """Takes the first allowed action, and remembers the masks; the episodes play in `rows` of each
    member's blocks."""

    def __init__(self, members: int, rows: slice) -> None:
        self.members, self.rows = members, rows
        self.masks: list[torch.Tensor] = []

    def repeat(self, times: int) -> FirstAllowed:
        self.blocks = self.members * times
        return self

    def greedy(self, observation: torch.Tensor, action_mask: Any = None) -> torch.Tensor:
        assert action_mask.shape == (*observation.shape[:2], 3)
        assert observation.shape[0] == self.blocks
        self.masks.append(action_mask.clone())
        shown = observation.view(self.members, -1, 2)[:, self.rows]
        mask = action_mask.view(self.members, -1, 3)
        assert torch.equal(mask[:, self.rows], shown[..., 1:].long() % 3 != torch.arange(3))
        return action_mask.long().argmax(-1)


def test_masks_stand_in_the_rows_of_their_episodes():
    evaluator = GreedyEvaluator(lambda count: PreprocessVecEnv(SPEC, count, processes=1))
    actor = FirstAllowed(2, slice(3, 8))
    results = evaluator.evaluate(actor, [11, 12, 13, 14, 15], first_row=3, block_rows=4)  # type: ignore[arg-type]
    evaluator.close()
    assert results[0] == results[1], "the same episodes and the same policy"
    assert all(3 <= length <= 8 for length in results[0].lengths)
    # In step s the first allowed action is 1 (of 0 … 2) where s divides by 3, else 0; the reward is
    # one more.
    assert list(results[0].returns) == [
        sum(2 if s % 3 == 0 else 1 for s in range(n)) for n in results[0].lengths
    ]
    for mask in actor.masks:
        rows = mask.view(2, 8, 3)
        assert rows[:, :3].all(), "the rows before are unused"
        assert not rows[:, 3:].all(-1).any(), "every episode forbids something"

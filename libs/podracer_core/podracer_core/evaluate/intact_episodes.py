"""The episodes of an evaluation that count: an episode whose world broke is counted, and replaced by another one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from podracer_core.environments.vec_environment import Break
from podracer_core.errors import UserCodeFailed
from podracer_core.evaluate.evaluator import GreedyEpisodes
from podracer_core.evaluate.result import EvaluationResult
from podracer_core.random_numbers import derive_key

ATTEMPTS = 3
"""The episodes that a seed gets until one is intact; after these it is left out."""


def attempt_seeds(seeds: Sequence[int], attempt: int) -> Tensor:
    """The seeds themselves for attempt 0; those of later ones are derived from them."""
    keys = torch.tensor(seeds, dtype=torch.int64)
    return derive_key(keys, attempt).bitwise_and(torch.iinfo(torch.int64).max) if attempt else keys


class IntactEpisodes:
    """Collects the intact episodes of M policies, one a seed; the rows of all are [M * seeds].

    open       rows whose world has broken in each attempt so far
    by_world   what broke in a world; empty if nothing did
    """

    def __init__(self, seeds: Sequence[int], members: int) -> None:
        self._seeds = seeds
        self.open = list(range(members * len(seeds)))
        self.by_world: list[Break] = []
        self._found: dict[int, tuple[float, int, bool]] = {}
        self._breaks: list[list[Break]] = [[] for _ in range(members)]

    def take(self, episodes: GreedyEpisodes, breaks: Sequence[Break], *, in_time: bool) -> None:
        """Take what was played in the open rows. A policy that acts wildly is not given another episode. Not `in_time`:
        a policy's unfinished episodes are left out, or cut if none is finished."""
        told: dict[int, Break] = {}
        for each in breaks:
            if not each.text.startswith("reset: "):
                told.setdefault(each.row, each)
            elif each.row in self.open and each.row not in told:  # another episode took its place at once
                self._note(each)
        tensors = (episodes.returns, episodes.lengths, episodes.invalid, episodes.wild_at, episodes.running)
        returns, lengths, invalid, wild_at, running = (tensor.tolist() for tensor in tensors)
        rows, self.open = self.open, []
        for row in rows:
            if 0 < wild_at[row] <= lengths[row]:
                wild = Break(row, True, f"step {wild_at[row]}: the policy's action was not finite")
                self._note(wild, by_world=False)
            elif invalid[row]:
                unknown = Break(row, True, f"step {lengths[row]}: the world's numbers were not finite")
                self._note(told.get(row, unknown))
                self.open.append(row)
            else:
                self._found[row] = returns[row], lengths[row], running[row]
        if not in_time:
            whole = {row // len(self._seeds) for row, (_, _, is_cut) in self._found.items() if not is_cut}
            self._found = {
                row: found for row, found in self._found.items() if not found[2] or row // len(self._seeds) not in whole
            }

    def results(self) -> tuple[EvaluationResult, ...]:
        """One result a policy."""
        return tuple(self._result(member, breaks) for member, breaks in enumerate(self._breaks))

    def _result(self, member: int, breaks: Sequence[Break]) -> EvaluationResult:
        rows = range(member * len(self._seeds), (member + 1) * len(self._seeds))
        kept = [(seed, *self._found[row]) for seed, row in zip(self._seeds, rows, strict=True) if row in self._found]
        seeds, returns, lengths, cut = zip(*kept, strict=True) if kept else ((),) * 4
        numbers = sum(each.numbers for each in breaks)
        first = breaks[0].text if breaks else ""
        return EvaluationResult(returns, lengths, seeds, numbers, len(breaks) - numbers, first, sum(cut))

    def failed(self, environment: str) -> UserCodeFailed:
        """The error where no episode of any policy is intact."""
        first = next((each for each in self.by_world if each.traceback), self.by_world[0])
        return UserCodeFailed(
            f"{environment}: all evaluation episodes broke, {ATTEMPTS} of each of {len(self._seeds)} seeds; the first: "
            f"{first.text}",
            user_traceback=first.traceback,
            environment=environment,
        )

    def _note(self, each: Break, *, by_world: bool = True) -> None:
        self._breaks[each.row // len(self._seeds)].append(each)
        if by_world:
            self.by_world.append(each)

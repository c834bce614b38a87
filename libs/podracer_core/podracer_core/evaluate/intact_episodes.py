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

    def take(self, episodes: GreedyEpisodes, *, in_time: bool) -> None:
        """Take what was played in the open rows. A policy that acts wildly is not given another episode. Not `in_time`:
        a policy's unfinished episodes are left out, or cut if none is finished."""
        told: dict[int, Break] = {}
        for each in episodes.take_breaks():
            told.setdefault(each.row, each)
        tensors = (episodes.returns, episodes.lengths, episodes.invalid, episodes.wild_at, episodes.running)
        returns, lengths, invalid, wild_at, running = (tensor.tolist() for tensor in tensors)
        rows, self.open = self.open, []
        failed_starts = [each for each in episodes.failed_starts if each.row in rows]
        self.by_world += failed_starts
        for each in failed_starts:
            self._note(each)
        for row in rows:
            if 0 < wild_at[row] <= lengths[row]:
                self._note(Break(row, True, f"step {wild_at[row]}: the policy's action was not finite"))
            elif invalid[row]:
                unknown = Break(row, True, f"step {lengths[row]}: the world's numbers were not finite")
                self.by_world.append(told.get(row, unknown))
                self._note(self.by_world[-1])
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
        count, results = len(self._seeds), []
        for member, breaks in enumerate(self._breaks):
            kept = [index for index in range(count) if member * count + index in self._found]
            found = [self._found[member * count + index] for index in kept]
            results.append(
                EvaluationResult(
                    tuple(total for total, _, _ in found),
                    tuple(length for _, length, _ in found),
                    tuple(self._seeds[index] for index in kept),
                    sum(each.numbers for each in breaks),
                    sum(not each.numbers for each in breaks),
                    breaks[0].text if breaks else "",
                    sum(is_cut for _, _, is_cut in found),
                )
            )
        return tuple(results)

    def failed(self, environment: str) -> UserCodeFailed:
        """The error where no episode of any policy is intact."""
        first = next((each for each in self.by_world if each.traceback), self.by_world[0])
        return UserCodeFailed(
            f"{environment}: all evaluation episodes broke, {ATTEMPTS} of each of {len(self._seeds)} seeds; the first: "
            f"{first.text}",
            user_traceback=first.traceback,
            environment=environment,
        )

    def _note(self, each: Break) -> None:
        self._breaks[each.row // len(self._seeds)].append(each)

"""Greedy evaluation of one policy or a whole cohort, one episode an environment."""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from podracer_core import device
from podracer_core.catalogue import MOST_EPISODE_STEPS
from podracer_core.environments import Break, VecEnvironment
from podracer_core.errors import InvalidInput, TimeUp, UserCodeFailed
from podracer_core.evaluate.evaluator import STEPS_AT_ONCE, Evaluated, Evaluator, GreedyEpisodes
from podracer_core.evaluate.result import EvaluationResult
from podracer_core.networks import NetworkActor
from podracer_core.random_numbers import derive_key

# The network always sees blocks of this many rows, whatever the number of episodes: a matrix
# product may round differently when its size changes, and a stored return must come out again
# exactly.
BLOCK_ROWS = 32
_SLOW_S = 0.01  # of a step, from which on each one is followed by a check
_ATTEMPTS = 3  # that a seed gets until an episode of it is intact; after these it is left out
_MOST_KEPT = 8  # sets of environments


@dataclass(frozen=True, slots=True)
class _Kept:
    environment: VecEnvironment
    episodes: dict[tuple[int, ...], GreedyEpisodes]  # that have graphs


class GreedyEvaluator(Evaluator):
    """Plays greedy episodes in environments from `make_environment(num_envs)`; a few are kept for
    later evaluations.

    With `deterministic_evaluation` all of a policy's episodes are alike, so one is played for all
    seeds. Mean and interval are then the environment's own statistic, or the return with an
    interval of no width. `all_alike`: this is known already (see `evaluates_alike`); else
    environments for all seeds are made to find out. Without a time limit episodes are cut after the
    environment's `evaluation_steps`. `check` is called every few steps, of slow ones at each; it
    raises to cancel. At TimeUp a policy's unfinished episodes are left out, or cut if none is
    finished; a later stage then raises TimeUp.

    Any other episode whose world breaks is replaced. Raises UserCodeFailed if a world broke in
    every episode of every policy so far."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._kept: dict[int, _Kept] = {}  # by number of environments
        self._was_intact = False  # an episode, ever: the environment works
        self._most: int | None = None  # environments at a time

    def evaluate(
        self,
        actor: Evaluated,
        seeds: Sequence[int],
        *,
        first_row: int = 0,
        block_rows: int = BLOCK_ROWS,
    ) -> tuple[EvaluationResult, ...]:
        """See `Evaluator`. Episode i plays in row first_row + i of the blocks, so that a second
        stage continues where the first ended.

        Smaller blocks save time if the returns need not be reproducible.
        """
        if not seeds:
            raise InvalidInput("an evaluation needs at least one seed")
        if not self._all_alike:
            environment = self._environment(actor.members * self._stage(actor.members, len(seeds)))
            self._all_alike = environment.deterministic_evaluation
            self._most = environment.most_at_once
        if self._all_alike:
            one_each = self._play(actor, seeds[:1], 0, block_rows)
            return tuple(result.repeated(tuple(seeds)) for result in one_each)
        stage = self._stage(actor.members, len(seeds))
        stages = [
            self._play(actor, seeds[first : first + stage], first_row + first, block_rows)
            for first in range(0, len(seeds), stage)
        ]
        return tuple(
            functools.reduce(operator.add, results) for results in zip(*stages, strict=True)
        )

    def look(self, actor: Evaluated, seeds: Sequence[int]) -> tuple[EvaluationResult, ...]:
        """See `Evaluator`: in one block, of a size of its own."""
        return self.evaluate(actor, seeds, block_rows=len(seeds))

    def _play(
        self, actor: Evaluated, seeds: Sequence[int], first_row: int, block_rows: int
    ) -> tuple[EvaluationResult, ...]:
        members, count = actor.members, actor.members * len(seeds)
        environment = self._environment(count)
        blocks = -(-(first_row + len(seeds)) // block_rows)
        if members * blocks == 1 and block_rows == BLOCK_ROWS:
            # one product alone may round differently from several at once, of which each gives the
            # same
            blocks = 2
        episodes = self._episodes(count, actor, (members, blocks, block_rows, first_row))
        self._check()
        intact, rewards, in_time = _IntactEpisodes(seeds, members), torch.empty(0), True
        for attempt in range(1 if self._all_alike else _ATTEMPTS):
            keys = _attempt_seeds(seeds, attempt).to(environment.device).repeat(members)
            rewards, in_time = self._play_out(episodes, keys, intact.open)
            if first_row and not in_time and bool(episodes.running.view(members, -1).all(1).any()):
                raise TimeUp("the later episodes of this evaluation have not ended in time")
            intact.take(episodes, environment.take_breaks())
            if not (intact.open and in_time):
                break
        results = intact.results(in_time=in_time)
        self._was_intact |= not in_time or any(result.returns for result in results)
        if not self._was_intact and intact.by_world:
            raise intact.failed(getattr(environment, "name", type(environment).__name__))
        return _with_statistics(results, rewards, environment) if self._all_alike else results

    def _play_out(
        self, episodes: GreedyEpisodes, keys: Tensor, rows: Sequence[int]
    ) -> tuple[Tensor, bool]:
        """Play the episodes of `keys` in these rows to their ends. The rewards, if all are alike,
        and whether there was time for all steps."""
        environment = self._environment(keys.numel())
        episodes.begin(keys, rows)
        limit = environment.max_episode_steps or environment.evaluation_steps or MOST_EPISODE_STEPS
        is_graph = environment.graph_safe and device.can_capture(environment.device)
        left, steps, rewards, in_time = limit, STEPS_AT_ONCE if is_graph else 1, [], True
        while left and in_time:
            steps, began_at = min(left, steps), time.monotonic()
            episodes.play(steps)
            if self._all_alike:
                rewards.append(episodes.rewards[:steps].clone())
            if _have_ended(episodes.running):
                break
            left -= steps
            in_time = False
            with suppress(TimeUp):
                self._check()
                in_time = True
            is_slow = not is_graph and time.monotonic() - began_at > steps * _SLOW_S
            steps = 1 if is_slow else STEPS_AT_ONCE
        return torch.cat(rewards) if rewards else torch.empty(0), in_time

    def close(self) -> None:
        """Close all environments."""
        for kept in self._kept.values():
            kept.environment.close()
        self._kept.clear()

    def _stage(self, members: int, episodes: int) -> int:
        """The number of episodes of each member to play at a time."""
        return episodes if self._most is None else max(1, min(episodes, self._most // members))

    def _resized(self, num_envs: int) -> _Kept | None:
        """Expensive environments that are kept, with another number; they end if that is
        impossible."""
        for number, kept in self._kept.items():
            if kept.environment.most_at_once is not None:
                del self._kept[number]
                if kept.environment.resize(num_envs):
                    return kept
                kept.environment.close()
                break
        return None

    def _environment(self, num_envs: int) -> VecEnvironment:
        kept = (
            self._kept.pop(num_envs, None)
            or self._resized(num_envs)
            or _Kept(self._make_environment(num_envs), {})
        )
        if len(self._kept) == _MOST_KEPT:
            self._kept.pop(next(iter(self._kept))).environment.close()  # the longest unused
        self._kept[num_envs] = kept
        return kept.environment

    def _episodes(
        self, num_envs: int, actor: Evaluated, form: tuple[int, int, int, int]
    ) -> GreedyEpisodes:
        """`form`: members, blocks, rows of a block, the first row. Graphs stay, and get the
        policies that act now."""
        kept, repeated = self._kept[num_envs], actor.repeat(form[1])
        known = kept.episodes.get((num_envs, *form))
        if (
            known is not None
            and isinstance(known.actor, NetworkActor)
            and known.actor.acts_like(repeated)
        ):
            known.actor.load_state(repeated.state())
            return known
        episodes = GreedyEpisodes(kept.environment, repeated, *form)
        if device.can_capture(kept.environment.device):
            kept.episodes[(num_envs, *form)] = episodes
        return episodes


def _have_ended(running: Tensor) -> bool:
    """Synchronizes with the device."""
    return not bool(running.any())


def _with_statistics(
    results: tuple[EvaluationResult, ...], rewards: Tensor, environment: VecEnvironment
) -> tuple[EvaluationResult, ...]:
    """The results [M] of one episode each with what the environment says of its rewards, [T, M]."""
    by_member = rewards.double().cpu().unbind(1)
    return tuple(
        replace(result, statistic=environment.episode_statistic(own[: result.lengths[0]]))
        if result.returns
        else result
        for result, own in zip(results, by_member, strict=True)
    )


def _attempt_seeds(seeds: Sequence[int], attempt: int) -> Tensor:
    """The seeds themselves for attempt 0; those of later ones are derived from them."""
    keys = torch.tensor(seeds, dtype=torch.int64)
    return derive_key(keys, attempt).bitwise_and(torch.iinfo(torch.int64).max) if attempt else keys


class _IntactEpisodes:
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

    def take(self, episodes: GreedyEpisodes, breaks: Sequence[Break]) -> None:
        """Take what was played in the open rows. A policy that acts wildly is not given another
        episode."""
        told: dict[int, Break] = {}
        for each in breaks:
            if not each.text.startswith("reset: "):
                told.setdefault(each.row, each)
            elif each.row in self.open and each.row not in told:
                # another episode took its place at once
                self._note(each)
        tensors = (
            episodes.returns,
            episodes.lengths,
            episodes.invalid,
            episodes.wild_at,
            episodes.running,
        )
        returns, lengths, invalid, wild_at, running = (tensor.tolist() for tensor in tensors)
        rows, self.open = self.open, []
        for row in rows:
            if 0 < wild_at[row] <= lengths[row]:
                wild = Break(row, True, f"step {wild_at[row]}: the policy's action was not finite")
                self._note(wild, by_world=False)
            elif invalid[row]:
                unknown = Break(
                    row, True, f"step {lengths[row]}: the world's numbers were not finite"
                )
                self._note(told.get(row, unknown))
                self.open.append(row)
            else:
                self._found[row] = returns[row], lengths[row], running[row]

    def results(self, *, in_time: bool) -> tuple[EvaluationResult, ...]:
        """One result a policy. Not `in_time`: its unfinished episodes are left out, or cut if none
        is finished."""
        return tuple(
            self._result(member, breaks, in_time) for member, breaks in enumerate(self._breaks)
        )

    def _result(self, member: int, breaks: Sequence[Break], in_time: bool) -> EvaluationResult:
        rows = range(member * len(self._seeds), (member + 1) * len(self._seeds))
        kept = [
            (seed, *self._found[row])
            for seed, row in zip(self._seeds, rows, strict=True)
            if row in self._found
        ]
        kept = kept if in_time else [each for each in kept if not each[3]] or kept
        seeds, returns, lengths, cut = zip(*kept, strict=True) if kept else ((),) * 4
        numbers = sum(each.numbers for each in breaks)
        first = breaks[0].text if breaks else ""
        return EvaluationResult(
            returns, lengths, seeds, numbers, len(breaks) - numbers, first, sum(cut)
        )

    def failed(self, environment: str) -> UserCodeFailed:
        """The error where no episode of any policy is intact."""
        first = next((each for each in self.by_world if each.traceback), self.by_world[0])
        played = f"{_ATTEMPTS} of each of {len(self._seeds)} seeds"
        message = f"{environment}: all evaluation episodes broke, {played}; the first: {first.text}"
        return UserCodeFailed(message, user_traceback=first.traceback, environment=environment)

    def _note(self, each: Break, *, by_world: bool = True) -> None:
        self._breaks[each.row // len(self._seeds)].append(each)
        if by_world:
            self.by_world.append(each)

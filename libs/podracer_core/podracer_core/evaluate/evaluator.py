"""The interface of evaluators, built in or from packages, and the default one: greedy episodes of
one policy or a whole cohort, one an environment."""

from __future__ import annotations

import functools
import operator
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import gymnasium
import torch
from torch import Tensor

from podracer_core import device
from podracer_core.catalogue import (
    BUILT_IN_EVALUATORS,
    EVALUATOR_GROUP,
    GREEDY_EPISODES,
    MOST_EPISODE_STEPS,
    load_class,
)
from podracer_core.device import Graphed
from podracer_core.environments import Break, Step, VecEnvironment
from podracer_core.errors import InvalidInput, TimeUp, UserCodeFailed
from podracer_core.evaluate.result import EvaluationResult
from podracer_core.networks import NetworkActor
from podracer_core.random_numbers import derive_key

STEPS_AT_ONCE = 16


class Acting(Protocol):
    """A policy that acts: an Actor, or an EnsembleActor."""

    def greedy(self, observation: Tensor, action_mask: Tensor | None = None) -> Tensor:
        """observation [M, B, *obs] raw -> the action [M, B, *action], obeying action_mask [M, B,
        n]."""


class GreedyEpisodes:
    """The first episode of each of N environments, in the rows from `first_row` of each member's
    blocks.

    On a CUDA device several steps are one graph. If the environment cannot be captured, only the
    policy is. So all tensors, `actor`'s included, keep their memory, and `begin` reuses it.

    returns   float64 [N], as everything until each one's first end
    lengths   int64 [N]
    invalid   bool [N]: whether the world broke
    wild_at   int64 [N]: the step, from 1, of the first action with a number that is not finite, or
              1 if the policy's weights have one; 0 if there is none. It may lie beyond the
              episode's end
    running   bool [N]
    rewards   float32 [STEPS_AT_ONCE, N], of the last steps
    """

    def __init__(
        self,
        environment: VecEnvironment,
        actor: Acting,
        members: int,
        blocks: int,
        block_rows: int,
        first_row: int,
    ) -> None:
        """`actor` repeats each of the `members` `blocks` times in a row."""
        self._environment, self.actor = environment, actor
        self._blocks, self._block_rows = (members, blocks), block_rows
        count, device = environment.num_envs, environment.device
        self._rows = slice(first_row, first_row + count // members)
        # [M, blocks * block_rows, *obs], as the mask [M, …, n]
        self._observation: Tensor | None = None
        self._mask: Tensor | None = None
        self.returns = torch.zeros(count, dtype=torch.float64, device=device)
        self.lengths = torch.zeros(count, dtype=torch.int64, device=device)
        self.invalid = torch.zeros(count, dtype=torch.bool, device=device)
        self.running = torch.ones_like(self.invalid)
        self.wild_at = torch.zeros_like(self.lengths)
        self.rewards = torch.zeros(STEPS_AT_ONCE, count, device=device)
        self._taken = torch.zeros((), dtype=torch.int64, device=device)
        self._acts_in_box = isinstance(environment.action_space, gymnasium.spaces.Box)
        # else the next one has the same memory
        self._actions_stay = device.type == "cpu" or environment.graph_safe
        self._act = Graphed(self._choose, device, wanted=not environment.graph_safe)
        self._play = Graphed(self._take_steps, device, wanted=environment.graph_safe)

    def begin(self, seeds: Tensor, rows: Sequence[int]) -> None:
        """Begin new episodes, of seeds int64 [N]. If supported, environments stand still after
        their episode. Only the episodes in these rows count."""
        self._environment.take_breaks()
        self._show(self._environment.reset(seeds), self._environment.action_mask)
        self._environment.play_once()
        for total in (
            self.returns,
            self.lengths,
            self.invalid,
            self.wild_at,
            self._taken,
            self.running,
        ):
            total.zero_()
        self.running[rows] = True
        # its actions would not tell
        if not self._acts_in_box and isinstance(self.actor, NetworkActor):
            wild = self.actor.finite().logical_not().view(self._blocks)[:, 0]
            self.wild_at.view(wild.shape[0], -1).copy_(wild.unsqueeze(1))

    @torch.inference_mode()
    def play(self, steps: int) -> None:
        """Take at most STEPS_AT_ONCE steps. Does not synchronize."""
        self._play(steps)

    def _take_steps(self, count: int) -> None:
        actions = []
        for index in range(count):
            action = self._act()
            if self._acts_in_box:
                actions.append(action if self._actions_stay else action.clone())
            self._count(self._environment.step(action), index)
        if actions:
            self._note_wild_actions(torch.stack(actions).view(count, action.shape[0], -1))

    def _note_wild_actions(self, actions: Tensor) -> None:
        """actions [T, N, numbers]"""
        wild = actions.isfinite().all(2).logical_not_()
        first = self._taken + 1 + wild.long().argmax(0)
        self.wild_at += torch.where(wild.any(0) & (self.wild_at == 0), first, 0)
        self._taken += actions.shape[0]

    def _choose(self) -> Tensor:
        members, blocks = self._blocks
        observation, mask = self._observation, self._mask
        assert observation is not None, "begin comes before play"
        by_block = observation.view(members * blocks, self._block_rows, *observation.shape[2:])
        action = self.actor.greedy(
            by_block, None if mask is None else mask.view(members * blocks, self._block_rows, -1)
        )
        return action.reshape(members, blocks * self._block_rows, *action.shape[2:])[
            :, self._rows
        ].flatten(0, 1)

    def _count(self, step: Step, index: int) -> None:
        self.rewards[index] = torch.where(self.running, step.reward, 0.0)
        self.returns += self.rewards[index]
        self.lengths += self.running
        self.invalid |= self.running & ~step.valid
        self.running &= ~(step.terminated | step.truncated)
        self._show(step.observation, step.action_mask)

    def _show(self, observation: Tensor, mask: Tensor | None) -> None:
        """The observation to act on next."""
        members, blocks = self._blocks
        rows = blocks * self._block_rows
        if self._observation is None:
            self._observation = observation.new_zeros(members, rows, *observation.shape[1:])
            self._mask = None if mask is None else mask.new_ones(members, rows, mask.shape[1])
        self._observation[:, self._rows] = observation.view(members, -1, *observation.shape[1:])
        if mask is not None and self._mask is not None:
            self._mask[:, self._rows] = mask.view(members, -1, mask.shape[1])


class Evaluated(Acting, Protocol):
    """A policy that can be evaluated: an Actor, or an EnsembleActor."""

    @property
    def members(self) -> int:
        """M."""

    def repeat(self, times: int) -> Evaluated:
        """A copy that repeats each member `times` times in a row."""


class Evaluator(ABC):
    """Evaluates many policies in one environment, in one thread.

    Candidates are ranked by the `mean` of its results, and reach a target by `mean` or
    `lower_bound`."""

    def __init__(
        self,
        make_environment: Callable[[int], VecEnvironment],
        *,
        all_alike: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`make_environment(num_envs)` makes environments for evaluation; the caller closes them.
        `all_alike`: all episodes of a policy are known to be alike (see `evaluates_alike`). Call
        `check` every few steps; it raises to cancel the evaluation."""
        self._make_environment, self._all_alike, self._check = make_environment, all_alike, check

    @abstractmethod
    def evaluate(
        self, actor: Evaluated, seeds: Sequence[int], *, first_row: int = 0
    ) -> tuple[EvaluationResult, ...]:
        """One result for each of the actor's M members, with one episode per seed.

        The same policy and seeds must give the same returns. `first_row`: the number of episodes
        that earlier stages of this evaluation have played; the results of all stages are added."""

    def look(self, actor: Evaluated, seeds: Sequence[int]) -> tuple[EvaluationResult, ...]:
        """A quick evaluation during training. Its returns need not be reproducible."""
        return self.evaluate(actor, seeds)

    def close(self) -> None:  # noqa: B027 - not every evaluator has something to give back
        """Release resources; closing twice is harmless."""


def evaluator_class(name: str = "") -> type[Evaluator]:
    """The class of the evaluator `name`; empty: greedy episodes. Raises as `load_class`."""
    found = name or GREEDY_EPISODES
    return load_class(
        EVALUATOR_GROUP,
        found,
        Evaluator,  # type: ignore[type-abstract]
        "evaluation.evaluator",
        BUILT_IN_EVALUATORS,
    )


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

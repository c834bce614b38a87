"""Greedy evaluation of one policy or a whole cohort, one episode an environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from podracer_core.device import cuda_graphs
from podracer_core.environments.vec_environment import VecEnvironment
from podracer_core.errors import InvalidInput
from podracer_core.evaluate.evaluator import STEPS_AT_ONCE, Evaluated, Evaluator, GreedyEpisodes
from podracer_core.evaluate.intact_episodes import ATTEMPTS, IntactEpisodes, attempt_seeds
from podracer_core.evaluate.result import EvaluationResult
from podracer_core.networks import NetworkActor

# The network always sees blocks of this many rows, whatever the number of episodes: a matrix product may round
# differently when its size changes, and a stored return must come out again exactly.
BLOCK_ROWS = 32
_DEFAULT_STEP_LIMIT = 100_000
_MOST_KEPT = 8  # sets of environments


@dataclass(frozen=True, slots=True)
class _Kept:
    environment: VecEnvironment
    episodes: dict[tuple[int, int, int, int], GreedyEpisodes]  # that have graphs


class GreedyEvaluator(Evaluator):
    """Plays greedy episodes in environments from `make_environment(num_envs)`; a few are kept for later evaluations.

    With `deterministic_evaluation` all of a policy's episodes are alike, so one is played for all seeds. Mean and
    interval are then the environment's own statistic, or the return with an interval of no width. `all_alike`: this is
    known already (see `evaluates_alike`); else environments for all seeds are made to find out. An environment without
    a time limit is truncated after `step_limit` steps. `check` is called every few steps; it raises to cancel.

    Any other episode whose world breaks is replaced (`IntactEpisodes`). Raises UserCodeFailed if a world broke in every
    episode of every policy so far.
    """

    def __init__(
        self,
        make_environment: Callable[[int], VecEnvironment],
        *,
        all_alike: bool = False,
        step_limit: int = _DEFAULT_STEP_LIMIT,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(make_environment, all_alike=all_alike, check=check)
        self._step_limit = step_limit
        self._kept: dict[int, _Kept] = {}  # by number of environments
        self._was_intact = False  # an episode, ever: the environment works

    def evaluate(
        self, actor: Evaluated, seeds: Sequence[int], *, first_row: int = 0, block_rows: int = BLOCK_ROWS
    ) -> tuple[EvaluationResult, ...]:
        """See `Evaluator`. Episode i plays in row first_row + i of the blocks, so that a second stage continues where
        the first ended.

        Smaller blocks save time if the returns need not be reproducible.
        """
        if not seeds:
            raise InvalidInput("an evaluation needs at least one seed")
        if not self._all_alike:
            self._all_alike = self._environment(actor.members * len(seeds)).deterministic_evaluation
        if self._all_alike:
            one_each = self._play(actor, seeds[:1], 0, block_rows)
            return tuple(result.repeated(tuple(seeds)) for result in one_each)
        return self._play(actor, seeds, first_row, block_rows)

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
            blocks = 2  # one product alone may round differently from several at once, of which each gives the same
        episodes = self._episodes(count, actor, (members, blocks, block_rows, first_row))
        intact, rewards = IntactEpisodes(seeds, members), torch.empty(0)
        for attempt in range(1 if self._all_alike else ATTEMPTS):
            keys = attempt_seeds(seeds, attempt).to(environment.device).repeat(members)
            rewards = self._play_out(episodes, keys, intact.open if attempt else None)
            intact.take(episodes)
            if not intact.open:
                break
        results = intact.results()
        self._was_intact |= any(result.returns for result in results)
        if not self._was_intact and intact.by_world:
            raise intact.failed(getattr(environment, "name", type(environment).__name__))
        return _with_statistics(results, rewards, environment) if self._all_alike else results

    def _play_out(self, episodes: GreedyEpisodes, keys: Tensor, rows: Sequence[int] | None) -> Tensor:
        """Play the episodes of `keys` in these rows, None: all, to their ends; the rewards, if all are alike."""
        environment = self._environment(keys.numel())
        episodes.begin(keys, rows)
        limit, rewards = environment.max_episode_steps or self._step_limit, []
        for taken in range(0, limit, STEPS_AT_ONCE):
            steps = min(limit - taken, STEPS_AT_ONCE)
            episodes.play(steps)
            if self._all_alike:
                rewards.append(episodes.rewards[:steps].clone())
            self._check()
            if _have_ended(episodes.running):
                break
        return torch.cat(rewards) if rewards else torch.empty(0)

    def close(self) -> None:
        """Close all environments."""
        for kept in self._kept.values():
            kept.environment.close()
        self._kept.clear()

    def _environment(self, num_envs: int) -> VecEnvironment:
        kept = self._kept.pop(num_envs, None) or _Kept(self._make_environment(num_envs), {})
        if len(self._kept) == _MOST_KEPT:
            self._kept.pop(next(iter(self._kept))).environment.close()  # the longest unused
        self._kept[num_envs] = kept
        return kept.environment

    def _episodes(self, num_envs: int, actor: Evaluated, form: tuple[int, int, int, int]) -> GreedyEpisodes:
        """`form`: members, blocks, rows of a block, the first row. Graphs stay, and get the policies that act now."""
        kept, repeated = self._kept[num_envs], actor.repeat(form[1])
        known = kept.episodes.get(form)
        if known is not None and isinstance(known.actor, NetworkActor) and known.actor.acts_like(repeated):
            known.actor.load_state(repeated.state())
            return known
        episodes = GreedyEpisodes(kept.environment, repeated, *form)
        if cuda_graphs.can_capture(kept.environment.device):
            kept.episodes[form] = episodes
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
        replace(result, statistic=environment.episode_statistic(own[: result.lengths[0]])) if result.returns else result
        for result, own in zip(results, by_member, strict=True)
    )

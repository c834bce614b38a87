"""Greedy evaluation of one policy or a whole cohort, one episode an environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from podracer_core.environments.vec_environment import VecEnvironment
from podracer_core.errors import InvalidInput
from podracer_core.evaluate.result import EvaluationResult

# The network always sees blocks of this many rows, whatever the number of episodes: a matrix product may round
# differently when its size changes, and a stored return must come out again exactly.
BLOCK_ROWS = 32
# Steps between two looks at whether all episodes have ended: each look makes the host wait for the device.
_CHECK_INTERVAL = 16
_DEFAULT_STEP_LIMIT = 100_000
_MOST_KEPT = 8  # sets of environments


class Evaluated(Protocol):
    """What can be evaluated: an Actor, or an EnsembleActor."""

    @property
    def members(self) -> int:
        """M."""

    def greedy(self, observation: Tensor, action_mask: Tensor | None = None) -> Tensor:
        """observation [M, B, *obs] raw -> the action [M, B, *action], obeying action_mask [M, B, n]."""

    def repeat(self, times: int) -> Evaluated:
        """A copy in which each member stands `times` times in a row."""


class Evaluator:
    """Runs greedy episodes in environments that `make_environment(num_envs)` makes; a few are kept for the next time.

    They are made for evaluation: where `deterministic_evaluation` is true all of a policy's episodes are alike, and one
    is played for all seeds: mean and interval are then those of the environment's own statistic, or its return and of
    no width where it has none. `all_alike` says that this is known already
    (see `evaluates_alike`); else environments for all seeds are made to find it out. An environment without a time
    limit of its own is cut off after `step_limit` steps. `check` is called every few steps; it raises to give up.
    """

    def __init__(
        self,
        make_environment: Callable[[int], VecEnvironment],
        *,
        all_alike: bool = False,
        step_limit: int = _DEFAULT_STEP_LIMIT,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._make_environment, self._step_limit, self._check = make_environment, step_limit, check
        self._environments: dict[int, VecEnvironment] = {}
        self._all_alike = all_alike

    def evaluate(
        self, actor: Evaluated, seeds: Sequence[int], *, first_row: int = 0, block_rows: int = BLOCK_ROWS
    ) -> tuple[EvaluationResult, ...]:
        """One result for each of the actor's M members; all of them play the episodes `seeds`.

        Episode i plays in row first_row + i of the blocks, so that a second stage continues where the first ended.
        Smaller blocks save time where nobody will ask for exactly these returns again.
        """
        if not seeds:
            raise InvalidInput("an evaluation needs at least one seed")
        if not self._all_alike:
            self._all_alike = self._environment(actor.members * len(seeds)).deterministic_evaluation
        if self._all_alike:
            one_each = self._play(actor, seeds[:1], 0, block_rows)
            return tuple(result.repeated(tuple(seeds)) for result in one_each)
        return self._play(actor, seeds, first_row, block_rows)

    def _play(
        self, actor: Evaluated, seeds: Sequence[int], first_row: int, block_rows: int
    ) -> tuple[EvaluationResult, ...]:
        members, episodes = actor.members, len(seeds)
        environment = self._environment(members * episodes)
        blocks = -(-(first_row + episodes) // block_rows)
        if members * blocks == 1 and block_rows == BLOCK_ROWS:
            blocks = 2  # one product alone may round differently from several at once, of which each gives the same
        repeated = actor.repeat(blocks)
        keys = torch.tensor(seeds, dtype=torch.int64, device=environment.device)
        observation = environment.reset(keys.repeat(members))
        padded = observation.new_zeros(members, blocks * block_rows, *observation.shape[1:])
        rows = slice(first_row, first_row + episodes)
        mask, padded_mask = environment.action_mask, None
        if mask is not None:
            padded_mask = mask.new_ones(members, blocks * block_rows, mask.shape[1])
        running = torch.ones(members * episodes, dtype=torch.bool, device=environment.device)
        rewards: list[Tensor] | None = [] if self._all_alike else None
        returns = torch.zeros(members * episodes, dtype=torch.float64, device=environment.device)
        lengths = torch.zeros(members * episodes, dtype=torch.int64, device=environment.device)
        invalid = torch.zeros_like(running)
        with torch.inference_mode():
            for taken in range(1, (environment.max_episode_steps or self._step_limit) + 1):
                padded[:, rows] = observation.view(members, episodes, *observation.shape[1:])
                block_mask = None
                if mask is not None and padded_mask is not None:
                    padded_mask[:, rows] = mask.view(members, episodes, -1)
                    block_mask = padded_mask.view(members * blocks, block_rows, -1)
                action = repeated.greedy(padded.view(members * blocks, block_rows, *observation.shape[1:]), block_mask)
                action = action.reshape(members, blocks * block_rows, *action.shape[2:])[:, rows].flatten(0, 1)
                step = environment.step(action)
                reward = torch.where(running, step.reward, 0.0)
                returns += reward
                if rewards is not None:
                    rewards.append(reward)
                lengths += running
                invalid |= running & ~step.valid
                running &= ~(step.terminated | step.truncated)
                observation, mask = step.observation, step.action_mask
                if taken % _CHECK_INTERVAL == 0:
                    self._check()
                    if not running.any():
                        break
        results = _results(returns, lengths, invalid, seeds, members)
        return results if rewards is None else _with_statistics(results, torch.stack(rewards), environment)

    def evaluate_staged(
        self, actor: Evaluated, seeds: Sequence[int], threshold: float, *, first: int = 8
    ) -> EvaluationResult:
        """One policy (M = 1): `first` episodes, doubled while the interval straddles `threshold` and seeds remain."""
        if actor.members != 1:
            raise InvalidInput(f"a staged evaluation takes one policy, not {actor.members}")
        (result,) = self.evaluate(actor, seeds[:first])
        if result.deterministic:
            return result.repeated(tuple(seeds))
        while result.straddles(threshold) and result.episodes < len(seeds):
            done = result.episodes
            (more,) = self.evaluate(actor, seeds[done : 2 * done], first_row=done)
            result = result + more
        return result

    def close(self) -> None:
        """Close all environments."""
        for environment in self._environments.values():
            environment.close()
        self._environments.clear()

    def _environment(self, num_envs: int) -> VecEnvironment:
        environment = self._environments.pop(num_envs, None) or self._make_environment(num_envs)
        if len(self._environments) == _MOST_KEPT:
            self._environments.pop(next(iter(self._environments))).close()  # the longest unused
        self._environments[num_envs] = environment
        return environment


def _results(
    returns: Tensor, lengths: Tensor, invalid: Tensor, seeds: Sequence[int], members: int
) -> tuple[EvaluationResult, ...]:
    """Split [M * episodes] tensors into one result a member."""
    by_member = (tensor.view(members, -1) for tensor in (returns, lengths, invalid.long()))
    return tuple(
        EvaluationResult(tuple(r.tolist()), tuple(n.tolist()), tuple(seeds), int(broken.sum()))
        for r, n, broken in zip(*by_member, strict=True)
    )


def _with_statistics(
    results: tuple[EvaluationResult, ...], rewards: Tensor, environment: VecEnvironment
) -> tuple[EvaluationResult, ...]:
    """The results [M] of one episode each with what the environment says of its rewards, [T, M]."""
    by_member = rewards.double().cpu().unbind(1)
    return tuple(
        replace(result, statistic=environment.episode_statistic(own[: result.lengths[0]]))
        for result, own in zip(results, by_member, strict=True)
    )

"""The interface of evaluators, built in or from packages, and greedy episodes in a batch of
environments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

import gymnasium
import torch
from torch import Tensor

from podracer_core.catalogue import (
    BUILT_IN_EVALUATORS,
    EVALUATOR_GROUP,
    GREEDY_EPISODES,
    load_class,
)
from podracer_core.device import Graphed
from podracer_core.environments import Step, VecEnvironment
from podracer_core.evaluate.result import EvaluationResult
from podracer_core.networks import NetworkActor

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

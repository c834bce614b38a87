"""The experience of an off-policy algorithm: its replay buffer, the due gradient steps, and their
batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from podracer_core.buffers import Replay, Rollout, Transitions
from podracer_core.errors import InvalidInput
from podracer_core.networks import NetworkActor

_OWN_PART = {"member": 1.0, "mixed": 0.5, "shared": 0.0}
_LEAST_PRIORITY = 1e-6
_GREATEST_ERROR = 1e6


@dataclass(frozen=True, slots=True)
class Batch:
    """B transitions of every member, as losses take them.

    observation, next_observation  [M, B, obs]  normalized
    action                         [M, B, *action]
    reward, discount               [M, B]  a target is reward + discount * V(next_observation)
    weight                         [M, B]  of each row in its member's loss; without priorities they
                                           add up to 1
    place                          [M, B]  where the transitions lie in the replay buffer
    """

    observation: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_observation: Tensor
    weight: Tensor
    place: Tensor


class Experience:
    """A cohort's transitions, sampled according to its hyperparameters.

    replay       None before the first rollout
    owed_steps   the fraction of a gradient step that is still due
    """

    def __init__(
        self,
        shared: Mapping[str, Any],
        hyperparameters: Mapping[str, Tensor],
        actor: NetworkActor,
        members: int,
    ) -> None:
        """The tensors of `hyperparameters` [M] may change, and what `actor` normalizes with. Raises
        InvalidInput for hyperparameters that exclude each other."""
        if shared["prioritized"] and shared["replay"] != "member":
            raise InvalidInput(
                "prioritized replay is each member's own; expected replay: member", field="replay"
            )
        self._shared, self._hyperparameters = shared, hyperparameters
        self._actor, self._members = actor, members
        self._sees_images = actor.network.architecture.image is not None
        self._stored: list[Mapping[str, Tensor] | None] = []
        self.replay: Replay | None = None
        self.owed_steps = 0.0

    def add(self, rollout: Rollout) -> None:
        """Take in a rollout. The first one decides the shapes; raises InvalidInput where there is
        no memory for them, and for a rollout of other members."""
        if rollout.members != self._members:  # else one member's would broadcast to all members
            raise InvalidInput(
                f"a rollout of {rollout.members} members came to a cohort of {self._members}"
            )
        if self.replay is None:
            self.replay = Replay(
                self._shared["replay_capacity"],
                rollout,
                own_part=_OWN_PART[self._shared["replay"]],
                prioritized=self._shared["prioritized"],
            )
            fitting = (
                state if state is not None and self.replay.fits(state) else None
                for state in self._stored
            )
            self.replay.load_member_states(list(fitting))
            self._stored = []
        self.replay.add(rollout)

    def load(self, states: Sequence[Mapping[str, Tensor] | None]) -> None:
        """Load the members' former transitions (None: none); those that do not fit are left out."""
        if self.replay is not None or len(states) != self._members:
            raise InvalidInput(
                f"transitions of {self._members} members are loaded before the first rollout, or "
                "never"
            )
        self._stored = list(states)

    def member_state(self, member: int) -> dict[str, Tensor]:
        """Copies of one member's transitions, before the first rollout of those it will begin with;
        empty without."""
        if self.replay is not None:
            return self.replay.member_state(member)
        return dict(self._stored[member] or {}) if self._stored else {}

    def due_steps(self, horizon: int) -> int:
        """Gradient steps to take now: `updates_per_step` for each transition of a member, the rest
        is owed.

        All members wait for the one with the fewest transitions.
        """
        replay = self._filled()
        # A buffer that holds fewer transitions than learning waits for is full some time, and then
        # that is enough.
        awaited = min(max(1, self._shared["learning_starts"]), replay.rows * replay.num_envs)
        if replay.least_rows * replay.num_envs < awaited:
            return 0
        self.owed_steps += self._shared["updates_per_step"] * horizon * replay.num_envs
        steps = int(self.owed_steps)
        self.owed_steps -= steps
        return steps

    def batches(
        self, count: int, key: Tensor, update_count: Tensor, transition_count: Tensor
    ) -> Iterator[Batch]:
        """The batches of the next `count` gradient steps, drawn at once; one by one if each changes
        the priorities of the next.

        key int64 [M]: each member's own random numbers; update_count [M] is its place in them and
        must go on with every batch; transition_count [M]: transitions that it has seen."""
        replay = self._filled()
        size = self._shared["batch_size"]
        steps = self._shared["n_step"]
        gamma = self._hyperparameters["gamma"]
        if replay.priorities is None:
            # Of images 16 batches would take more memory than they save time.
            at_once = 1 if self._sees_images else count
            for _ in range(0, count, at_once):
                drawn = replay.sample(size, key, update_count * size, gamma, steps, at_once)
                yield from self._cut(drawn, at_once)
            return
        first = self._hyperparameters["importance_exponent"]
        exponent = first + (1 - first) * (
            transition_count / self._shared["importance_steps"]
        ).clamp(max=1.0)
        for _ in range(count):
            yield from self._cut(
                replay.sample_prioritized(size, key, update_count * size, gamma, steps, exponent), 1
            )

    def set_priorities(self, batch: Batch, error: Tensor) -> None:
        """The temporal-difference errors [M, B] of this batch decide how often its transitions come
        again: p = |δ| + ε (Schaul et al., 2016, section 3.3). One without weight, whose successor
        is lost, is not drawn again."""
        if self.replay is not None and self.replay.priorities is not None:
            # What a broken member has to say must not poison the sums.
            size = (
                error.abs().nan_to_num(nan=0.0, posinf=_GREATEST_ERROR).clamp(max=_GREATEST_ERROR)
            )
            exponent = self._hyperparameters["priority_exponent"].unsqueeze(1)
            priority = (size + _LEAST_PRIORITY).pow(exponent)
            self.replay.set_priorities(batch.place, torch.where(batch.weight > 0, priority, 0.0))

    def _filled(self) -> Replay:
        if self.replay is None:
            raise InvalidInput("nothing can be drawn before the first rollout")
        return self.replay

    def _cut(self, drawn: Transitions, count: int) -> Iterator[Batch]:
        """Transitions [M, count * B] as `count` batches."""
        size = self._shared["batch_size"]
        weight = drawn.weight.view(-1, count, size)
        weight = (weight / (weight > 0).sum(2, keepdim=True).clamp(min=1)).flatten(1)
        columns = (
            drawn.observation,
            drawn.action,
            drawn.reward,
            drawn.discount,
            drawn.next_observation,
            weight,
            drawn.place,
        )
        normalize = self._actor.normalize
        for observation, action, reward, discount, following, share, place in zip(
            *(torch.split(column, size, 1) for column in columns), strict=True
        ):
            yield Batch(
                normalize(observation), action, reward, discount, normalize(following), share, place
            )


def without_lost_rows(batch: Batch) -> Batch:
    """Rows without weight do not count, so a copy of each member's first one that does stands for
    them: what they hold must not get into the statistics that the networks normalize with."""
    counts = batch.weight > 0
    first = counts.int().argmax(1)
    members = torch.arange(len(first), device=first.device)

    def filled(rows: Tensor) -> Tensor:
        return torch.where(counts.unsqueeze(-1), rows, rows[members, first].unsqueeze(1))

    return replace(
        batch,
        observation=filled(batch.observation),
        action=filled(batch.action),
        next_observation=filled(batch.next_observation),
    )

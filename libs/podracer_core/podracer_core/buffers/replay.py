"""Replay for off-policy algorithms: the last transitions of every member, on the learner's
device; drawn evenly, or in proportion to priorities (`PriorityTree`).

For checkpoints a member's transitions are cut into parts, each with the rows of one stretch of
everything that the member has ever stored: part 7 always begins at the same step. So of two
snapshots, one soon after the other, most parts are the same bytes, and are stored only once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from podracer_core.buffers.rollout import Rollout
from podracer_core.device import require_memory
from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import random_bits, uniform

_FAN_OUT = 64


class PriorityTree:
    """M trees of sums with 64 children a node: three levels for a quarter of a million leaves.

    Every sum is calculated anew from its children, so rounding errors do not gather.
    """

    def __init__(self, members: int, leaves: int, device: torch.device | str = "cpu") -> None:
        # levels[0] are the leaves, the last level is at most 64 wide; each padded to whole nodes.
        self._levels: list[Tensor] = []
        width = leaves
        while True:
            width = -(-width // _FAN_OUT) * _FAN_OUT
            self._levels.append(torch.zeros(members, width, device=device))
            if width <= _FAN_OUT:
                break
            width //= _FAN_OUT
        self._children = torch.arange(_FAN_OUT, device=device)
        self._member = torch.arange(members, device=device).unsqueeze(1)
        self._greatest = torch.ones(members, 1, device=device)  # ever set: what new leaves get

    def set(self, leaf: Tensor, priority: Tensor) -> None:
        """leaf int64 [M, B], priority [M, B] of at least zero. Of a leaf given twice the greater
        one counts."""
        torch.maximum(self._greatest, priority.amax(1, keepdim=True), out=self._greatest)
        self._write(leaf, priority)

    def set_newest(self, leaf: Tensor, valid: Tensor) -> None:
        """Leaves int64 [B], the same of every member, get the greatest priority so far, or none
        where not `valid` [M, B]."""
        self._write(
            leaf.expand(self._levels[0].shape[0], -1), torch.where(valid, self._greatest, 0.0)
        )

    def clear(self, leaf: Tensor, kept: Tensor | float = 0.0) -> None:
        """Leaves int64 [B] of every member are not drawn any more, but for those that are `kept`
        [M, B]."""
        self._write(leaf.expand(self._levels[0].shape[0], -1), self._levels[0][:, leaf] * kept)

    def member_state(self, member: int, leaf: Tensor) -> dict[str, Tensor]:
        """Copies of the priorities of `leaf` int64 [B], and of the greatest that the member ever
        had, []."""
        return {
            "priority": self._levels[0][member, leaf],
            "greatest_priority": self._greatest[member, 0].clone(),
        }

    def load_member_state(self, member: int, leaf: Tensor, state: Mapping[str, Tensor]) -> None:
        """Overwrite one member's `leaf` int64 [B] with what `member_state` gave for as many, or
        with 1."""
        priority = state.get("priority", torch.ones_like(leaf, dtype=torch.float32)).to(leaf.device)
        self._greatest[member] = state.get("greatest_priority", self._greatest[member, 0])
        everyone = self._levels[0][:, leaf]
        everyone[member] = priority
        self._write(leaf.expand_as(everyone), everyone)

    def find(self, part: Tensor) -> tuple[Tensor, Tensor]:
        """part [M, B] in [0, 1) of the whole sum -> the leaf there, int64 [M, B], and its
        probability [M, B]."""
        total = self._levels[-1].sum(1, keepdim=True)
        remaining = part * total
        node = torch.zeros_like(part, dtype=torch.int64)
        for level in reversed(self._levels):
            sums = self._of(level, node)  # [M, B, 64]
            cumulative = sums.cumsum(-1)
            # The first child whose running sum exceeds what remains, and never one of nothing after
            # the last.
            last = (sums > 0).mul(self._children).amax(-1)
            child = (cumulative <= remaining.unsqueeze(-1)).sum(-1).minimum(last)
            before = cumulative.gather(-1, child.unsqueeze(-1)).squeeze(-1)
            own = sums.gather(-1, child.unsqueeze(-1)).squeeze(-1)
            remaining = (remaining - (before - own)).clamp(min=0.0)
            node = node * _FAN_OUT + child
        return node, own / total.clamp(min=1e-30)

    @staticmethod
    def size_bytes(members: int, leaves: int) -> int:
        """About what a tree takes."""
        return members * leaves * 4 * (_FAN_OUT + 1) // _FAN_OUT

    def _write(self, leaf: Tensor, priority: Tensor) -> None:
        # A plain scatter would leave it to a GPU's order which of two priorities of one leaf is
        # kept.
        self._levels[0].scatter_reduce_(1, leaf, priority, "amax", include_self=False)
        node = leaf
        for below, above in zip(self._levels[:-1], self._levels[1:], strict=True):
            node = node.div(_FAN_OUT, rounding_mode="floor")
            above.scatter_(1, node, self._of(below, node).sum(-1))

    def _of(self, level: Tensor, node: Tensor) -> Tensor:
        """The children [M, B, 64] of nodes [M, B]."""
        # [M * nodes, 64]: whole rows are copied faster than their numbers one by one
        rows = level.view(-1, _FAN_OUT)
        row = node + self._member * (level.shape[1] // _FAN_OUT)
        return rows.index_select(0, row.flatten()).view(*node.shape, _FAN_OUT)


# Cut-off episodes whose last observation is kept, as a part of all transitions.
_CUT_OFF_PART = 16
_NOT_CUT_OFF = -1
_MOST_TRANSITIONS, _MOST_BYTES = 1_000_000, 1 << 28  # of a member whose capacity is automatic


@dataclass(frozen=True, slots=True)
class Transitions:
    """A minibatch of B transitions of every member; with n-step returns the sums of up to n steps.

    observation       [M, B, *obs]  raw
    action            [M, B, *action]
    reward            [M, B]  sum of gamma^k r[t + k] over the steps that are summed
    discount          [M, B]  gamma^steps, 0 where the episode terminated: a target is reward +
                              discount * V(next)
    next_observation  [M, B, *obs]  raw, the true successor of the last of these steps
    weight            [M, B]  0 where a row is not valid, else the importance weight of prioritized
                              sampling, or 1
    place             [M, B]  where they lie, for `Replay.set_priorities`
    """

    observation: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_observation: Tensor
    weight: Tensor
    place: Tensor


def require_replay(
    capacity: int, members: int, num_envs: int, horizon: int, item_bytes: tuple[int, int],
    device: torch.device, *, prioritized: bool,
) -> tuple[int, int, int]:  # fmt: skip
    """Rows, cut-off episodes whose last observation is kept, and bytes of a `Replay`; `item_bytes`
    are those of an observation and an action. Raises InvalidInput (REPLAY_TOO_LARGE) where the
    device has not enough free memory."""
    row_bytes = sum(item_bytes) + 15
    rows = max(
        -(-(capacity or min(_MOST_TRANSITIONS, _MOST_BYTES // row_bytes)) // num_envs), 2 * horizon
    )
    cut_off_room = max(
        -(-rows * members * num_envs // _CUT_OFF_PART), 2 * horizon * members * num_envs
    )
    leaves = (rows + 1) * num_envs  # of a member
    size_bytes = members * leaves * row_bytes + cut_off_room * item_bytes[0]
    if prioritized:
        size_bytes += PriorityTree.size_bytes(members, leaves)
    what = f"a replay buffer of {rows * num_envs:,} transitions for each of {members} members"
    require_memory(
        size_bytes, device, what, field="replay_capacity", unit_bytes=size_bytes / (rows * num_envs)
    )
    return rows, cut_off_room, size_bytes


class Successors:
    """A ring of the last observations of episodes that were cut off. Each has a number, counted
    from the first that was ever stored; a row without one has `_NOT_CUT_OFF`."""

    def __init__(self, room: int, example: Tensor) -> None:
        """Room for that many of the shape of `example`."""
        self._room, device = room, example.device
        # the last is a bin
        self._observation = torch.zeros(
            room + 1, *example.shape, dtype=example.dtype, device=device
        )
        self._count = torch.zeros((), dtype=torch.int64, device=device)

    def add(self, rollout: Rollout) -> Tensor:
        """Put the true successors of cut-off rows aside; returns their numbers [T, M, E]."""
        cut_off = rollout.truncated & ~rollout.terminated
        numbers = self._numbers(cut_off)
        if _may_read_values(cut_off.device):  # which ones is known at once, and they are few
            if cut_off.any():
                final = _finite(rollout.final_observation[cut_off])
                self._observation[numbers[cut_off] % self._room] = final
        else:
            slots = torch.where(cut_off, numbers % self._room, self._room)
            self._observation.index_copy_(
                0, slots.flatten(), _finite(rollout.final_observation.flatten(0, 2))
            )
        self._count += cut_off.sum()
        return numbers

    def load(self, cut_off: Tensor, finals: Tensor) -> Tensor:
        """Put `finals`, those of the last rows that are `cut_off`, aside; returns numbers as
        `add`."""
        numbers = self._numbers(cut_off)
        newest = numbers[cut_off][-self._room :]
        self._observation[newest % self._room] = finals[finals.shape[0] - newest.shape[0] :]
        self._count += int(cut_off.sum())
        return numbers

    def are_there(self, number: Tensor) -> Tensor:
        """Whether a true successor has been put aside and not overwritten since."""
        return (number != _NOT_CUT_OFF) & (number >= self._count - self._room)

    def take(self, number: Tensor) -> Tensor:
        """The observations of these numbers, where they are; any other elsewhere."""
        found = self._observation.index_select(0, (number % self._room).flatten())
        return found.view(*number.shape, *found.shape[1:])

    def _numbers(self, cut_off: Tensor) -> Tensor:
        """Those that the next ones get."""
        order = cut_off.flatten().cumsum(0).view_as(cut_off) + self._count
        return torch.where(cut_off, order - 1, _NOT_CUT_OFF)


class Replay:
    """A ring of `rows` steps of M members in E environments: tensors [T, M, E, …], T being rows +
    1.

    Every observation is stored once: the successor of row t is row t + 1, and only of episodes that
    were cut off (where it is the next episode's) the true one lies in a ring aside. Nothing here
    waits for the device.

    size        int64 [M]: rows that each member may draw from (a loaded member may have more than a
                fresh one)
    least_rows  the least of these, on the host
    own_part    the part of each batch that is the member's own, rounded up to whole rows; the rest
                is all members'
    """

    def __init__(
        self, capacity: int, example: Rollout, *, own_part: float = 1.0, prioritized: bool = False
    ) -> None:
        """Room for `capacity` transitions of each member, of the shapes of `example`, but at least
        for two rollouts.

        A capacity of 0 is automatic: 1,000,000, or what 256 MiB hold where that is less. It depends
        on nothing but the size of a transition, so that an agent keeps as many in any cohort and on
        any machine.

        Raises InvalidInput (REPLAY_TOO_LARGE) where the device has not enough free memory for it.
        """
        members, num_envs = example.members, example.num_envs
        item_bytes = example.observation[0, 0, 0].nbytes, example.action[0, 0, 0].nbytes
        self.own_part = own_part
        self.members = members
        self.num_envs = num_envs
        self.device = example.reward.device
        self.rows, cut_off_room, _ = require_replay(
            capacity,
            members,
            num_envs,
            example.horizon,
            item_bytes,
            self.device,
            prioritized=prioritized,
        )
        flat = (self.rows + 1) * members * num_envs

        def empty(like: Tensor) -> Tensor:
            return torch.zeros(flat, *like.shape[3:], dtype=like.dtype, device=self.device)

        self._observation, self._action = empty(example.observation), empty(example.action)
        self._reward = empty(example.reward)
        self._terminated, self._truncated = empty(example.terminated), empty(example.truncated)
        self._valid = empty(example.valid)
        # of a cut-off row: the number of its true successor
        self._cut_off = torch.full((flat,), _NOT_CUT_OFF, dtype=torch.int64, device=self.device)
        self._successors = Successors(cut_off_room, example.observation[0, 0, 0])
        # `_next_row`, where graphs read it
        self._row_of_next = torch.zeros((), dtype=torch.int64, device=self.device)
        self._stored = 0  # rows ever
        # rows that each had ever stored, elsewhere, when it came here
        self._stored_before = [0] * members
        self.least_rows = 0
        self.size = torch.zeros(members, dtype=torch.int64, device=self.device)
        self._member = torch.arange(members, device=self.device).view(-1, 1)
        self.priorities = (
            PriorityTree(members, (self.rows + 1) * num_envs, self.device) if prioritized else None
        )

    def __len__(self) -> int:
        """Rows that are stored now."""
        return min(self._stored, self.rows)

    @property
    def shared(self) -> bool:
        """Whether members draw from the transitions of all members."""
        return self.own_part < 1

    @property
    def _next_row(self) -> int:
        """Of the next transition; its observation, the newest, is there already."""
        return self._stored % (self.rows + 1)

    def add(self, rollout: Rollout) -> None:
        """Append a rollout. A row whose stored successor is not what came next leaves the losses (a
        lost worker)."""
        if rollout.members != self.members or rollout.num_envs != self.num_envs:
            raise InvalidInput(
                f"a rollout of {rollout.members} x {rollout.num_envs} environments does not fit a "
                f"replay buffer of {self.members} x {self.num_envs}"
            )
        horizon = rollout.horizon
        if horizon > self.rows:
            raise InvalidInput(
                f"a rollout of {horizon} steps does not fit a replay buffer of {self.rows} rows"
            )
        self._check_join(_finite(rollout.observation[0]))
        rows = (self._next_row + torch.arange(horizon + 1, device=self.device)) % (self.rows + 1)
        valid = rollout.valid
        if self.shared:  # one member's infinite reward must not reach the others
            valid = valid & rollout.reward.isfinite()
        wide = valid.view(*valid.shape, *[1] * (rollout.action.dim() - 3))
        # No weight of zero would keep the NaN of a broken row out of a gradient.
        columns = {
            "action": torch.where(wide, rollout.action, torch.zeros_like(rollout.action)),
            "reward": torch.where(valid, rollout.reward, 0.0),
            "terminated": rollout.terminated,
            "truncated": rollout.truncated,
            "valid": valid,
        }
        for name, column in columns.items():
            self._by_row(getattr(self, f"_{name}")).index_copy_(0, rows[:-1], column)
        self._by_row(self._observation).index_copy_(0, rows, _finite(rollout.observation))
        self._by_row(self._cut_off).index_copy_(0, rows[:-1], self._successors.add(rollout))
        if self.priorities is not None:
            self.priorities.set_newest(self._leaves(rows[:-1]), valid.transpose(0, 1).flatten(1))
            self.priorities.clear(self._leaves(rows[-1:]))
        self._stored += horizon
        self._row_of_next.fill_(self._next_row)
        self.least_rows = min(self.least_rows + horizon, self.rows)
        self.size.add_(horizon).clamp_(max=self.rows)

    def sample(
        self,
        batch_size: int,
        key: Tensor,
        counter: Tensor,
        gamma: Tensor,
        steps: int = 1,
        batches: int = 1,
    ) -> Transitions:
        """`batches` batches of every member, one after the other: B = `batch_size` · `batches`
        transitions, with replacement, evenly. The first `own_part` of each batch is the member's
        own.

        key, counter int64 [M]: each member's own random numbers, counter … counter + B - 1. gamma
        [M]. `steps` is n of n-step returns: rewards of up to n steps are summed, fewer where an
        episode ends or the stored rows do."""
        number = torch.arange(batch_size * batches, device=self.device)
        bits = random_bits(key.view(-1, 1), counter.view(-1, 1) + number)
        own = number % batch_size < math.ceil(self.own_part * batch_size)
        rows = torch.where(own, self.size.view(-1, 1), self.size.max())
        columns = torch.where(own, self.num_envs, self.num_envs * self.members)
        # (32 random bits * bound) / 2^32: an even choice out of at most 2^31.
        chosen = (((bits >> 32) & 0xFFFFFFFF) * (rows * columns)) >> 32
        age, column = chosen.div(columns, rounding_mode="floor"), chosen % columns
        row = (self._row_of_next - 1 - age) % (self.rows + 1)
        owner = torch.where(own, self._member, column.div(self.num_envs, rounding_mode="floor"))
        place = (row * self.members + owner) * self.num_envs + column % self.num_envs
        return self._gather(place, age, gamma, steps, torch.ones_like(place, dtype=torch.float32))

    def sample_prioritized(
        self,
        batch_size: int,
        key: Tensor,
        counter: Tensor,
        gamma: Tensor,
        steps: int,
        exponent: Tensor,
    ) -> Transitions:
        """Like `sample`, with the probabilities P(i) of Schaul et al., 2016 (arXiv:1511.05952),
        equation 1.

        The weights are (N P(i))^-exponent over their greatest in the batch (section 3.4); exponent
        is beta [M], N the transitions that the member has. One draw from each of B equal parts of
        the whole, as in algorithm 1."""
        assert self.priorities is not None, (
            "sample_prioritized needs a replay buffer made with prioritized=True"
        )
        draws = counter.view(-1, 1) + torch.arange(batch_size, device=self.device)
        part = (
            torch.arange(batch_size, device=self.device) + uniform(key.view(-1, 1), draws)
        ) / batch_size
        leaf, probability = self.priorities.find(part)
        row, environment = leaf.div(self.num_envs, rounding_mode="floor"), leaf % self.num_envs
        age = (self._row_of_next - 1 - row) % (self.rows + 1)
        count = (self.size * self.num_envs).view(-1, 1)
        weight = (count * probability).clamp(min=1e-12).pow(-exponent.view(-1, 1))
        weight = torch.where(probability > 0, weight, 0.0)
        place = (row * self.members + self._member) * self.num_envs + environment
        drawn = self._gather(place, age, gamma, steps, weight)
        return replace(
            drawn, weight=drawn.weight / drawn.weight.amax(1, keepdim=True).clamp(min=1e-12)
        )

    def set_priorities(self, place: Tensor, priority: Tensor) -> None:
        """New priorities [M, B], already to the power of alpha, of transitions at `place` [M,
        B]."""
        assert self.priorities is not None, (
            "set_priorities needs a replay buffer made with prioritized=True"
        )
        row = place.div(self.members * self.num_envs, rounding_mode="floor")
        self.priorities.set(row * self.num_envs + place % self.num_envs, priority)

    def member_state(self, member: int) -> dict[str, Tensor]:
        """Copies of one member's transitions, oldest first, [T, E, …]; their last observations [T +
        1, E, …].

        first_row []: how many rows it had stored, here and before, when it stored the oldest of
        these."""
        rows = int(self.size[member])
        order = (self._next_row - rows + torch.arange(rows + 1, device=self.device)) % (
            self.rows + 1
        )
        state = {"observation": self._by_row(self._observation)[order, member]}
        for name in ("action", "reward", "terminated", "truncated"):
            state[name] = self._by_row(getattr(self, f"_{name}"))[order[:-1], member]
        cut_off = self._by_row(self._cut_off)[order[:-1], member]
        there = self._successors.are_there(cut_off)
        state["valid"] = self._by_row(self._valid)[order[:-1], member] & (
            there | (cut_off == _NOT_CUT_OFF)
        )
        state["final_rows"] = self._successors.take(cut_off[there])
        state["cut_off"] = there
        state["first_row"] = torch.tensor(self._stored_before[member] + self._stored - rows)
        if self.priorities is not None:
            state |= self.priorities.member_state(member, self._leaves(order[:-1]))
        return state

    def load_member_states(self, states: list[Mapping[str, Tensor] | None]) -> None:
        """Fill an empty buffer with what `member_state` gave, the newest rows last; None: this
        member has none.

        Raises InvalidInput where a state does not fit.
        """
        if self._stored:
            raise InvalidInput("transitions are loaded into an empty replay buffer only")
        kept = [
            0 if state is None else min(state["reward"].shape[0], self.rows) for state in states
        ]
        if not any(kept):
            return
        rows = max(kept)
        for member, (state, count) in enumerate(zip(states, kept, strict=True)):
            if state is not None and not self.fits(state):
                raise InvalidInput(
                    f"member {member}'s transitions are of another number of environments or other "
                    "shapes"
                )
            if state is not None and count:
                self._load_member(member, state, rows - count, count)
            if state is not None:
                self._stored_before[member] = int(state["first_row"]) + state["reward"].shape[0]
        self._stored = rows
        self._row_of_next.fill_(rows)
        self._stored_before = [before - rows for before in self._stored_before]
        self.least_rows = min(kept)
        self.size.copy_(torch.tensor(kept))

    def fits(self, state: Mapping[str, Tensor]) -> bool:
        """Whether transitions of one member are of as many environments, and of the same shapes."""
        names = ("observation", "action", "reward", "terminated", "truncated", "valid")
        return all(
            name in state
            and state[name].shape[1:] == self._by_row(own)[0, 0].shape
            and state[name].dtype == own.dtype
            for name, own in ((name, getattr(self, f"_{name}")) for name in names)
        )

    def _load_member(
        self, member: int, state: Mapping[str, Tensor], first: int, count: int
    ) -> None:
        for name in ("observation", "action", "reward", "terminated", "truncated", "valid"):
            part = state[name][-(count + (name == "observation")) :]
            own = self._by_row(getattr(self, f"_{name}"))[first : first + part.shape[0], member]
            own.copy_(part)
        cut_off = state["cut_off"][-count:].to(self.device)
        numbers = self._successors.load(cut_off, state["final_rows"].to(self.device))
        self._by_row(self._cut_off)[first : first + count, member] = numbers
        if self.priorities is not None:
            leaves = self._leaves(torch.arange(first, first + count, device=self.device))
            known = {"priority": state["priority"][-len(leaves) :]} if "priority" in state else {}
            known |= {name: state[name] for name in ("greatest_priority",) if name in state}
            self.priorities.load_member_state(member, leaves, known)

    def _by_row(self, tensor: Tensor) -> Tensor:
        """[T, M, E, …] of a flat tensor."""
        return tensor.view(-1, self.members, self.num_envs, *tensor.shape[1:])

    def _leaves(self, rows: Tensor) -> Tensor:
        """The priority leaves of whole rows, [R * E]."""
        return (
            rows.unsqueeze(1) * self.num_envs + torch.arange(self.num_envs, device=self.device)
        ).flatten()

    def _check_join(self, observation: Tensor) -> None:
        """The rows before must lead to `observation` [M, E, *obs], unless they ended an episode."""
        if not self._stored:
            return
        previous = (self._next_row - 1) % (self.rows + 1)
        newest = self._by_row(self._observation)[self._next_row]
        same = (newest == observation).flatten(2).all(2)
        joined = (
            same
            | self._by_row(self._terminated)[previous]
            | (self._by_row(self._cut_off)[previous] != _NOT_CUT_OFF)
        )
        self._by_row(self._valid)[previous] &= joined
        if self.priorities is not None:
            self.priorities.clear(
                self._leaves(torch.arange(previous, previous + 1, device=self.device)), joined
            )

    def _gather(
        self, place: Tensor, age: Tensor, gamma: Tensor, steps: int, weight: Tensor
    ) -> Transitions:
        """place, age, weight [M, B]: where each window of at most `steps` rows begins, and how many
        rows follow it."""
        shape, stride = place.shape, self.members * self.num_envs

        def take(tensor: Tensor, where: Tensor) -> Tensor:
            return tensor.index_select(0, where.flatten()).view(*shape, *tensor.shape[1:])

        discount = gamma.view(-1, 1)
        last, reward = place, take(self._reward, place)
        terminated = take(self._terminated, place)
        valid, factor = take(self._valid, place), discount
        if steps > 1:
            factor = discount.expand_as(reward)
            running = ~(terminated | take(self._truncated, place))
            for step in range(1, steps):
                running = running & (age >= step)
                following = (last + stride) % self._reward.shape[0]
                last = torch.where(running, following, last)
                reward = reward + torch.where(running, factor * take(self._reward, last), 0.0)
                factor = torch.where(running, factor * discount, factor)
                terminated = take(self._terminated, last)
                valid = valid & take(self._valid, last)
                running = running & ~(terminated | take(self._truncated, last))
        cut_off = take(self._cut_off, last)
        next_observation = take(self._observation, (last + stride) % self._reward.shape[0])
        if not _may_read_values(self.device) or bool((cut_off != _NOT_CUT_OFF).any()):
            aside = cut_off != _NOT_CUT_OFF
            final = self._successors.take(cut_off)
            next_observation = torch.where(
                aside.view(*shape, *[1] * (final.dim() - 2)), final, next_observation
            )
            valid = valid & (self._successors.are_there(cut_off) | ~aside)
        return Transitions(
            observation=take(self._observation, place),
            action=take(self._action, place),
            reward=reward,
            discount=torch.where(terminated, 0.0, factor),
            next_observation=next_observation,
            weight=torch.where(valid, weight, 0.0),
            place=place,
        )


def _may_read_values(device: torch.device) -> bool:
    """Whether the host may ask for a value: elsewhere it would wait, and a graph could not be
    captured."""
    return device.type == "cpu"


def _finite(observation: Tensor) -> Tensor:
    """Zeros where there is NaN or infinity; pixels as they are."""
    if not observation.is_floating_point():
        return observation
    return observation.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


PART_BYTES = 4 << 20
"""Approximate bytes of the observations and actions in one part."""

_ROWS = ("observation", "action", "reward", "terminated", "truncated", "valid", "cut_off")
_FIRST_ROW, _FINALS, _NEWEST = "first_row", "final_rows", "newest_observation"


def to_parts(
    state: Mapping[str, Tensor], part_bytes: int = PART_BYTES
) -> dict[str, dict[str, Tensor]]:
    """`Replay.member_state` as groups of tensors: `7`, `8`, … with rows, `tail` with the tensors
    that always change."""
    first, rows = int(state[_FIRST_ROW]), state["reward"].shape[0]
    tail = {name: tensor for name, tensor in state.items() if name not in (*_ROWS, _FINALS)}
    tail[_NEWEST] = state["observation"][rows:]
    parts = {"tail": tail}
    size = max(
        1, part_bytes // max(1, state["observation"][-1].nbytes + state["action"][:1].nbytes)
    )
    finals = state["cut_off"].flatten(1).sum(1).cumsum(0).tolist()
    for number in range(first // size, -(-(first + rows) // size)):
        begin, end = (min(max(row * size - first, 0), rows) for row in (number, number + 1))
        parts[str(number)] = {name: state[name][begin:end] for name in _ROWS}
        parts[str(number)][_FINALS] = state[_FINALS][
            finals[begin - 1] if begin else 0 : finals[end - 1]
        ]
    return parts


def from_parts(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The inverse of `to_parts`, for parts in any order. Raises InvalidInput where one is
    missing."""
    numbers = sorted(int(name) for name in parts if name.isdecimal())
    if "tail" not in parts or numbers != list(
        range(numbers[0], numbers[0] + len(numbers)) if numbers else ()
    ):
        raise InvalidInput(
            f"transitions are stored as a tail and parts without a gap; got {sorted(parts)}"
        )
    tail = dict(parts["tail"])
    newest = tail.pop(_NEWEST)
    if not numbers:
        raise InvalidInput("transitions without a single row")
    state = {
        name: torch.cat([parts[str(number)][name] for number in numbers])
        for name in (*_ROWS, _FINALS)
    }
    state["observation"] = torch.cat([state["observation"], newest])
    return tail | state

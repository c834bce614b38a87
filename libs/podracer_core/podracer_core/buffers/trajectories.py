"""Recent experience in the order in which it came, from which whole episodes and segments are
found: the H-term's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from podracer_core.buffers.rollout import Rollout
from podracer_core.device import require_memory
from podracer_core.errors import InvalidInput

_CAPACITY = 1 << 14  # transitions of a member
_LEAST_ROWS = 1024  # so that episodes of usual lengths fit, however many environments a member has
_SPARE_PART = 64


@dataclass(frozen=True, slots=True)
class Pieces:
    """The piece of experience to which each row belongs: tensors [L, M, E], the oldest of the L
    rows first.

    first, last  int64    rows at which the piece begins and ends
    within       bool     whether the row belongs to a piece at all; where not, the others mean
                          nothing
    total        float64  the sum of the piece's rewards
    reward       float32  of the row itself
    origin                where row 0 lies in the ring, for `Trajectories.take`
    """

    first: Tensor
    last: Tensor
    within: Tensor
    total: Tensor
    reward: Tensor
    origin: int

    @property
    def closing(self) -> Tensor:
        """The last row of each piece, bool [L, M, E]: one row for one piece."""
        return self.within & (_row_numbers(self.last) == self.last)


class Trajectories:
    """A ring of the last `rows` steps of M members: tensors [T, M, E, …], T being rows +
    spare_rows.

    Of a member with many environments only the first E = `num_envs` are kept, so that their
    episodes are kept whole. What `episodes` and `segments` have found can be taken until more than
    `spare_rows` rows have been added. No loop over environments, members or transitions; nothing
    waits for the device."""

    def __init__(
        self, example: Rollout, capacity: int = _CAPACITY, least_rows: int = _LEAST_ROWS
    ) -> None:
        """Room for about `capacity` transitions of each member, of the shapes of `example`.

        Raises InvalidInput (REPLAY_TOO_LARGE) where the device has not enough free memory for it.
        """
        self.rows = max(-(-capacity // example.num_envs), least_rows)
        self.spare_rows = self.rows // _SPARE_PART
        self.members = example.members
        self.num_envs = min(example.num_envs, -(-capacity // self.rows))
        self.device, self._all_envs = example.reward.device, example.num_envs
        total_rows = self.rows + self.spare_rows
        rings = self._columns(example) | {"first": example.valid}
        require_memory(
            sum(total_rows * self.num_envs * ring[0, :, 0].nbytes for ring in rings.values()),
            self.device,
            f"the H-term's memory of {self.rows * self.num_envs:,} transitions for each of "
            f"{self.members} members",
            field="h_term",
        )
        self._rings = {
            name: ring.new_zeros(total_rows, self.members, self.num_envs, *ring.shape[3:])
            for name, ring in rings.items()
        }
        self._next_observation = self._rings["observation"][0].clone()
        self._next_row = self._stored = 0
        self._member = torch.arange(self.members, device=self.device)

    def __len__(self) -> int:
        """Rows that pieces are found in now."""
        return min(self._stored, self.rows)

    @property
    def count(self) -> Tensor:
        """Valid transitions of each member that are stored, int64 [M]."""
        return self._rings["valid"].sum((0, 2))

    def add(self, rollout: Rollout) -> None:
        """Append a rollout, or its last rows where it has more than the ring. Raises InvalidInput
        for other sizes."""
        if (rollout.members, rollout.num_envs) != (self.members, self._all_envs):
            raise InvalidInput(
                f"a rollout of {rollout.members} x {rollout.num_envs} environments does not fit "
                f"trajectories of {self.members} x {self._all_envs}"
            )
        columns = {
            name: column[:, :, : self.num_envs] for name, column in self._columns(rollout).items()
        }
        columns["first"] = torch.cat([self._join(rollout), columns["ended"][:-1]])
        total_rows = self._rings["valid"].shape[0]
        count = min(rollout.horizon, total_rows)
        rows = (self._next_row + torch.arange(count, device=self.device)) % total_rows
        for name, column in columns.items():
            self._rings[name].index_copy_(0, rows, column[-count:])
        self._next_observation.copy_(rollout.observation[-1, :, : self.num_envs])
        self._next_row = (self._next_row + count) % total_rows
        self._stored += count

    def episodes(self) -> Pieces:
        """Whole episodes: all rows, from the first after a reset to the end, are stored and
        valid."""
        reward, ended, valid, first = self._in_order("reward", "ended", "valid", "first")
        row, length = _row_numbers(reward), reward.shape[0]
        start = torch.where(_after(ended), row, 0).cummax(0).values
        end = _next_of(ended, row, length)
        last = end.clamp(max=length - 1)
        clean = _sum_of((~valid).long(), start, last) == 0
        within = (end < length) & first.gather(0, start) & clean
        return Pieces(
            start, last, within, _sum_of(reward.double(), start, last), reward, self._origin
        )

    def segments(self, steps: int) -> Pieces:
        """Pieces of exactly `steps` consecutive valid rows of one episode.

        They are counted back from the episode's end, or from where its valid rows stop for another
        reason, so that what is left over lies before them: a reward at the end is never lost."""
        reward, ended, valid = self._in_order("reward", "ended", "valid")
        row, length = _row_numbers(reward), reward.shape[0]
        start = torch.where(_after(ended | ~valid), row, 0).cummax(0).values
        next_is_broken = torch.cat([~valid[1:], torch.ones_like(valid[:1])])
        end = _next_of(ended | next_is_broken, row, length)
        last = end - (end - row).div(steps, rounding_mode="floor") * steps
        first = last - (steps - 1)
        within = valid & (first >= start)
        first = torch.where(within, first, row)
        last = torch.where(within, last, row)
        return Pieces(
            first, last, within, _sum_of(reward.double(), first, last), reward, self._origin
        )

    def take(
        self, origin: int, row: Tensor, environment: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Observations [M, B, *obs] (raw), actions [M, B, *action] and, where there are masks,
        action masks [M, B, n] of rows [M, B], counted from `origin`, in environments [M, B]."""
        ring_row = (row + origin) % self._rings["valid"].shape[0]
        place = (ring_row * self.members + self._member.view(-1, 1)) * self.num_envs + environment
        names = (
            ("observation", "action", "action_mask")
            if "action_mask" in self._rings
            else ("observation", "action")
        )
        taken = [self._rings[name].flatten(0, 2).index_select(0, place.flatten()) for name in names]
        observation, action, *masks = [rows.view(*place.shape, *rows.shape[1:]) for rows in taken]
        return observation, action, masks[0] if masks else None

    @property
    def _origin(self) -> int:
        return (self._next_row - len(self)) % self._rings["valid"].shape[0]

    def _columns(self, rollout: Rollout) -> dict[str, Tensor]:
        """The stored columns of each row; a reward that is not valid counts as 0."""
        columns = {
            "observation": rollout.observation[:-1],
            "action": rollout.action,
            "reward": torch.where(rollout.valid, rollout.reward, 0.0),
            "ended": rollout.terminated | rollout.truncated,
            "valid": rollout.valid,
        }
        return (
            columns
            if rollout.action_mask is None
            else columns | {"action_mask": rollout.action_mask[:-1]}
        )

    def _join(self, rollout: Rollout) -> Tensor:
        """Whether a rollout begins with an episode's first step, as far as is known, bool [1, M,
        E].

        Where it does not go on from the newest row (a lost worker, a rollout that was too old),
        that row breaks off."""
        new = (rollout.first_step == 0).view(1, -1, 1).expand(-1, -1, self.num_envs)
        if not self._stored:
            return new
        newest = (self._next_row - 1) % self._rings["valid"].shape[0]
        same = (
            (self._next_observation == rollout.observation[0, :, : self.num_envs]).flatten(2).all(2)
        )
        ended = self._rings["ended"][newest]
        self._rings["valid"][newest] &= same | ended
        return new | (same & ended)

    def _in_order(self, *names: str) -> list[Tensor]:
        """The stored rows of the named rings, [L, M, E] each, oldest first."""
        rows = (self._origin + torch.arange(len(self), device=self.device)) % self._rings[
            "valid"
        ].shape[0]
        return [self._rings[name].index_select(0, rows) for name in names]


def _row_numbers(like: Tensor) -> Tensor:
    return torch.arange(like.shape[0], device=like.device).view(-1, 1, 1)


def _after(flag: Tensor) -> Tensor:
    """Whether the row before has `flag` [L, M, E]; the first row counts as if it had."""
    return torch.cat([torch.ones_like(flag[:1]), flag[:-1]])


def _next_of(flag: Tensor, row: Tensor, none: int) -> Tensor:
    """The first row from each on, itself included, that has `flag` [L, M, E]; `none` where there is
    none."""
    return torch.where(flag, row, none).flip(0).cummin(0).values.flip(0)


def _sum_of(values: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """The sum over rows first … last of every environment: values, first, last [L, M, E] -> [L, M,
    E]."""
    running = values.cumsum(0)
    return running.gather(0, last) - running.gather(0, first) + values.gather(0, first)

"""The experience of a cohort over T steps: the input of an on-policy update, and the payload of a
worker's answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from podracer_core.device import require_memory
from podracer_core.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class EpisodeStatistics:
    """The episodes of every member that ended within a rollout, [M] each; sums, so that rollouts
    add up.

    `count` int64, `return_sum` float64 (undiscounted, raw rewards), `length_sum` int64 (steps).
    Episodes in which a row was not valid are left out."""

    count: Tensor
    return_sum: Tensor
    length_sum: Tensor


@dataclass(frozen=True, slots=True)
class Rollout:
    """T steps of M members in E environments each. The tensors are the collector's: it overwrites
    them next time.

    observation         [T + 1, M, E, *obs]  raw; row t is what action t saw, row T is where the
                                             next rollout starts
    final_observation   [T, M, E, *obs]      raw; the true successor of row t, before any reset
    action              [T, M, E, *action]   as the policy sampled it (see
                                             `ActionHead.to_environment`)
    log_prob            [T, M, E]            of that action under the policy that took it
    reward              [T, M, E]            float32
    terminated, truncated, valid  [T, M, E]  bool, as in `Step`
    first_step          [M]                  int64, the members' step counters before row 0 (steps
                                             per environment)
    episodes                                 of the episodes that ended in these rows
    policy_version                           the version of the actor state that acted
    action_mask         [T + 1, M, E, n]     bool, as in `Step`; row t is what action t had to obey,
                                             row T is for where the next rollout starts. None where
                                             the environment has no masks
    answered                                 environments of each member that sent their rows; where
                                             fewer than E, no row of the others is valid. None: all
                                             of them
    """

    observation: Tensor
    final_observation: Tensor
    action: Tensor
    log_prob: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    first_step: Tensor
    episodes: EpisodeStatistics
    policy_version: int = 0
    action_mask: Tensor | None = None
    answered: int | None = None

    @property
    def horizon(self) -> int:
        """T."""
        return self.reward.shape[0]

    @property
    def members(self) -> int:
        """M."""
        return self.reward.shape[1]

    @property
    def num_envs(self) -> int:
        """E, environments per member."""
        return self.reward.shape[2]

    @property
    def live_envs(self) -> int:
        """Environments of each member whose rows are there, known without looking at them."""
        return self.num_envs if self.answered is None else self.answered

    @property
    def env_steps(self) -> int:
        """Environment steps of all members together."""
        return self.reward.numel()

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors; those of `to_tensors` are no larger."""
        own = [getattr(self, field.name) for field in fields(self)]
        episodes = [getattr(self.episodes, field.name) for field in fields(EpisodeStatistics)]
        return sum(one.nbytes for one in (*own, *episodes) if isinstance(one, Tensor))

    def first(self, steps: int) -> Rollout:
        """The first `steps` of its T steps, in the same memory."""
        if steps == self.horizon:
            return self
        rows = (
            "final_observation",
            "action",
            "log_prob",
            "reward",
            "terminated",
            "truncated",
            "valid",
        )
        return replace(
            self,
            observation=self.observation[: steps + 1],
            action_mask=None if self.action_mask is None else self.action_mask[: steps + 1],
            **{name: getattr(self, name)[:steps] for name in rows},
        )

    def to_tensors(self) -> dict[str, Tensor]:
        """A flat dict for a wire. Of the final observations it holds only the rows that end an
        episode.

        The others equal the next row of `observation`; `from_tensors` puts them back bit for bit.
        """
        ended = (self.terminated | self.truncated).flatten()
        tensors = {name: getattr(self, name) for name in _PLAIN}
        tensors["final_rows"] = self.final_observation.flatten(0, 2)[ended]
        if self.action_mask is not None:
            tensors["action_mask"] = self.action_mask
        for field in fields(EpisodeStatistics):
            tensors[f"episodes.{field.name}"] = getattr(self.episodes, field.name)
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], policy_version: int = 0) -> Rollout:
        """The inverse of `to_tensors`. Raises InvalidInput where a tensor is missing or the shapes
        do not fit."""
        try:
            plain = {name: tensors[name] for name in _PLAIN}
            episodes = EpisodeStatistics(
                **{f.name: tensors[f"episodes.{f.name}"] for f in fields(EpisodeStatistics)}
            )
            final_rows = tensors["final_rows"]
        except KeyError as error:
            raise InvalidInput(f"a rollout needs the tensor {error.args[0]!r}") from None
        shape = plain["reward"].shape
        for name in ("action", "log_prob", "terminated", "truncated", "valid"):
            if len(shape) != 3 or plain[name].shape[:3] != shape:
                raise InvalidInput(
                    f"{name} has shape {tuple(plain[name].shape)}, the rewards {tuple(shape)}"
                )
        for name in ("observation", "action_mask"):
            if name in tensors and tensors[name].shape[:3] != (shape[0] + 1, *shape[1:]):
                raise InvalidInput(
                    f"{name} has shape {tuple(tensors[name].shape)}, the rewards {tuple(shape)}"
                )
        action_mask = tensors.get("action_mask")
        if action_mask is not None and (action_mask.dim() != 4 or action_mask.dtype != torch.bool):
            raise InvalidInput(
                f"action_mask is {action_mask.dtype} with {action_mask.dim()} axes, not bool with 4"
            )
        ended = (plain["terminated"] | plain["truncated"]).flatten()
        final_observation = plain["observation"][1:].clone()
        if (
            final_rows.shape[0] != int(ended.sum())
            or final_rows.shape[1:] != final_observation.shape[3:]
        ):
            raise InvalidInput(
                f"final_rows has shape {tuple(final_rows.shape)}, {int(ended.sum())} rows end an "
                "episode"
            )
        final_observation.view(-1, *final_observation.shape[3:])[ended] = final_rows
        return cls(
            **plain,
            final_observation=final_observation,
            episodes=episodes,
            policy_version=policy_version,
            action_mask=action_mask,
            answered=None,
        )


_PLAIN = (
    "observation",
    "action",
    "log_prob",
    "reward",
    "terminated",
    "truncated",
    "valid",
    "first_step",
)
_PLAIN_STEP_BYTES = 11  # log-probability, reward and three flags


def allocate_rollout(
    horizon: int,
    members: int,
    num_envs: int,
    observation: tuple[tuple[int, ...], torch.dtype],
    action: tuple[tuple[int, ...], torch.dtype],
    device: torch.device | str = "cpu",
    mask_size: int = 0,
) -> Rollout:
    """An empty rollout to collect into. observation, action: shape and dtype of a single one.

    mask_size: flags in an action mask; 0 for no masks. Masks start true. Raises InvalidInput
    (ROLLOUT_TOO_LARGE) where the device has not enough free memory for it."""
    rows = (horizon, members, num_envs)
    observed, acted = (math.prod(shape) * dtype.itemsize for shape, dtype in (observation, action))
    step_bytes = members * num_envs * (2 * observed + acted + mask_size + _PLAIN_STEP_BYTES)
    require_memory(
        step_bytes * (horizon + 1),
        torch.device(device),
        f"a rollout of {horizon:,} steps of {members * num_envs:,} environments",
        field="horizon",
        unit_bytes=step_bytes,
        reason="ROLLOUT_TOO_LARGE",
    )

    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(*shape, dtype=dtype, device=device)

    return Rollout(
        observation=zeros(horizon + 1, members, num_envs, *observation[0], dtype=observation[1]),
        final_observation=zeros(*rows, *observation[0], dtype=observation[1]),
        action=zeros(*rows, *action[0], dtype=action[1]),
        log_prob=zeros(*rows),
        reward=zeros(*rows),
        terminated=zeros(*rows, dtype=torch.bool),
        truncated=zeros(*rows, dtype=torch.bool),
        valid=torch.ones(*rows, dtype=torch.bool, device=device),
        first_step=zeros(members, dtype=torch.int64),
        episodes=EpisodeStatistics(
            zeros(members, dtype=torch.int64),
            zeros(members, dtype=torch.float64),
            zeros(members, dtype=torch.int64),
        ),
        action_mask=~zeros(horizon + 1, members, num_envs, mask_size, dtype=torch.bool)
        if mask_size
        else None,
    )

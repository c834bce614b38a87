"""Steps a batch of environments with a cohort's actor: the same code in a learner and in a
worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from podracer_core.buffers import EpisodeStatistics, Rollout, allocate_rollout
from podracer_core.device import Graphed, compiled
from podracer_core.environments import Step, VecEnvironment, action_mask_size
from podracer_core.errors import InvalidInput
from podracer_core.kernels import acts_of
from podracer_core.networks import Actor
from podracer_core.random_numbers import action_keys, environment_keys, first_ages


class Collector:
    """Collects rollouts of M members, E = num_envs / M environments each.

    seeds int64 [M]: the agents' own seeds. first_step int64 [M]: steps that each agent has already
    taken in an environment (its place in its random streams; zero for a new agent).
    `first_environment` is the index of this worker's first environment within each member, so that
    several workers of a learner draw different numbers. `session`, an int or int64 [M], makes
    episodes differ when the environments start anew after a restart. `random_ages`: with a time
    limit, the first episode of each environment counts as a random number of steps old, so that the
    limits do not coincide (rsl_rl's init_at_random_ep_len). Statistics leave out episodes that are
    truncated for it. `buffers`: the number of rollouts that are valid at a time: each is
    overwritten by the call that many later. `check` is called at every step except those that a
    CUDA graph replays; it raises to cancel.

    halted  asked likewise, from the second step on: whether the rollout ends with the steps that it
            has
    """

    halted: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(
        self,
        environment: VecEnvironment,
        actor: Actor,
        seeds: Tensor,
        *,
        first_step: Tensor | None = None,
        first_environment: int = 0,
        session: int | Tensor = 0,
        random_ages: bool = True,
        buffers: int = 1,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        members = actor.members
        if environment.num_envs % members or seeds.shape != (members,):
            raise InvalidInput(
                f"{environment.num_envs} environments and {seeds.shape[0]} seeds for {members} "
                "members"
            )
        self.environment, self.actor, self._check = environment, actor, check
        self.members, self.num_envs = members, environment.num_envs // members
        device = environment.device
        seeds = seeds.to(device)
        self._step_count = torch.zeros(members, dtype=torch.int64, device=device)
        if first_step is not None:
            self._step_count.copy_(first_step)
        self._action_keys = action_keys(seeds, self.num_envs, first_environment)
        self._episodes = EpisodeTracker(members, self.num_envs, device)
        self._rollouts: dict[tuple[int, int], Rollout] = {}  # by horizon and buffer
        self._buffers, self._buffer = buffers, 0
        self._fill = Graphed(self._fill_rollout, device, wanted=environment.graph_safe)
        self._act = acts_of(actor)
        self._count_episodes = compiled(self._episodes.update, device)
        self._draw_noise = compiled(actor.draw_noise, device)
        self._to_environment = compiled(actor.head.to_environment, device)
        environment.compile()
        if isinstance(session, Tensor):
            session = session.to(device)
        keys = environment_keys(seeds, self.num_envs, first_environment, session)
        limit = environment.max_episode_steps
        self._ages = first_ages(keys, limit) if random_ages and limit else None
        self._observation = environment.reset(keys.flatten()).clone()
        self._begin_episodes()

    @torch.no_grad()
    def collect(self, horizon: int, *, policy_version: int = 0, padded: bool = False) -> Rollout:
        """Take `horizon` steps in every environment, or fewer if `halted`; `padded`: with rows that
        are not valid in place of the others. With one buffer the next call overwrites the
        rollout."""
        self._buffer = (self._buffer + 1) % self._buffers
        taken = self._fill(horizon, self._buffer)
        if padded and taken < horizon:
            self._step_count += horizon - taken
            return replace(
                _padded(self._rollout(horizon, self._buffer), taken), policy_version=policy_version
            )
        return replace(
            self._rollout(horizon, self._buffer).first(taken), policy_version=policy_version
        )

    def _fill_rollout(self, horizon: int, buffer: int) -> int:
        """Returns the number of steps that were taken."""
        rollout = self._rollout(horizon, buffer)
        rollout.first_step.copy_(self._step_count)
        rollout.observation[0].copy_(self._observation.view_as(rollout.observation[0]))
        masks = rollout.action_mask
        present_mask = self.environment.action_mask
        if masks is not None and present_mask is not None:
            masks[0].copy_(present_mask.view_as(masks[0]))
        noise = self._draw_noise(self._action_keys, self._step_count, horizon)
        for t in range(horizon):
            self._check()
            if t and self.halted():
                rollout, horizon = rollout.first(t), t
                break
            mask = masks[t] if masks is not None else None
            self._act(
                rollout.observation[t], noise[t], mask, rollout.action[t], rollout.log_prob[t]
            )
            self.environment.step(
                self._to_environment(rollout.action[t]).flatten(0, 1), out=_slot(rollout, t)
            )
        self._observation.copy_(rollout.observation[horizon].flatten(0, 1))
        self._step_count += horizon
        ended = rollout.terminated | rollout.truncated
        statistics = self._count_episodes(rollout.reward, ended, rollout.valid, rollout.terminated)
        for name in ("count", "return_sum", "length_sum"):
            getattr(rollout.episodes, name).copy_(getattr(statistics, name))
        return horizon

    def rollout_size_bytes(self, horizon: int) -> int:
        """The size of a rollout of this many steps."""
        return self._rollout(horizon, self._buffer).size_bytes

    def state(self) -> dict[str, Tensor]:
        """A copy of the state that the next rollout depends on: environments, running episodes,
        counters; no actor."""
        state = {f"environment.{name}": tensor for name, tensor in self.environment.state().items()}
        state |= {f"episodes.{name}": tensor for name, tensor in self._episodes.state().items()}
        return state | {"step_count": self._step_count.clone()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue exactly where `state` was taken. Raises InvalidInput if something is missing."""
        parts: dict[str, dict[str, Tensor]] = {"environment": {}, "episodes": {}}
        for name, tensor in state.items():
            group, _, key = name.partition(".")
            if group in parts:
                parts[group][key] = tensor
        if "step_count" not in state or not all(parts.values()):
            raise InvalidInput(f"a collector's state has more than {sorted(state)}")
        self._observation.copy_(self.environment.load_state(parts["environment"]))
        self._episodes.load_state(parts["episodes"])
        self._step_count.copy_(state["step_count"])
        if not self.environment.resumes_episodes:
            self._begin_episodes()

    def _begin_episodes(self) -> None:
        """Begin to count the episodes that the environments have just begun."""
        self._episodes.reset()
        if self._ages is not None and self.environment.set_ages(self._ages.flatten()):
            self._episodes.begin_aged(self._ages > 0)

    def _rollout(self, horizon: int, buffer: int) -> Rollout:
        if (horizon, buffer) not in self._rollouts:
            space, head = self.environment.observation_space, self.actor.head
            if space.shape is None:
                raise InvalidInput(f"a collector needs observations of a fixed shape, not {space}")
            self._rollouts[horizon, buffer] = allocate_rollout(
                horizon,
                self.members,
                self.num_envs,
                (space.shape, self._observation.dtype),
                (head.action_shape, head.action_dtype),
                self.environment.device,
                action_mask_size(self.environment.action_space)
                if self.environment.has_action_mask
                else 0,
            )
        return self._rollouts[horizon, buffer]


def _padded(rollout: Rollout, taken: int) -> Rollout:
    """A copy whose rows from `taken` on are those of environments that stand still, and not
    valid."""
    last = rollout.observation[taken]
    copy = replace(rollout, valid=rollout.valid.clone(), truncated=rollout.truncated.clone())
    copy.observation[taken + 1 :], copy.final_observation[taken:], copy.reward[taken:] = (
        last,
        last,
        0.0,
    )
    copy.terminated[taken:], copy.truncated[taken:], copy.valid[taken:] = False, True, False
    if copy.action_mask is not None:
        copy.action_mask[taken + 1 :] = copy.action_mask[taken]
    return copy


def _slot(rollout: Rollout, t: int) -> Step:
    """Row t of a rollout, into which an environment writes its step without a copy."""
    return Step(
        observation=rollout.observation[t + 1].flatten(0, 1),
        reward=rollout.reward[t].view(-1),
        terminated=rollout.terminated[t].view(-1),
        truncated=rollout.truncated[t].view(-1),
        final_observation=rollout.final_observation[t].flatten(0, 1),
        action_mask=None
        if rollout.action_mask is None
        else rollout.action_mask[t + 1].flatten(0, 1),
        valid=rollout.valid[t].view(-1),
    )


class EpisodeTracker:
    """Carries each environment's running return, length and validity, [M, E], from one rollout to
    the next, and whether its episode counts as older than it is."""

    def __init__(self, members: int, num_envs: int, device: torch.device | str = "cpu") -> None:
        self._return = torch.zeros(members, num_envs, dtype=torch.float64, device=device)
        self._length = torch.zeros(members, num_envs, dtype=torch.int64, device=device)
        self._broken = torch.zeros(members, num_envs, dtype=torch.int64, device=device)
        self._aged = torch.zeros(members, num_envs, dtype=torch.bool, device=device)

    def reset(self) -> None:
        """Forget the current episodes: every environment starts a new one."""
        for carried in self._carried().values():
            carried.zero_()

    def begin_aged(self, aged: Tensor) -> None:
        """The current episodes that are `aged`, [M, E] bool, count only if they end before they are
        truncated."""
        self._aged.copy_(aged)

    def update(
        self, reward: Tensor, ended: Tensor, valid: Tensor, terminated: Tensor | None = None
    ) -> EpisodeStatistics:
        """reward [T, M, E], ended and valid [T, M, E] bool -> statistics of the episodes that ended
        in these rows.

        terminated [T, M, E] bool: which of the ends are no cut; None: no episode is aged."""
        horizon = reward.shape[0]
        steps = torch.arange(1, horizon + 1, device=reward.device).view(-1, 1, 1)
        # Row t (from 1) of the episode's last end before t; 0 where its episode began before this
        # rollout.
        end_row = torch.where(ended, steps, 0).cummax(0).values
        before = torch.cat([torch.zeros_like(end_row[:1]), end_row[:-1]])

        def since_start(total: Tensor, carried: Tensor) -> Tensor:
            """The part of each row's own episode in running totals [T + 1, M, E]."""
            return total[1:] - total.gather(0, before) + torch.where(before == 0, carried, 0)

        def running(values: Tensor) -> Tensor:
            return torch.cat([torch.zeros_like(values[:1]), values.cumsum(0)])

        returns = since_start(running(torch.where(valid, reward, 0.0).double()), self._return)
        broken = since_start(running((~valid).long()), self._broken)
        lengths = steps - before + torch.where(before == 0, self._length, 0)
        counted = ended & (broken == 0)
        if terminated is not None:
            counted &= terminated | (before > 0) | ~self._aged
            self._aged &= ~ended.any(0)
        statistics = EpisodeStatistics(
            count=counted.sum((0, 2)),
            return_sum=torch.where(counted, returns, 0.0).sum((0, 2)),
            length_sum=torch.where(counted, lengths, 0).sum((0, 2)),
        )
        for carried, last in (
            (self._return, returns),
            (self._length, lengths),
            (self._broken, broken),
        ):
            carried.copy_(torch.where(ended[-1], 0, last[-1]))
        return statistics

    def state(self) -> dict[str, Tensor]:
        """Copies of what is carried, [M, E] each."""
        return {name: carried.clone() for name, carried in self._carried().items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go back to what `state` gave."""
        for name, carried in self._carried().items():
            carried.copy_(state[name])

    def _carried(self) -> dict[str, Tensor]:
        return {
            "return": self._return,
            "length": self._length,
            "broken": self._broken,
            "aged": self._aged,
        }

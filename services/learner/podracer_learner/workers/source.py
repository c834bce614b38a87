"""Rollouts from workers, which share the environments of every member; joined into one, in which
every environment has its place."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from podracer.worker.v1 import worker_service_pb2
from podracer_core.algorithms import Algorithm
from podracer_core.buffers import EpisodeStatistics, Rollout, allocate_rollout
from podracer_core.device import map_tensors
from podracer_core.errors import InvalidInput, TimeUp
from podracer_core.training import (
    MOST_AHEAD,
    EnvironmentState,
    PaceTrial,
    RolloutSource,
    WorldBreak,
    stack_states,
    unstack_states,
)
from podracer_learner.peers import WorkerDirectory
from podracer_learner.workers.crew import WorkerCrew, WorkerPlan
from podracer_learner.workers.link import Arrival, Weights, WorkerLink
from podracer_learner.workers.partition import Part, Share, remaining_wait_s
from podracer_platform.carriers import TensorEncoder, encode_tensor
from podracer_platform.messages import seconds_to_duration
from podracer_platform.rpc import parse_address
from podracer_platform.service import own_build

logger = logging.getLogger(__name__)

_ABSENT_GRACE_S = 2.0  # processes that are started together listen within less of each other
_POLL_S = 0.2


class RemoteSource(RolloutSource):
    """Collects through workers, which may join and leave at any time (`WorkerCrew`).

    Once half of the environments have answered (`has_quorum`), a rollout continues without lost and
    late workers. Their rows are present but invalid, so that minibatches keep their shapes. A late
    part joins the next rollout, unless it is older than the algorithm can use. While fewer have
    answered, it waits until patience ends, then raises Unavailable.

    It begins in lock-step: every rollout is of the newest weights. If collecting and training take
    about equally long (`PaceTrial`), workers collect the next rollouts while the learner trains on
    this one, which is then some versions old. With `lock_step` that never happens, all workers are
    waited for, and environments' states are known."""

    def __init__(
        self,
        plan: WorkerPlan,
        directory: WorkerDirectory,
        algorithm: Algorithm,
        step_count: Tensor,
        states: Sequence[EnvironmentState | None],
    ) -> None:
        """Starts opening the sessions, without waiting. step_count int64 [M]: steps per environment
        that each agent has taken; `states`: of its environments, to continue from; None: new
        episodes."""
        self._plan, self._algorithm = plan, algorithm
        self._encoder = TensorEncoder()
        self._step_count, self._states = step_count.clone(), list(states)
        self._standing: Tensor | None = None
        self._pace = PaceTrial(0 if plan.lock_step else plan.ahead)
        self._threads = torch.get_num_threads()
        self._greatest_lag, self._live_environments = 0, 0
        self._breaks: list[WorldBreak] = []
        self._crew = WorkerCrew(plan, directory, self._opening)

    @property
    def figures(self) -> dict[str, float]:
        return {
            "workers": self.worker_count,
            "live_environments": self._live_environments,
            "staleness": self.staleness,
            "staleness_greatest": self._greatest_lag,
            "collected_ahead": self._pace.ahead,
        }

    def opened(self) -> None:
        """Wait until all sessions are open; half of them are enough if the others do not open
        within some seconds. Raises UserCodeFailed if the environment does not start, and the errors
        of `WorkerCrew.poll`."""
        began_at = time.monotonic()

        def grace_s(link: WorkerLink) -> float:
            if self._plan.lock_step:
                return math.inf
            limit_s = self._crew.usual.grace_s if link.lost_since is None else _ABSENT_GRACE_S
            return began_at + limit_s - time.monotonic()

        while True:
            self._crew.poll()
            wait_s = remaining_wait_s(
                [Share(one.environments, one.opened, grace_s(one)) for one in self._crew.links]
            )
            if wait_s <= 0:
                return
            self._crew.wait(min(wait_s, _POLL_S))

    def collect(self) -> Rollout:
        self._pace.wait()
        self._crew.regroup()
        weights = Weights.of(self._algorithm, self._encoder)
        links, arrivals = self._await(weights)
        self._pace.go_on()
        self._share_cores(links)
        self._remember(arrivals)
        if self._pace.ahead and self._crew.change_due() is None:
            for link in links:
                link.keep_busy(weights, self._pace.ahead)
        self._measure(arrivals)
        rollouts = [None if arrival is None else arrival.rollout for arrival in arrivals]
        parts, device = [link.part for link in links], self._algorithm.device
        rollout = whole_rollout(parts, rollouts, self._standing, device)
        if len(links) > 1:
            self._standing = rollout.observation[-1].clone()
        # A part that came late has begun at an earlier step of its own: the members' clock is the
        # learner's.
        first_step = (self._step_count - self._plan.horizon).to(rollout.first_step.device)
        return replace(rollout, first_step=first_step)

    def take_breaks(self) -> list[WorldBreak]:
        breaks, self._breaks = self._breaks, []
        return breaks

    def environment_states(self) -> list[EnvironmentState] | None:
        known = [state for state in self._states if state is not None]
        return known if self._plan.lock_step and len(known) == len(self._states) else None

    def close(self) -> None:
        torch.set_num_threads(self._threads)
        self._crew.close()

    def _share_cores(self, links: Sequence[WorkerLink]) -> None:
        """Leave cores to workers of this machine that collect during training; otherwise they take
        turns."""
        beside = any(parse_address(link.address).is_local for link in links)
        threads = 1 if self._pace.ahead and beside else self._threads
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)

    def _await(self, weights: Weights) -> tuple[Sequence[WorkerLink], Sequence[Arrival | None]]:
        """The workers in the order of their parts, and the rollout of each that answered in
        time."""
        crew = self._crew
        rollouts = 1 if crew.change_due() is not None else max(self._pace.ahead, 1)
        while True:
            crew.poll()
            for link in crew.links:
                self._drop_old(link)
                link.keep_busy(weights, rollouts)
            wait_s = self._remaining_wait_s()
            if wait_s <= 0:
                break
            if self.halted():
                raise TimeUp("the time for training was over before a rollout had arrived")
            crew.wait(min(wait_s, _POLL_S))
        grace_s = crew.usual.grace_s
        for link in crew.links:
            link.late = (
                link.times.last_duration_s > grace_s if link.arrivals else link.late or link.opened
            )
        durations = [
            link.times.last_duration_s for link in crew.links if link.arrivals and not link.late
        ]
        if durations:
            crew.usual.add(max(durations))
        return list(crew.links), [
            link.arrivals.popleft() if link.arrivals else None for link in crew.links
        ]

    def _remaining_wait_s(self) -> float:
        crew, now = self._crew, time.monotonic()
        if self._plan.lock_step:
            return 0.0 if crew.links and all(link.arrivals for link in crew.links) else math.inf

        def grace_s(link: WorkerLink) -> float:
            if link.late or link.lost_since is not None:
                return 0.0
            return crew.usual.grace_s - link.age_s(now)

        return remaining_wait_s(
            [Share(link.environments, bool(link.arrivals), grace_s(link)) for link in crew.links]
        )

    def _lag(self, arrival: Arrival) -> int:
        """How many versions old a rollout is."""
        return self._algorithm.version - arrival.rollout.policy_version

    def _drop_old(self, link: WorkerLink) -> None:
        while link.arrivals and (lag := self._lag(link.arrivals[0])) > self._algorithm.max_lag:
            self.used_s += link.arrivals.popleft().processor_s
            text = "a rollout of worker %s is %d versions old and was dropped"
            logger.info(text, link.address, lag)

    def _opening(self, part: Part, ahead: int) -> worker_service_pb2.OpenCollect:
        """`ahead`: rollouts of the part that have arrived and will be used: the session's random
        numbers continue after theirs."""
        first, count = part
        step_count = self._step_count + ahead * self._plan.horizon
        state = stack_states(self._states, first, count) | {"step_count": step_count}
        return worker_service_pb2.OpenCollect(
            build=own_build(),
            cohort=self._plan.cohort,
            envs_per_member=count,
            first_env_index=self._plan.first_environment + first,
            horizon=self._plan.horizon,
            max_in_flight=1 if self._plan.lock_step else MOST_AHEAD,
            deterministic=self._plan.lock_step,
            environment_state={name: encode_tensor(tensor) for name, tensor in state.items()},
            rollout_time=seconds_to_duration(self._plan.rollout_s)
            if self._plan.rollout_s
            else None,
        )

    def _remember(self, arrivals: Sequence[Arrival | None]) -> None:
        """Remember the environments' states: a reopened session continues from there."""
        self._step_count = self._step_count + self._plan.horizon
        parts = [
            unstack_states(one.environment_state)
            for one in arrivals
            if one is not None and one.environment_state
        ]
        if len(parts) == len(arrivals):
            self._states = [
                join_states([part[member] for part in parts]) for member in range(len(parts[0]))
            ]
        else:
            self._states = [None] * len(self._states)

    def _measure(self, arrivals: Sequence[Arrival | None]) -> None:
        there = [arrival for arrival in arrivals if arrival is not None]
        lags = [self._lag(arrival) for arrival in there]
        counts = [arrival.rollout.num_envs for arrival in there]
        self.staleness = sum(lag * count for lag, count in zip(lags, counts, strict=True)) / sum(
            counts
        )
        self.worker_count = self._crew.connected
        self.used_s += sum(arrival.processor_s for arrival in there)
        self._breaks += [each for arrival in there for each in arrival.breaks]
        self._greatest_lag = max(lags)
        self._live_environments = sum(arrival.live_environments for arrival in there)


_OF_ALL = ("first_step", "episodes", "policy_version", "action_mask", "answered")


def join_rollouts(rollouts: Sequence[Rollout]) -> Rollout:
    """Join rollouts of the same members in different environments along the environment axis. The
    result is as old as its oldest part; each row keeps the log-probability under the policy that
    acted.

    Raises InvalidInput if only some have action masks.
    """
    if len(rollouts) == 1:
        return rollouts[0]
    joined = {
        field.name: torch.cat([getattr(rollout, field.name) for rollout in rollouts], 2)
        for field in fields(Rollout)
        if field.name not in _OF_ALL
    }
    episodes = EpisodeStatistics(
        **{
            field.name: torch.stack(
                [getattr(rollout.episodes, field.name) for rollout in rollouts]
            ).sum(0)
            for field in fields(EpisodeStatistics)
        }
    )
    masks = [rollout.action_mask for rollout in rollouts if rollout.action_mask is not None]
    if len(masks) not in (0, len(rollouts)):
        raise InvalidInput(
            f"{len(masks)} of {len(rollouts)} workers sent action masks; all or none have to"
        )
    live_envs = sum(rollout.live_envs for rollout in rollouts)
    return replace(
        rollouts[0],
        **joined,
        episodes=episodes,
        policy_version=min(rollout.policy_version for rollout in rollouts),
        action_mask=torch.cat(masks, 2) if masks else None,
        answered=None if live_envs == joined["reward"].shape[2] else live_envs,
    )


def whole_rollout(
    parts: Sequence[Part],
    rollouts: Sequence[Rollout | None],
    standing: Tensor | None,
    device: torch.device,
) -> Rollout:
    """All parts joined on the device; missing parts have no valid row. At least one part has
    arrived.

    standing [M, N, *obs]: as of `absent_rows`, of all environments.
    """
    like = next(rollout for rollout in rollouts if rollout is not None)
    present = []
    for (first, count), rollout in zip(parts, rollouts, strict=True):
        stands = None if standing is None else standing[:, first : first + count]
        present.append(absent_rows(like, count, stands) if rollout is None else rollout)
    # workers have brought theirs by different carriers, some to the device already
    if device.type != "cpu":
        present = [moved_to(rollout, device) for rollout in present]
    return join_rollouts(present)


def join_states(parts: Sequence[EnvironmentState | None]) -> EnvironmentState | None:
    """The joined states of one member's environments; None if those of a part are unknown."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return {
        name: torch.cat([part[name] for part in known]) if one.dim() else one
        for name, one in known[0].items()
    }


def absent_rows(like: Rollout, environments: int, standing: Tensor | None) -> Rollout:
    """A rollout of `environments` of each member that have not answered, of the shapes of `like`:
    no row is valid.

    standing [M, environments, *obs]: the observations after their last rows. They are repeated, so
    that those rows keep their successors; None: zeros, as there were no rows yet."""
    rollout = allocate_rollout(
        like.horizon,
        like.members,
        environments,
        (like.observation.shape[3:], like.observation.dtype),
        (like.action.shape[3:], like.action.dtype),
        like.reward.device,
        0 if like.action_mask is None else like.action_mask.shape[-1],
    )
    rollout.valid.fill_(False)
    if standing is not None:
        rollout.observation.copy_(standing)
        rollout.final_observation.copy_(standing)
    return replace(rollout, policy_version=like.policy_version, answered=0)


def moved_to(rollout: Rollout, device: torch.device) -> Rollout:
    """The rollout on another device."""
    return map_tensors(rollout, lambda tensor: tensor.to(device, non_blocking=True))

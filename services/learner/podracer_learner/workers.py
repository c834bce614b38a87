"""Rollouts from workers, which share the environments of every member between them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import grpc
import torch
from torch import Tensor

from podracer.common.v1 import cohort_pb2, environment_pb2
from podracer.worker.v1 import worker_service_pb2, worker_service_pb2_grpc
from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.buffers.rollout import EpisodeStatistics, Rollout
from podracer_core.build import own_build
from podracer_core.carriers.inline import TensorEncoder, encode_tensor
from podracer_core.errors import InvalidInput
from podracer_core.training.environment_states import EnvironmentState, stack_states, unstack_states
from podracer_core.training.source import RolloutSource
from podracer_learner.pace_trial import PaceTrial
from podracer_learner.starts import Starts
from podracer_learner.user_files import FetchedFiles
from podracer_learner.worker_link import Arrival, Patience, WorkerLink

__all__ = ["RemoteSource", "WorkerPlan"]

logger = logging.getLogger(__name__)

_SILENCE_S = 300.0
_OF_ALL = ("first_step", "episodes", "policy_version", "action_mask")


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What all workers of a learner are asked for.

    files       of the environment
    lock_step   always: a rollout begins only on the weights that answer the one before
    patience_s  how long a lost worker is waited for
    check       is called while waiting; raises to give up
    """

    cohort: cohort_pb2.CohortSpec
    files: FetchedFiles
    envs_per_member: int
    horizon: int
    lock_step: bool
    patience_s: float
    check: Callable[[], None]


class RemoteSource(RolloutSource):
    """Collects through workers. A lost one is looked for again until patience ends, then Unavailable is raised.

    It begins in lock-step: every rollout is of the newest weights. Where collecting and training take about as long as
    each other (`PaceTrial`), workers soon collect the next rollout while the learner trains on this one, which is then
    one version old. With `lock_step` that never happens, and environments' states are known.
    """

    def __init__(self, plan: WorkerPlan, channels: Mapping[str, grpc.Channel], starts: Starts) -> None:
        """Opens the sessions, without waiting for them. `channels` by address; surplus workers are left alone."""
        self._plan = plan
        self._algorithm: Algorithm | None = None
        self._encoder = TensorEncoder()
        self._step_count = starts.step_count.clone()
        self._states = list(starts.environments)
        self._asked = False
        self._pace = PaceTrial()
        patience = Patience(plan.patience_s, _SILENCE_S, plan.check)
        addresses = list(channels)[: plan.envs_per_member]
        if not addresses:
            raise InvalidInput("the split layout needs workers (PODRACER_WORKERS)", reason="NO_WORKERS")
        edges = [plan.envs_per_member * index // len(addresses) for index in range(len(addresses) + 1)]
        self._links = [
            WorkerLink(
                address,
                worker_service_pb2_grpc.WorkerServiceStub(channels[address]),
                (edges[index], edges[index + 1] - edges[index]),
                self._opening,
                plan.files,
                patience,
            )
            for index, address in enumerate(addresses)
        ]
        for link in self._links:
            link.connect()

    def opened(self) -> environment_pb2.EnvironmentDescription:
        """Wait until all sessions are open; returns the environment as it was started. Errors as of `WorkerLink`."""
        descriptions = [link.opened() for link in self._links]
        return descriptions[0]

    def serve(self, algorithm: Algorithm) -> None:
        """Collect for this algorithm from now on."""
        self._algorithm = algorithm

    def collect(self) -> Rollout:
        algorithm = self._served()
        while True:
            self._pace.wait()
            if not self._asked:
                self._ask(algorithm)
            arrivals = [link.rollout() for link in self._links]
            self._asked = False
            self._pace.go_on()
            self._remember(arrivals)
            if self._pace.collect_ahead and not self._plan.lock_step:
                self._ask(algorithm)
            rollout = join_rollouts([arrival.rollout for arrival in arrivals])
            self.staleness = algorithm.version - rollout.policy_version
            self.worker_count = sum(link.connected for link in self._links)
            if self.staleness <= algorithm.max_lag:
                return rollout if algorithm.device.type == "cpu" else _moved(rollout, algorithm.device)
            logger.info("a rollout is %d versions old and was dropped", self.staleness)

    def environment_states(self) -> list[EnvironmentState] | None:
        known = [state for state in self._states if state is not None]
        return known if self._plan.lock_step and len(known) == len(self._states) else None

    def close(self) -> None:
        for link in self._links:
            link.close()

    def _served(self) -> Algorithm:
        if self._algorithm is None:
            raise InvalidInput("nobody trains on these rollouts yet")
        return self._algorithm

    def _ask(self, algorithm: Algorithm) -> None:
        request = self._request(algorithm)
        for link in self._links:
            link.ask(request, partial(self._request, algorithm))
        self._asked = True

    def _request(self, algorithm: Algorithm) -> list[worker_service_pb2.CollectRequest]:
        """The newest weights, and the wish for one rollout on them."""
        tensors, chunks = self._encoder.encode(algorithm.actor_state())
        version = algorithm.version + 1  # on the wire versions count from 1
        update = worker_service_pb2.ActorUpdate(policy_version=version, normalizer_version=version, tensors=tensors)
        order = worker_service_pb2.RolloutRequest(count=1, with_environment_state=self._plan.lock_step)
        return [
            worker_service_pb2.CollectRequest(actor_update=update),
            *(worker_service_pb2.CollectRequest(chunk=chunk) for chunk in chunks),
            worker_service_pb2.CollectRequest(rollout_request=order),
        ]

    def _opening(self, first: int, count: int) -> worker_service_pb2.OpenCollect:
        state = stack_states(self._states, first, count) | {"step_count": self._step_count}
        return worker_service_pb2.OpenCollect(
            build=own_build(),
            cohort=self._plan.cohort,
            envs_per_member=count,
            first_env_index=first,
            horizon=self._plan.horizon,
            max_in_flight=1,
            deterministic=self._plan.lock_step,
            environment_state={name: encode_tensor(tensor) for name, tensor in state.items()},
        )

    def _remember(self, arrivals: Sequence[Arrival]) -> None:
        """Where the environments stand now: a session that has to be opened again goes on from there."""
        self._step_count = arrivals[0].rollout.first_step + self._plan.horizon
        parts = [unstack_states(arrival.environment_state) for arrival in arrivals if arrival.environment_state]
        if len(parts) == len(arrivals):
            self._states = [_joined_state([part[member] for part in parts]) for member in range(len(parts[0]))]
        else:
            self._states = [None] * len(self._states)


def join_rollouts(rollouts: Sequence[Rollout]) -> Rollout:
    """Rollouts of the same members in different environments, put side by side along the environment axis.

    Raises InvalidInput where only some have action masks.
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
            field.name: torch.stack([getattr(rollout.episodes, field.name) for rollout in rollouts]).sum(0)
            for field in fields(EpisodeStatistics)
        }
    )
    masks = [rollout.action_mask for rollout in rollouts if rollout.action_mask is not None]
    if len(masks) not in (0, len(rollouts)):
        raise InvalidInput(f"{len(masks)} of {len(rollouts)} workers sent action masks; all or none have to")
    action_mask = torch.cat(masks, 2) if masks else None
    version = min(rollout.policy_version for rollout in rollouts)
    return replace(rollouts[0], **joined, episodes=episodes, policy_version=version, action_mask=action_mask)


def _joined_state(parts: Sequence[EnvironmentState | None]) -> EnvironmentState | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return {name: torch.cat([part[name] for part in known]) if one.dim() else one for name, one in known[0].items()}


def _moved(rollout: Rollout, device: torch.device) -> Rollout:
    def moved(value: Tensor | EpisodeStatistics | int | None) -> Tensor | EpisodeStatistics | int | None:
        if isinstance(value, EpisodeStatistics):
            return EpisodeStatistics(**{one.name: getattr(value, one.name).to(device) for one in fields(value)})
        return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value

    return Rollout(**{field.name: moved(getattr(rollout, field.name)) for field in fields(Rollout)})  # type: ignore[arg-type]

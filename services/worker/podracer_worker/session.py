"""A learner's session: messages in its reading thread, collecting in the main thread."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from podracer.common.v1 import environment_pb2, tensor_pb2
from podracer.worker.v1 import worker_service_pb2
from podracer_core.algorithms import CohortConfig, algorithm_class
from podracer_core.buffers import Rollout
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments import (
    VecEnvironment,
    device_for,
    from_gymnasium,
    make_vec_environment,
    require_device,
)
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.training import (
    EnvironmentState,
    WorldBreak,
    first_breaks,
    member_environment_states,
    processor_seconds,
    resume_environments,
    stack_states,
    unstack_states,
)
from podracer_platform.attachments import FileCache, PlacedEnvironment, place_environment
from podracer_platform.carriers import (
    Endpoint,
    Payload,
    SlotWriter,
    TensorDecoder,
    TensorEncoder,
    carrier_name,
    choose,
    chunk_messages,
)
from podracer_platform.messages import (
    description_to_message,
    environment_from_message,
    seconds_from_duration,
)
from podracer_platform.rpc import WorkQueue, WorkSession
from podracer_platform.service import own_build, require_same_build
from podracer_platform.shared_folder import SharedFolder
from podracer_platform.telemetry import ROLLOUT, WORKER_STEPS, Span, span
from podracer_platform.training_messages import break_to_message, cohort_from_message

STEP_COUNT = "step_count"

_MAX_ENVIRONMENTS = 1 << 20  # of all members
_MAX_HORIZON = 1 << 20
_MAX_STEP_COUNT = 1 << 62


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """The options of a learner's session.

    state   "step_count" [M]: steps that each agent has taken; with the environments' states
            (`stack_states`) they continue from there
    rollout_s  seconds after which a rollout ends; the rest of its rows are not valid
    """

    cohort: CohortConfig
    environment: EnvironmentSpec
    envs_per_member: int
    first_env_index: int
    horizon: int
    device: str
    state: Mapping[str, Tensor]
    rollout_s: float = math.inf

    def __post_init__(self) -> None:
        most = _MAX_ENVIRONMENTS // len(self.cohort.members)
        limits = {
            "envs_per_member": (1, most),
            "horizon": (1, _MAX_HORIZON),
            "first_env_index": (0, (1 << 31) - 1),
        }
        violations = [
            FieldViolation(name, f"expected {low} to {high}, got {getattr(self, name)}")
            for name, (low, high) in limits.items()
            if not low <= getattr(self, name) <= high
        ]
        if violations:
            raise InvalidInput("; ".join(map(str, violations)), violations=violations)


class Collection:
    """Collects with the newest weights that it has received, in one thread."""

    def __init__(self, plan: CollectionPlan, check: Callable[[], None] = lambda: None) -> None:
        """Starts the environments. `check` raises to cancel a rollout. Raises UserCodeFailed if
        they do not start, InvalidInput if memory is too small or the state is of another cohort."""
        self._plan, self._check = plan, check
        members = len(plan.cohort.members)
        self.environment: VecEnvironment = make_vec_environment(
            plan.environment, members * plan.envs_per_member, plan.device
        )
        try:
            self._actor = algorithm_class(plan.cohort.algorithm).make_actor(
                plan.cohort,
                self.environment.observation_space,
                self.environment.action_space,
                plan.device,
            )
            self._collector = self._make_collector()
        except Exception:
            self.environment.close()
            raise

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Use these weights from the next rollout on. Raises InvalidInput if they are of another
        cohort."""
        self._actor.load_state(tensors)

    def collect(self, policy_version: int) -> Rollout:
        """The next rollout; the following one overwrites it."""
        ends_at = time.monotonic() + self._plan.rollout_s
        self._collector.halted = lambda: time.monotonic() >= ends_at
        return self._collector.collect(
            self._plan.horizon, policy_version=policy_version, padded=True
        )

    @property
    def rollout_size_bytes(self) -> int:
        """The largest size of a rollout."""
        return self._collector.rollout_size_bytes(self._plan.horizon)

    def take_breaks(self) -> list[WorldBreak]:
        """See `RolloutSource.take_breaks`."""
        return first_breaks(self._collector)

    def environment_state(self) -> dict[str, Tensor]:
        """The environments' states, in the form of `CollectionPlan.state`."""
        states: list[EnvironmentState | None] = list(member_environment_states(self._collector))
        return stack_states(states, 0, self._plan.envs_per_member)

    def close(self) -> None:
        """Close the environments."""
        self.environment.close()

    def _make_collector(self) -> Collector:
        plan, state = self._plan, self._plan.state
        members = len(plan.cohort.members)
        first_step = state.get(STEP_COUNT, torch.zeros(members, dtype=torch.int64))
        if first_step.shape != (members,) or first_step.dtype != torch.int64:
            raise InvalidInput(
                f"step_count must be int64 [{members}], not {first_step.dtype} "
                f"{list(first_step.shape)}"
            )
        if not bool(((first_step >= 0) & (first_step <= _MAX_STEP_COUNT)).all()):
            raise InvalidInput(
                f"step_count must be 0 to {_MAX_STEP_COUNT}, not {first_step.tolist()}"
            )
        collector = Collector(
            self.environment,
            self._actor,
            torch.tensor([member.seed for member in plan.cohort.members]),
            first_step=first_step,
            first_environment=plan.first_env_index,
            session=first_step,
            check=self._check,
        )
        if set(state) - {STEP_COUNT}:
            resume_environments(collector, unstack_states(state))
        return collector


logger = logging.getLogger(__name__)

_STATE = "environment_state/"
_MAX_IN_FLIGHT = 8
# of a rollout with its environments' state; whatever finds no room in a slot goes inline
_MAX_TENSORS = 32
_SLOT_WAIT_S = 1.0


class CollectSession(WorkSession):
    """See the contract of `Collect`. Weights are replaced as they arrive; a rollout uses the newest
    ones."""

    def __init__(
        self,
        work: WorkQueue,
        count_steps: Callable[[int], None],
        device: str,
        cache: FileCache,
        folder: SharedFolder,
    ) -> None:
        """`count_steps` is called with environment steps; `device`: the default device; `cache`:
        the files of users' environments; `folder`: for shared rollouts."""
        super().__init__(work)
        self._count_steps = count_steps
        self._device = device
        self._cache = cache
        self._folder = folder
        self._placed: PlacedEnvironment | None = None
        self._decoder, self._encoder = TensorDecoder(), TensorEncoder()
        self._slots: SlotWriter | None = None  # where rollouts do not go inline
        self._incoming = worker_service_pb2.ActorUpdate()  # waits for its chunks
        self._collection: Collection | None = None
        self._lock_step = False
        self._weights: deque[tuple[worker_service_pb2.ActorUpdate, dict[str, Tensor]]] = deque(
            maxlen=1
        )
        self._version, self._normalizer_version = 0, 0
        self._fresh_weights = False
        # of a lock-step session, wait for weights
        self._owed: list[worker_service_pb2.RolloutRequest] = []
        self._ordered = self._gone = 0  # rollouts that were asked for, and those that are out
        self._told_s = processor_seconds()  # what the learner has been told of

    def take(self, kind: str, request: worker_service_pb2.CollectRequest) -> None:
        if kind == "actor_update":
            if request.actor_update.policy_version < 1:
                version = request.actor_update.policy_version
                raise InvalidInput(
                    f"versions of policies count from 1, not {version}", reason="BAD_SESSION"
                )
            self._incoming = request.actor_update
            self._take_weights(self._decoder.begin(request.actor_update.tensors))
        elif kind == "chunk":
            self._take_weights(self._decoder.add(request.chunk))
        elif kind == "rollout_request":
            self._order(request.rollout_request)
        elif kind == "slot_return":
            self._take_back(request.slot_return)
        else:
            raise InvalidInput("an empty message came", reason="BAD_SESSION")

    def drain(self) -> None:
        self.outbox.put(
            worker_service_pb2.CollectResponse(
                draining=worker_service_pb2.Draining(reason="the worker is stopping")
            )
        )
        self.outbox.close()

    def open(self, request: worker_service_pb2.OpenCollect) -> None:
        require_same_build(request.build)
        if not request.cohort.members:
            raise InvalidInput("a session needs a cohort", reason="BAD_SESSION")
        environment = environment_from_message(request.cohort.environment)
        plan = CollectionPlan(
            cohort=cohort_from_message(request.cohort),
            environment=environment,
            envs_per_member=request.envs_per_member,
            first_env_index=request.first_env_index,
            horizon=request.horizon,
            device=require_device(device_for(request.device or self._device, environment)),
            state=_state(request),
            rollout_s=seconds_from_duration(request.rollout_time)
            if request.HasField("rollout_time")
            else math.inf,
        )
        in_flight = request.max_in_flight or 1
        if not 0 < in_flight <= _MAX_IN_FLIGHT:
            raise InvalidInput(
                f"max_in_flight is 1 to {_MAX_IN_FLIGHT}, or unset for 1, not {in_flight}"
            )
        self._lock_step = request.deterministic
        start = partial(self._start, plan, request.carriers, in_flight)
        self.submit(start, span("start environments", request.traceparent))

    def _take_weights(self, complete: bool) -> None:
        if not complete:
            return
        self._weights.append((self._incoming, self._decoder.take()))
        if self._lock_step:
            self.submit(self._pay)

    def _order(self, request: worker_service_pb2.RolloutRequest) -> None:
        if not 0 < request.count <= _MAX_IN_FLIGHT:
            raise InvalidInput(
                f"1 to {_MAX_IN_FLIGHT} rollouts can be asked for at once, not {request.count}"
            )
        under_way = self._ordered - self._gone
        if under_way + request.count > _MAX_IN_FLIGHT:
            raise InvalidInput(
                f"{under_way} rollouts are under way, {request.count} more would be above "
                f"{_MAX_IN_FLIGHT}",
                reason="TOO_MANY_ROLLOUTS",
            )
        self._ordered += request.count
        for _ in range(request.count):
            self.submit(partial(self._collect, request))

    def _take_back(self, message: tensor_pb2.SlotReturn) -> None:
        if self._slots is None:
            raise InvalidInput(
                "a slot was returned to a session without any", reason="BAD_SLOT_RETURN"
            )
        self._slots.take_back(message)

    def _start(self, plan: CollectionPlan, offer: tensor_pb2.CarrierOffer, in_flight: int) -> None:
        self._placed = place_environment(plan.environment, self._cache)
        self._collection = Collection(
            replace(plan, environment=self._placed.spec), self.require_wanted
        )
        endpoint = Endpoint(self._folder, sends=True, device=torch.device(plan.device))
        payload = Payload(self._collection.rollout_size_bytes, _MAX_TENSORS, in_flight)
        choice, staging = choose(offer, endpoint, payload)
        if staging is not None:
            self._slots = SlotWriter(staging, _SLOT_WAIT_S)
            self._encoder = TensorEncoder(slots=self._slots)
        logger.info("a session is open; rollouts go out by %s", carrier_name(choice.kind))
        self.outbox.put(
            worker_service_pb2.CollectResponse(
                opened=worker_service_pb2.CollectOpened(
                    build=own_build(),
                    carrier=choice,
                    environment=_description(plan.environment, self._collection.environment),
                )
            )
        )

    def _pay(self) -> None:
        """New weights have arrived in a lock-step session: rollouts that waited for them can be
        collected."""
        if self._owed:
            self._collect(self._owed.pop(0))

    def _collect(self, request: worker_service_pb2.RolloutRequest) -> None:
        collection = self._collection
        if collection is None:
            return  # it did not start; the session has ended with the reason
        if self._weights:
            update, tensors = self._weights.pop()
            collection.load_weights(tensors)
            self._version = update.policy_version
            self._normalizer_version = update.normalizer_version
            self._fresh_weights = True
        if not self._version:
            raise InvalidInput(
                "a rollout was asked for before any weights came", reason="BAD_SESSION"
            )
        if self._lock_step and not self._fresh_weights:
            self._owed.append(request)
            return
        self._fresh_weights = False
        with (
            span("collect rollout", request.traceparent, policy_version=self._version) as own,
            ROLLOUT.timed(),
        ):
            self._send(collection, request, own)

    def _send(
        self, collection: Collection, request: worker_service_pb2.RolloutRequest, own: Span
    ) -> None:
        """Collect a rollout and put it into the outbox."""
        start = time.monotonic()
        rollout = collection.collect(self._version)
        tensors = rollout.to_tensors()
        if request.with_environment_state:
            tensors |= {
                _STATE + name: tensor for name, tensor in collection.environment_state().items()
            }
        messages, chunks = self._encoder.encode(tensors)
        state = {
            name.removeprefix(_STATE): messages.pop(name)
            for name in list(messages)
            if name.startswith(_STATE)
        }
        valid = int(rollout.valid.sum())
        own.set(steps=valid)
        batch = worker_service_pb2.RolloutBatch(
            tensors=messages,
            policy_versions=[self._version],
            normalizer_version=self._normalizer_version,
            live_environments=int(rollout.valid.any(0).sum()),
            environment_state=state,
            duration_s=time.monotonic() - start,
            processor_s=max(0.0, (used_s := processor_seconds()) - self._told_s),
            breaks=map(break_to_message, collection.take_breaks()),
        )
        self._told_s = used_s
        responses = [worker_service_pb2.CollectResponse(rollout=batch)]
        responses += chunk_messages(worker_service_pb2.CollectResponse, chunks)
        # before it leaves: a status that is asked for after a rollout counts it
        self._count_steps(valid)
        WORKER_STEPS.add(valid)
        for response in responses[:-1]:
            self.outbox.put(response)
        self.outbox.put(responses[-1], self._is_out)

    def _is_out(self) -> None:
        """A rollout has left; called in one thread only."""
        self._gone += 1

    def release(self) -> None:
        if self._slots is not None:
            self._slots.close()
        collection, self._collection = self._collection, None
        if collection is not None:
            collection.close()
        if self._placed is not None:
            self._placed.close()


def _state(request: worker_service_pb2.OpenCollect) -> dict[str, Tensor]:
    decoder = TensorDecoder()
    if not decoder.begin(request.environment_state):
        raise InvalidInput("environment_state has to come inline", reason="BAD_TENSOR")
    return decoder.take()


def _description(
    spec: EnvironmentSpec, environment: VecEnvironment
) -> environment_pb2.EnvironmentDescription:
    spaces = from_gymnasium(environment.observation_space), from_gymnasium(environment.action_space)
    return description_to_message(spec, *spaces, environment.max_episode_steps)

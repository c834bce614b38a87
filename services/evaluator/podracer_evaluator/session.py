"""A learner's session: messages in its reading thread, evaluating in the main thread, a newer look
before an older."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from podracer.common.v1 import agent_pb2, tensor_pb2
from podracer.evaluator.v1 import evaluator_service_pb2
from podracer_core.algorithms import CohortConfig
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import require_device
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.evaluate import EvaluationResult
from podracer_core.sections import MAX_EPISODES
from podracer_core.training import PolicyEvaluation
from podracer_platform.attachments import FileCache, PlacedEnvironment, place_environment
from podracer_platform.carriers import (
    Endpoint,
    Payload,
    SlotReader,
    Staging,
    TensorDecoder,
    carrier_name,
    choose,
)
from podracer_platform.messages import (
    environment_from_message,
    seconds_from_duration,
    seconds_to_duration,
)
from podracer_platform.rpc import WorkQueue, WorkSession
from podracer_platform.service import own_build, require_same_build
from podracer_platform.shared_folder import SharedFolder
from podracer_platform.telemetry import EVALUATION, EVALUATOR_QUEUE, span
from podracer_platform.training_messages import cohort_from_message, result_to_message

logger = logging.getLogger(__name__)

_MAX_WAITING = 64
_ORDERS_IN_FLIGHT = 2  # a slot is free again as soon as its order has been read


@dataclass(frozen=True, slots=True)
class _Order:
    message: evaluator_service_pb2.EvaluationOrder
    tensors: dict[str, Tensor]

    def gives_way_to(self, newer: _Order) -> bool:
        """Whether a newer order replaces this one. Only looks give way: a chosen candidate awaits
        its answer."""
        progress = agent_pb2.EVALUATION_PURPOSE_PROGRESS
        both = self.message.purpose == newer.message.purpose == progress
        return both and list(self.message.agents) == list(newer.message.agents)


class EvaluateSession(WorkSession):
    """See the contract of `Evaluate`."""

    def __init__(
        self,
        work: WorkQueue,
        count_episodes: Callable[[int, str], None],
        cache: FileCache,
        folder: SharedFolder,
    ) -> None:
        """`count_episodes` takes a number and the purpose's name, `cache` has the files of users'
        environments, `folder` is where policies may cross."""
        super().__init__(work)
        self._count_episodes, self._cache, self._folder = count_episodes, cache, folder
        self._placed: PlacedEnvironment | None = None
        self._decoder = TensorDecoder()
        self._staging: Staging | None = None
        self._incoming = evaluator_service_pb2.EvaluationOrder()  # waits for its chunks
        self._lock = threading.Lock()
        self._waiting: list[_Order] = []
        self._evaluation: PolicyEvaluation | None = None

    def take(self, kind: str, request: evaluator_service_pb2.EvaluateRequest) -> None:
        if kind == "order":
            self._incoming = request.order
            self._take_order(self._decoder.begin(request.order.tensors))
        elif kind == "chunk":
            self._take_order(self._decoder.add(request.chunk))
        else:
            raise InvalidInput(
                f"expected an order or a chunk, got {kind or 'nothing'}", reason="BAD_SESSION"
            )

    def drain(self) -> None:
        draining = evaluator_service_pb2.EvaluateDraining(reason="the evaluator is stopping")
        self.outbox.put(evaluator_service_pb2.EvaluateResponse(draining=draining))
        self.outbox.close()

    def open(self, request: evaluator_service_pb2.OpenEvaluate) -> None:
        require_same_build(request.build)
        cohort = cohort_from_message(request.cohort)
        environment = environment_from_message(request.cohort.environment)
        self.submit(
            partial(
                self._start, cohort, environment, require_device(request.device or "cpu"), request
            ),
            span("start environments", request.traceparent),
        )

    def _take_order(self, complete: bool) -> None:
        if not complete:
            return
        order = _Order(self._incoming, self._decoder.take())
        _check(order.message)
        with self._lock:
            superseded = [waiting for waiting in self._waiting if waiting.gives_way_to(order)]
            self._waiting = [waiting for waiting in self._waiting if waiting not in superseded]
            if len(self._waiting) >= _MAX_WAITING:
                raise InvalidInput(
                    f"more than {_MAX_WAITING} orders wait", reason="TOO_MANY_ORDERS"
                )
            self._waiting.append(order)
            EVALUATOR_QUEUE.set(len(self._waiting))
        for old in superseded:
            self._answer(
                evaluator_service_pb2.EvaluationAnswer(
                    order_id=old.message.order_id, superseded=True
                )
            )
        self.submit(self._evaluate_next)

    def _start(
        self,
        cohort: CohortConfig,
        environment: EnvironmentSpec,
        device: str,
        request: evaluator_service_pb2.OpenEvaluate,
    ) -> None:
        self._placed = place_environment(environment, self._cache)
        self._evaluation = PolicyEvaluation(
            cohort, self._placed.spec, device, self.require_wanted, request.evaluator
        )
        sizes = self._evaluation.policy_sizes_bytes
        endpoint = Endpoint(self._folder, sends=False, device=torch.device(device))
        choice, self._staging = choose(
            request.carriers, endpoint, Payload(sum(sizes), len(sizes), _ORDERS_IN_FLIGHT)
        )
        if self._staging is not None:
            self._decoder.use_slots(SlotReader(self._staging), self._give_back)
        logger.info("a session is open; policies come by %s", carrier_name(choice.kind))
        opened = evaluator_service_pb2.EvaluateOpened(build=own_build(), carrier=choice)
        self.outbox.put(evaluator_service_pb2.EvaluateResponse(opened=opened))

    def _give_back(self, slot: tensor_pb2.SlotReturn) -> None:
        self.outbox.put(evaluator_service_pb2.EvaluateResponse(slot_return=slot))

    def _evaluate_next(self) -> None:
        with self._lock:
            order = self._waiting.pop(0) if self._waiting else None
            EVALUATOR_QUEUE.set(len(self._waiting))
        if order is None or self._evaluation is None:
            return  # superseded, or the session did not start
        message, purpose = order.message, purpose_name(order.message.purpose)
        with (
            span("evaluate policies", message.traceparent, purpose=purpose) as own,
            EVALUATION.timed(purpose=purpose),
        ):
            results, duration_s = self._evaluation.evaluate(
                message.agents,
                order.tensors,
                message.seeds,
                message.first_episodes,
                message.admission_score if message.HasField("admission_score") else None,
                message.purpose == agent_pb2.EVALUATION_PURPOSE_PROGRESS,
                message.required_score if message.HasField("required_score") else None,
                seconds_from_duration(message.timeout) if message.HasField("timeout") else math.inf,
            )
            episodes = sum(result.episodes for result in results)
            own.set(episodes=episodes)
        self._count_episodes(episodes, purpose)
        pairs = zip(message.agents, results, strict=bool(results))  # none at all if time was up
        evaluations = [_evaluation(message, duration_s, agent, result) for agent, result in pairs]
        self._answer(
            evaluator_service_pb2.EvaluationAnswer(
                order_id=message.order_id, evaluations=evaluations
            )
        )

    def _answer(self, answer: evaluator_service_pb2.EvaluationAnswer) -> None:
        self.outbox.put(evaluator_service_pb2.EvaluateResponse(answer=answer))

    def release(self) -> None:
        if self._staging is not None:
            self._staging.close()
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            evaluation.close()
        if self._placed is not None:
            self._placed.close()


def _check(order: evaluator_service_pb2.EvaluationOrder) -> None:
    """Raises InvalidInput for an invalid order."""
    seeds, violations = len(order.seeds), []
    if not 0 < seeds <= MAX_EPISODES:
        violations.append(FieldViolation("seeds", f"expected 1 to {MAX_EPISODES}, got {seeds}"))
    if not 0 <= order.first_episodes <= seeds:
        violations.append(
            FieldViolation("first_episodes", f"expected 0 to {seeds}, got {order.first_episodes}")
        )
    if not order.agents or len(set(order.agents)) < len(order.agents):
        violations.append(FieldViolation("agents", "expected at least one, and each once"))
    if order.purpose not in agent_pb2.EvaluationPurpose.values()[1:]:
        violations.append(
            FieldViolation("purpose", f"expected one of EvaluationPurpose, got {order.purpose}")
        )
    violations += [
        FieldViolation(field, "expected a number, got NaN")
        for field in ("admission_score", "required_score")
        if math.isnan(getattr(order, field))
    ]
    if violations:
        raise InvalidInput(
            "; ".join(map(str, violations)), violations=violations, reason="BAD_SESSION"
        )


def _evaluation(
    order: evaluator_service_pb2.EvaluationOrder,
    duration_s: float,
    agent: str,
    result: EvaluationResult,
) -> agent_pb2.Evaluation:
    message = result_to_message(result)
    message.agent, message.policy_version, message.purpose = (
        agent,
        order.policy_version,
        order.purpose,
    )
    message.duration.CopyFrom(seconds_to_duration(duration_s))
    message.create_time.GetCurrentTime()
    return message


def purpose_name(purpose: agent_pb2.EvaluationPurpose.ValueType) -> str:
    """The name of a purpose: `progress`, `candidate`, …; `requested` if it is unset."""
    if purpose not in agent_pb2.EvaluationPurpose.values()[1:]:
        return "requested"
    return agent_pb2.EvaluationPurpose.Name(purpose).removeprefix("EVALUATION_PURPOSE_").lower()

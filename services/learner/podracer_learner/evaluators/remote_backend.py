"""Evaluations by an evaluator: requested, and collected when they arrive. A lost evaluator never
blocks training."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from podracer.common.v1 import agent_pb2, cohort_pb2, tensor_pb2
from podracer.evaluator.v1 import evaluator_service_pb2, evaluator_service_pb2_grpc
from podracer_core.errors import (
    DeadlineExpired,
    Exhausted,
    InvalidInput,
    PodracerError,
    PreconditionFailed,
    Unavailable,
)
from podracer_core.training.evaluation_backend import (
    EvaluationAnswer,
    EvaluationBackend,
    EvaluationOrder,
)
from podracer_core.training.phases import Occasions
from podracer_learner.background import BackgroundTask
from podracer_learner.user_files import FetchedFiles, wants_files
from podracer_platform.carriers.inline import TensorEncoder, chunk_messages
from podracer_platform.carriers.negotiation import CarrierOffering, Endpoint, carrier_name
from podracer_platform.carriers.slots import SlotWriter
from podracer_platform.carriers.staging import CARRIER_FAILED, CarrierFailed
from podracer_platform.messages.sections import seconds_from_duration, seconds_to_duration
from podracer_platform.messages.training import result_from_message
from podracer_platform.rpc.backoff import Backoff
from podracer_platform.rpc.streams import StreamCall
from podracer_platform.service.build import own_build
from podracer_platform.telemetry.metrics import ORDERS
from podracer_platform.telemetry.spans import NO_SPAN, Span, current, span

logger = logging.getLogger(__name__)

EvaluatorItem = evaluator_service_pb2.EvaluateOpened | evaluator_service_pb2.EvaluationAnswer
EvaluateRequest = evaluator_service_pb2.EvaluateRequest

_LOST = (Unavailable, Exhausted, DeadlineExpired)
_REOPEN_S = (0.1, 2.0)
_POLL_S = 0.2
_LEAST_S = 0.1  # that an evaluator has for an order


class PolicyStream:
    """Policies can be sent once the evaluator has answered the opening."""

    def __init__(
        self,
        stub: evaluator_service_pb2_grpc.EvaluatorServiceStub,
        opening: evaluator_service_pb2.OpenEvaluate,
        endpoint: Endpoint,
        *,
        inline_only: bool,
    ) -> None:
        """Opens the session, without waiting for it."""
        self._offering = CarrierOffering(endpoint, inline_only=inline_only)
        self._slots: SlotWriter | None = None
        self._encoder = TensorEncoder()
        opening.carriers.CopyFrom(self._offering.message)
        self._call: StreamCall[EvaluateRequest, EvaluatorItem] = StreamCall(
            stub.Evaluate, self._decode
        )
        self._call.send(EvaluateRequest(open=opening))

    def send(
        self, order: evaluator_service_pb2.EvaluationOrder, policy: Mapping[str, Tensor]
    ) -> None:
        """Send an order for this policy; never waits."""
        messages, chunks = self._encoder.encode(policy)
        for name, message in messages.items():
            order.tensors[name].CopyFrom(message)
        self._call.send(EvaluateRequest(order=order))
        for request in chunk_messages(EvaluateRequest, chunks):
            self._call.send(request)

    def poll(self) -> EvaluatorItem | None:
        """The next item, if one has arrived. Raises the error that ended the stream."""
        return self._call.poll()

    def wait(self, timeout_s: float) -> None:
        """Wait until something comes, at most `timeout_s`."""
        self._call.wait(timeout_s)

    def close(self) -> None:
        """End the session."""
        self._call.close()
        self._offering.close()
        if self._slots is not None:
            self._slots.close()

    def _decode(self, response: evaluator_service_pb2.EvaluateResponse) -> EvaluatorItem | None:
        """Decode a response, in the receiving thread."""
        match response.WhichOneof("message"):
            case "opened":
                self._settle(response.opened.carrier)
                return response.opened
            case "answer":
                return response.answer
            case "slot_return":
                if self._slots is None:
                    raise InvalidInput(
                        "an evaluator returned a slot of a stream without any",
                        reason="BAD_SLOT_RETURN",
                    )
                self._slots.take_back(response.slot_return)
                return None
            case "draining":
                raise Unavailable(response.draining.reason, reason="DRAINING")
            case _:
                return None

    def _settle(self, choice: tensor_pb2.CarrierChoice) -> None:
        """An evaluator always accepts tensors inline, so a failing carrier does no harm."""
        try:
            staging = self._offering.settle(choice)
        except CarrierFailed as error:
            logger.warning("%s; policies go to the evaluator inline", error.message)
            return
        logger.info("policies go to the evaluator by %s", carrier_name(choice.kind))
        if staging is not None:
            self._slots = SlotWriter(staging)
            self._encoder = TensorEncoder(slots=self._slots)


class RemoteBackend(EvaluationBackend):
    """One session with the first evaluator that answers. Lost looks are dropped; lost full
    evaluations are requested again."""

    def __init__(
        self,
        cohort: cohort_pb2.CohortSpec,
        files: FetchedFiles,
        stubs: Sequence[evaluator_service_pb2_grpc.EvaluatorServiceStub],
        check: Callable[[], None],
        endpoint: Endpoint,
        evaluator: str = "",
    ) -> None:
        """Opens the first session. `files`: of the environment. `check` is called while waiting and
        raises to cancel. `endpoint`: the carriers for policies; `evaluator`: the evaluator's
        name."""
        if not stubs:
            raise InvalidInput(
                "the split layout needs evaluators (PODRACER_EVALUATORS)", reason="NO_EVALUATORS"
            )
        self._evaluator = evaluator
        self._cohort, self._files, self._stubs, self._check = cohort, files, list(stubs), check
        self._delivery: BackgroundTask[None] | None = None  # to the evaluator that is asked next
        self._endpoint, self._inline_only = endpoint, False
        self._waits = Backoff(*_REOPEN_S)
        self._retry_at = 0.0
        self._opened = False
        self._orders: dict[int, EvaluationOrder] = {}
        self._spans: dict[int, Span] = {}  # of some orders
        self._parent, self._occasions = current().traceparent, Occasions()
        self._lost_looks: list[EvaluationAnswer] = []
        self._stream: PolicyStream | None = None
        self._connect()

    @property
    def ready(self) -> bool:
        return self._opened

    def submit(self, order: EvaluationOrder) -> None:
        self._orders[order.order_id] = order
        ORDERS.set(len(self._orders))
        if self._parent and (not order.screening or self._occasions.is_next()):
            self._spans[order.order_id] = span(
                "order", self._parent, sampled=True, look=order.screening
            )
        if self._opened:
            self._send(order)

    def poll(self, timeout_s: float = 0.0) -> list[EvaluationAnswer]:
        deadline = time.monotonic() + timeout_s
        while True:
            answers = self._arrived()
            remaining_s = deadline - time.monotonic()
            if answers or remaining_s <= 0:
                return answers
            self._check()
            self._wait(min(remaining_s, _POLL_S))

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._opened, self.evaluator_count = False, 0
        ORDERS.set(0)

    def _connect(self) -> None:
        opening = evaluator_service_pb2.OpenEvaluate(
            build=own_build(),
            cohort=self._cohort,
            traceparent=self._parent,
            evaluator=self._evaluator,
        )
        self._stream = PolicyStream(
            self._stubs[0], opening, self._endpoint, inline_only=self._inline_only
        )

    def _arrived(self) -> list[EvaluationAnswer]:
        """The arrived items, without waiting."""
        answers, self._lost_looks = self._lost_looks, []
        try:
            if self._delivery is not None:
                if not self._delivery.done:
                    return answers
                delivery, self._delivery = self._delivery, None
                delivery.result()
                self._connect()
            if self._stream is None:
                if time.monotonic() < self._retry_at:
                    return answers
                self._connect()
            while self._stream is not None and (item := self._stream.poll()) is not None:
                answers += self._take(item)
        except PreconditionFailed as error:
            if error.reason == CARRIER_FAILED and not self._inline_only:
                logger.warning("%s; policies go to the evaluator inline", error.message)
                self._inline_only = True
                self.close()
                self._connect()
                return answers
            if not wants_files(error):
                raise
            self.close()
            self._delivery = self._files.deliver(
                self._stubs[0].PutFile, evaluator_service_pb2.PutFileRequest
            )
        except _LOST as error:
            self._lose(error)
            answers += self._lost_looks
            self._lost_looks = []
        return answers

    def _wait(self, timeout_s: float) -> None:
        """Wait until an item arrives, which `_arrived` then returns."""
        if self._delivery is not None:
            self._delivery.wait(timeout_s)
        elif self._stream is None:
            time.sleep(min(timeout_s, max(self._retry_at - time.monotonic(), 0.0)))
        else:
            self._stream.wait(timeout_s)

    def _take(self, item: EvaluatorItem) -> list[EvaluationAnswer]:
        if isinstance(item, evaluator_service_pb2.EvaluateOpened):
            self._opened, self.evaluator_count = True, 1
            self._waits.reset()
            for order in self._orders.values():
                self._send(order)
            return []
        if self._orders.pop(item.order_id, None) is None:
            return []
        self._spans.pop(item.order_id, NO_SPAN).end()
        ORDERS.set(len(self._orders))
        results = tuple(result_from_message(evaluation) for evaluation in item.evaluations)
        duration_s = max(
            (seconds_from_duration(one.duration) for one in item.evaluations), default=0.0
        )
        return [EvaluationAnswer(item.order_id, results, duration_s)]

    def _lose(self, error: PodracerError) -> None:
        logger.warning("the evaluator is lost: %s", error.message)
        self.close()
        self._stubs.append(self._stubs.pop(0))
        self._retry_at = time.monotonic() + next(self._waits)
        for order_id in [order_id for order_id, order in self._orders.items() if order.screening]:
            del self._orders[order_id]
            self._spans.pop(order_id, NO_SPAN).end(error.reason)
            self._lost_looks.append(EvaluationAnswer(order_id, (), 0.0))

    def _send(self, order: EvaluationOrder) -> None:
        if self._stream is None:
            return
        looking = agent_pb2.EVALUATION_PURPOSE_PROGRESS
        message = evaluator_service_pb2.EvaluationOrder(
            order_id=order.order_id,
            agents=[self._cohort.members[member].name for member in order.members],
            purpose=looking if order.screening else agent_pb2.EVALUATION_PURPOSE_CANDIDATE,
            seeds=order.seeds,
            first_episodes=order.first_episodes,
            traceparent=self._spans.get(order.order_id, NO_SPAN).traceparent,
        )
        if order.admission_score is not None:
            message.admission_score = order.admission_score
        if order.required_score is not None:
            message.required_score = order.required_score
        if (left_s := self.left_s()) < math.inf:
            message.timeout.CopyFrom(seconds_to_duration(max(_LEAST_S, left_s)))
        self._stream.send(message, order.actor.state())

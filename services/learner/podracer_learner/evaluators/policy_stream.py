"""One stream to an evaluator: policies go out by the negotiated carrier, and results come back."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from torch import Tensor

from podracer.common.v1 import tensor_pb2
from podracer.evaluator.v1 import evaluator_service_pb2, evaluator_service_pb2_grpc
from podracer_core.carriers.inline import TensorEncoder
from podracer_core.carriers.negotiation import CarrierOffering, Endpoint, carrier_name
from podracer_core.carriers.slots import SlotWriter
from podracer_core.carriers.staging import CarrierFailed
from podracer_core.errors import InvalidInput, Unavailable
from podracer_core.rpc.streams import StreamCall

logger = logging.getLogger(__name__)

EvaluatorItem = evaluator_service_pb2.EvaluateOpened | evaluator_service_pb2.EvaluationAnswer
EvaluateRequest = evaluator_service_pb2.EvaluateRequest


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
        for chunk in chunks:
            request = EvaluateRequest()
            request.chunk.CopyFrom(chunk)  # as an argument it would be serialized and parsed
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

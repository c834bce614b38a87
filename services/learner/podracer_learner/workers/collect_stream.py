"""One stream to a worker: weights and requests go out, rollouts come back by the negotiated
carrier."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
from torch import Tensor

from podracer.common.v1 import agent_pb2, environment_pb2, tensor_pb2
from podracer.worker.v1 import worker_service_pb2, worker_service_pb2_grpc
from podracer_core.buffers.rollout import Rollout
from podracer_core.carriers.inline import TensorDecoder
from podracer_core.carriers.negotiation import CarrierOffering, Endpoint, carrier_name
from podracer_core.carriers.slots import SlotReader
from podracer_core.errors import InvalidInput, Unavailable
from podracer_core.rpc.streams import StreamCall
from podracer_core.telemetry.spans import current

logger = logging.getLogger(__name__)

CollectRequest = worker_service_pb2.CollectRequest

_STATE = "environment_state/"


@dataclass(frozen=True, slots=True)
class Opened:
    """A session is open, with this environment; `received_at` on the monotonic clock."""

    environment: environment_pb2.EnvironmentDescription
    received_at: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """A rollout of one worker's environments, and their states after it (empty if not requested).

    live_environments   of all members together, those with at least one valid row
    received_at         on the monotonic clock
    processor_s         processor seconds of the worker for it
    breaks              what broke in it; at most one of each kind
    """

    rollout: Rollout
    environment_state: dict[str, Tensor]
    live_environments: int
    received_at: float
    processor_s: float
    breaks: Sequence[agent_pb2.WorldBreak] = ()


class CollectStream:
    """A session with a worker.

    send   never waits
    poll   the next item, if one has arrived; raises the error that ended the stream
    """

    def __init__(
        self,
        address: str,
        channel: grpc.Channel,
        opening: worker_service_pb2.OpenCollect,
        endpoint: Endpoint,
        arrived: Callable[[], None],
        *,
        inline_only: bool,
    ) -> None:
        """Opens it, without waiting; `channel` is closed with it. `arrived` is called, in any
        thread, when `poll` would find something."""
        self._channel = channel
        self._offering = CarrierOffering(
            endpoint, opening.max_in_flight or 1, inline_only=inline_only
        )
        opening.carriers.CopyFrom(self._offering.message)
        opening.traceparent = current().traceparent
        decoder = _Decoder(address, self._offering)
        stub = worker_service_pb2_grpc.WorkerServiceStub(channel)
        self._call: StreamCall[CollectRequest, Arrival | Opened] = StreamCall(
            stub.Collect, decoder.decode, arrived
        )
        decoder.give_back = _slot_returner(self._call)
        self.send, self.poll = self._call.send, self._call.poll
        self.send(CollectRequest(open=opening))

    def close(self) -> None:
        """End the session."""
        self._call.close()
        self._channel.close()
        self._offering.close()


class _Decoder:
    """Responses -> items, in the stream's receiving thread."""

    def __init__(self, address: str, offering: CarrierOffering) -> None:
        """`give_back` sends a slot's return; it must be set before the first item arrives."""
        self._address, self._offering = address, offering
        self.give_back: Callable[[tensor_pb2.SlotReturn], None] | None = None
        self._tensors = TensorDecoder()
        self._batch: worker_service_pb2.RolloutBatch | None = None

    def decode(self, response: worker_service_pb2.CollectResponse) -> Arrival | Opened | None:
        match response.WhichOneof("message"):
            case "opened":
                self._settle(response.opened.carrier)
                return Opened(response.opened.environment, time.monotonic())
            case "rollout":
                self._batch = response.rollout
                tensors = dict(response.rollout.tensors)
                tensors |= {
                    _STATE + name: one for name, one in response.rollout.environment_state.items()
                }
                return self._arrival(self._tensors.begin(tensors))
            case "chunk":
                return self._arrival(self._tensors.add(response.chunk))
            case "draining":
                raise Unavailable(response.draining.reason, reason="DRAINING")
            case _:
                raise InvalidInput("a worker sent an empty message")

    def _settle(self, choice: tensor_pb2.CarrierChoice) -> None:
        staging = self._offering.settle(choice)
        logger.info("worker %s: rollouts come by %s", self._address, carrier_name(choice.kind))
        if staging is not None and self.give_back is not None:
            self._tensors.use_slots(SlotReader(staging), self.give_back)

    def _arrival(self, complete: bool) -> Arrival | None:
        if not complete:
            return None
        if self._batch is None or not self._batch.policy_versions:
            raise InvalidInput("a rollout came without a header, or without the version that acted")
        tensors = self._tensors.take()
        state = {
            name.removeprefix(_STATE): tensors.pop(name)
            for name in list(tensors)
            if name.startswith(_STATE)
        }
        rollout = Rollout.from_tensors(tensors, min(self._batch.policy_versions) - 1)
        batch, now = self._batch, time.monotonic()
        return Arrival(
            rollout, state, batch.live_environments, now, batch.processor_s, batch.breaks
        )


def _slot_returner(
    call: StreamCall[CollectRequest, Arrival | Opened],
) -> Callable[[tensor_pb2.SlotReturn], None]:
    """Sends on the call while there is one. What it decodes holds the stream's memory: in a circle
    it would stay mapped long after the session."""
    reference = weakref.ref(call)

    def give_back(slot: tensor_pb2.SlotReturn) -> None:
        alive = reference()
        if alive is not None:
            alive.send(CollectRequest(slot_return=slot))

    return give_back

"""Choice of a stream's carrier: the opener offers what it can do, and the other side takes the best
that both have.

    cuda_ipc        both compute on the same GPU, which its UUID tells
    shared_memory   both see the same folder, which a nonce file proves: two containers may well use
                    the same path for different folders
    inline          always

Where the better one cannot be had after all (a full tmpfs, no CUDA runtime) the next one is taken,
and that is logged once. The carrier `reference`, tensors handed over as they are, belongs to a
process that both collects and learns: it has no stream, so nothing is negotiated and it never
crosses a wire."""

from __future__ import annotations

import logging
import os
import secrets
from dataclasses import dataclass, field

import torch

from podracer.common.v1 import tensor_pb2
from podracer_core.errors import InvalidInput, PodracerError
from podracer_platform.carriers.cuda_ipc import CudaIpc, DeviceMemory, RuntimeMemory, device_uuid
from podracer_platform.carriers.slots import (
    INLINE_BELOW_BYTES,
    MAX_SLOTS,
    CarrierFailed,
    SharedMemory,
    SlotLayout,
    Staging,
)
from podracer_platform.shared_folder import NONCE, NamedFile, SharedFolder

logger = logging.getLogger(__name__)

INLINE = tensor_pb2.CARRIER_KIND_INLINE
SHARED_MEMORY = tensor_pb2.CARRIER_KIND_SHARED_MEMORY
CUDA_IPC = tensor_pb2.CARRIER_KIND_CUDA_IPC

_NONCE_BYTES = 32
_DEFAULT_SLOTS = 2  # as the contract says for an offer that names none


@dataclass(frozen=True, slots=True)
class Endpoint:
    """This process as one end of a stream.

    sends          whether tensors go from here to the other side, by whatever the two agree on
    device         where they are computed, or wanted
    device_memory  how CUDA memory crosses
    """

    folder: SharedFolder
    sends: bool
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    device_memory: DeviceMemory = field(default_factory=RuntimeMemory)


@dataclass(frozen=True, slots=True)
class Payload:
    """The contents of one slot, and the number of slots that are filled before the first comes
    back."""

    size_bytes: int
    tensor_count: int
    in_flight: int


class CarrierOffering:
    """The opener's offer. It keeps its nonce file until the other side has chosen, or until
    `close`; one thread may settle and another close."""

    def __init__(
        self, endpoint: Endpoint, max_slots: int = _DEFAULT_SLOTS, *, inline_only: bool = False
    ) -> None:
        self._endpoint = endpoint
        self._nonce: NamedFile | None = None
        self.message = tensor_pb2.CarrierOffer(max_slots=max_slots)
        if not inline_only:
            self._offer_cuda_ipc()
            self._offer_shared_memory()
        self.message.kinds.append(INLINE)

    def settle(self, choice: tensor_pb2.CarrierChoice) -> Staging | None:
        """The carrier that the other side has chosen, ready to use; None for inline. The offering
        is closed.

        Raises CarrierFailed where that was not offered, or does not work here.
        """
        try:
            if choice.kind in (INLINE, tensor_pb2.CARRIER_KIND_UNSPECIFIED):
                return None
            if choice.kind not in self.message.kinds:
                raise CarrierFailed(
                    f"the other side chose {carrier_name(choice.kind)}, which was not offered"
                )
            layout = SlotLayout(choice.slot_size_bytes, choice.slot_count)
            if layout.slot_count > self.message.max_slots:
                raise CarrierFailed(
                    f"{layout.slot_count} slots were chosen, {self.message.max_slots} offered"
                )
            if choice.kind == SHARED_MEMORY:
                return _shared_memory(self._endpoint, layout, choice.segment)
            return _cuda_ipc(self._endpoint, layout)
        except CarrierFailed:
            raise
        except PodracerError as error:
            raise CarrierFailed(
                f"{carrier_name(choice.kind)} does not work here: {error.message}"
            ) from error
        finally:
            self.close()

    def close(self) -> None:
        """Take the offer back."""
        if self._nonce is not None:
            self._nonce.close()

    def _offer_cuda_ipc(self) -> None:
        if self._endpoint.device.type == "cuda":
            self.message.device_uuid = device_uuid(self._endpoint.device)
            self.message.kinds.append(CUDA_IPC)

    def _offer_shared_memory(self) -> None:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        try:
            self._nonce = self._endpoint.folder.create(NONCE, _NONCE_BYTES)
        except PodracerError as error:
            self._endpoint.folder.complain_once(
                "offer", f"cannot offer shared memory: {error.message}"
            )
            return
        os.pwrite(self._nonce.descriptor, nonce, 0)
        self.message.nonce_file, self.message.nonce = self._nonce.name, nonce
        self.message.kinds.append(SHARED_MEMORY)


def choose(
    offer: tensor_pb2.CarrierOffer, endpoint: Endpoint, payload: Payload
) -> tuple[tensor_pb2.CarrierChoice, Staging | None]:
    """The answer to an offer, and this side's staging memory (None for inline), which the caller
    closes.

    Small payloads go inline. Raises InvalidInput for a malformed offer.
    """
    if not 0 <= offer.max_slots <= MAX_SLOTS:
        raise InvalidInput(
            f"an offer has 0 to {MAX_SLOTS} slots, not {offer.max_slots}", reason="BAD_CARRIER"
        )
    slot_count = max(1, min(offer.max_slots or _DEFAULT_SLOTS, payload.in_flight))
    layout = SlotLayout.for_payload(payload.size_bytes, payload.tensor_count, slot_count)
    for kind in _common(offer, endpoint, payload):
        try:
            if kind == CUDA_IPC:
                return _choice(kind, layout), _cuda_ipc(endpoint, layout)
            staging = _shared_memory(endpoint, layout, "")
            return _choice(kind, layout, staging.segment), staging
        except PodracerError as error:
            text = (
                f"{carrier_name(kind)} cannot be used, falling back to another carrier: "
                f"{error.message}"
            )
            endpoint.folder.complain_once(f"choose {kind}", text)
    return tensor_pb2.CarrierChoice(kind=INLINE), None


def carrier_name(kind: tensor_pb2.CarrierKind.ValueType) -> str:
    """The name of a carrier for a log: `shared memory`."""
    names = {INLINE: "inline", SHARED_MEMORY: "shared memory", CUDA_IPC: "CUDA IPC"}
    return names.get(kind, f"carrier {kind}")


def _common(
    offer: tensor_pb2.CarrierOffer, endpoint: Endpoint, payload: Payload
) -> list[tensor_pb2.CarrierKind.ValueType]:
    """Carriers besides inline that both sides support, the best first."""
    found = []
    uuid = device_uuid(endpoint.device)
    if CUDA_IPC in offer.kinds and uuid and uuid == offer.device_uuid:
        found.append(CUDA_IPC)
    if (
        SHARED_MEMORY in offer.kinds
        and payload.size_bytes >= INLINE_BELOW_BYTES
        and len(offer.nonce) == _NONCE_BYTES
        and endpoint.folder.holds(offer.nonce_file, offer.nonce)
    ):
        found.append(SHARED_MEMORY)
    return found


def _cuda_ipc(endpoint: Endpoint, layout: SlotLayout) -> CudaIpc:
    make = CudaIpc.export if endpoint.sends else CudaIpc.receiving
    return make(layout, endpoint.device, endpoint.device_memory)


def _shared_memory(endpoint: Endpoint, layout: SlotLayout, segment: str) -> SharedMemory:
    """The sender's own segment, or the sender's `segment`."""
    if endpoint.sends:
        return SharedMemory.create(endpoint.folder, layout)
    return SharedMemory.attach(endpoint.folder, segment, layout)


def _choice(
    kind: tensor_pb2.CarrierKind.ValueType, layout: SlotLayout, segment: str = ""
) -> tensor_pb2.CarrierChoice:
    return tensor_pb2.CarrierChoice(
        kind=kind,
        segment=segment,
        slot_size_bytes=layout.slot_size_bytes,
        slot_count=layout.slot_count,
    )

"""Staging memory: a few slots of equal size that the sender fills and the receiver copies out of, each exactly once.

Where the memory lies and how a message names a place in it differs (shared memory, CUDA); what a slot is does not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from podracer.common.v1 import tensor_pb2
from podracer_core.errors import InvalidInput, PreconditionFailed

ALIGNMENT_BYTES = 64
"""Every tensor in a slot begins at a multiple of this: any dtype can be read in place."""

MAX_SLOTS = 64

CARRIER_FAILED = "CARRIER_FAILED"
"""The reason of a CarrierFailed, on both sides of a wire."""

_PAGE_BYTES = 4096


class CarrierFailed(PreconditionFailed):
    """The carrier that was agreed on does not work here: the stream has to be opened again without it."""

    reason = CARRIER_FAILED


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """How the memory is divided. Raises InvalidInput for a division that there cannot be."""

    slot_size_bytes: int
    slot_count: int

    def __post_init__(self) -> None:
        if not 1 <= self.slot_count <= MAX_SLOTS or self.slot_size_bytes < 1 or self.slot_size_bytes % ALIGNMENT_BYTES:
            raise InvalidInput(
                f"{self.slot_count} slots of {self.slot_size_bytes} bytes; expected 1 to {MAX_SLOTS} of a multiple of "
                f"{ALIGNMENT_BYTES}",
                reason="BAD_CARRIER",
            )

    @classmethod
    def for_payload(cls, payload_bytes: int, tensor_count: int, slot_count: int) -> SlotLayout:
        """Slots that hold `tensor_count` tensors of `payload_bytes` together, wherever these begin."""
        size_bytes = payload_bytes + tensor_count * ALIGNMENT_BYTES
        return cls(-(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES, slot_count)

    @property
    def size_bytes(self) -> int:
        """Of all slots together."""
        return self.slot_size_bytes * self.slot_count


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies: `offset_bytes` from the start of the memory, in a slot that was handed over for the
    `generation`th time."""

    slot: int
    offset_bytes: int
    size_bytes: int
    generation: int


class Staging(ABC):
    """One side's view of the memory. `segment` names it in a SlotReturn."""

    kind: tensor_pb2.CarrierKind.ValueType
    layout: SlotLayout
    device: torch.device
    segment: str = ""
    inline_below_bytes: int = 0
    """Smaller tensors are better off inside the message."""

    @property
    @abstractmethod
    def memory(self) -> torch.Tensor:
        """uint8 [layout.size_bytes], on the device where it lies."""

    @abstractmethod
    def refer(self, message: tensor_pb2.Tensor, place: Place) -> None:
        """Have the message name a place."""

    @abstractmethod
    def place_of(self, message: tensor_pb2.Tensor) -> Place:
        """The place that a message names. Raises InvalidInput where that is not in this memory."""

    def synchronize(self) -> None:  # noqa: B027 - on a CPU a copy is done when the call returns
        """Wait until all copies from and to the memory are done."""

    def close(self) -> None:  # noqa: B027 - who has only attached has nothing to give back
        """Give it back; what still copies may go on, for memory lives as long as what refers to it."""

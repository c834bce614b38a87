"""Staging memory: a few slots of equal size that the sender fills and the receiver copies out of,
each exactly once.

Where the memory lies and how a message names a place in it differs (shared memory, CUDA); what a
slot is does not.

Shared memory is a file. The sender creates the segment, allocated up front, and maps it; the
receiver attaches it: it removes its name where it may, and reads without a mapping, as a file that
the other side cuts would end a process that has mapped it. So each side writes into its own folder
only. The creator's death leaves a file that the next sweep of the folder removes (`SharedFolder`).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from podracer.common.v1 import tensor_pb2
from podracer_core.errors import Exhausted, InvalidInput, PreconditionFailed
from podracer_platform.carriers.shared_folder import SEGMENT, NamedFile, SharedFolder
from podracer_platform.carriers.wire import bytes_of

ALIGNMENT_BYTES = 64
"""Every tensor in a slot begins at a multiple of this: any dtype can be read in place."""

MAX_SLOTS = 64

CARRIER_FAILED = "CARRIER_FAILED"
"""The reason of a CarrierFailed, on both sides of a wire."""

_PAGE_BYTES = 4096

INLINE_BELOW_BYTES = 16 << 10
"""Below this a tensor's bytes in the message cost less than a slot and its return."""


class CarrierFailed(PreconditionFailed):
    """The carrier that was agreed on does not work here: the stream has to be opened again without
    it."""

    reason = CARRIER_FAILED


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """How the memory is divided. Raises InvalidInput for a division that there cannot be."""

    slot_size_bytes: int
    slot_count: int

    def __post_init__(self) -> None:
        if (
            not 1 <= self.slot_count <= MAX_SLOTS
            or self.slot_size_bytes < 1
            or self.slot_size_bytes % ALIGNMENT_BYTES
        ):
            raise InvalidInput(
                f"{self.slot_count} slots of {self.slot_size_bytes} bytes; expected 1 to "
                f"{MAX_SLOTS} of a multiple of {ALIGNMENT_BYTES}",
                reason="BAD_CARRIER",
            )

    @classmethod
    def for_payload(cls, payload_bytes: int, tensor_count: int, slot_count: int) -> SlotLayout:
        """Slots that hold `tensor_count` tensors of `payload_bytes` together, wherever these
        begin."""
        size_bytes = payload_bytes + tensor_count * ALIGNMENT_BYTES
        return cls(-(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES, slot_count)

    @property
    def size_bytes(self) -> int:
        """Bytes of all slots together."""
        return self.slot_size_bytes * self.slot_count


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a tensor: `offset_bytes` from the start of the memory, in a slot that was handed
    over for the `generation`th time."""

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

    def write(self, place: Place, tensor: torch.Tensor) -> None:
        """Copy a tensor to a place. Raises CarrierFailed if that is broken."""
        _copy(_view(self.memory, place, tensor), tensor)

    def read(self, place: Place, target: torch.Tensor) -> None:
        """Copy what is at a place into a tensor of its dtype and shape. Raises CarrierFailed as
        `write`."""
        _copy(target, _view(self.memory, place, target))

    def synchronize(self) -> None:  # noqa: B027 - on a CPU a copy is done when the call returns
        """Wait until all copies from and to the memory are done."""

    def close(self) -> None:  # noqa: B027 - an attached end has nothing to release
        """Release it. Copies in progress may finish: the memory lives as long as its references."""


class SharedMemory(Staging):
    """A segment. Made by `create` on the side that writes, which maps it, and `attach` on the side
    that reads."""

    kind = tensor_pb2.CARRIER_KIND_SHARED_MEMORY
    device = torch.device("cpu")
    inline_below_bytes = INLINE_BELOW_BYTES

    def __init__(
        self, layout: SlotLayout, folder: SharedFolder, file: NamedFile | None = None
    ) -> None:
        """Raises Exhausted where there is no room in this process's address space."""
        self.layout, self.segment = layout, ""
        self._folder, self._file = folder, file
        if file is None:
            return
        self.segment = file.name
        try:
            # Never closed: it would not wait for tensors that still look into it. It goes with the
            # last of them.
            mapping = mmap.mmap(file.descriptor, layout.size_bytes)
        except (OSError, ValueError) as error:
            raise Exhausted(
                f"cannot map {layout.size_bytes} bytes: {error}", reason="SHARED_MEMORY_FULL"
            ) from error
        self._memory = torch.frombuffer(mapping, dtype=torch.uint8)

    @classmethod
    def create(cls, folder: SharedFolder, layout: SlotLayout) -> SharedMemory:
        """A new segment. Raises Exhausted where the folder has no room, PreconditionFailed where it
        takes no files."""
        file = folder.create(SEGMENT, layout.size_bytes)
        try:
            return cls(layout, folder, file)
        except Exhausted:
            file.close()
            raise

    @classmethod
    def attach(cls, folder: SharedFolder, segment: str, layout: SlotLayout) -> SharedMemory:
        """The other side's segment; without a name the one that the first tensor names.

        Raises InvalidInput for a name that is none and for a file that is smaller than the layout,
        PreconditionFailed where there is no such file."""
        attached = cls(layout, folder)
        if segment:
            attached._open(segment)
        return attached

    def _open(self, segment: str) -> None:
        self._descriptor = self._folder.open(segment)
        weakref.finalize(self, os.close, self._descriptor)
        if (size_bytes := os.fstat(self._descriptor).st_size) < self.layout.size_bytes:
            raise InvalidInput(
                f"segment {segment} has {size_bytes} bytes, the layout {self.layout.size_bytes}",
                reason="BAD_CARRIER",
            )
        self._folder.unlink(segment)
        self.segment = segment

    @property
    def memory(self) -> torch.Tensor:
        return self._memory

    def read(self, place: Place, target: torch.Tensor) -> None:
        is_direct = target.device.type == "cpu" and target.is_contiguous()
        found = target if is_direct else torch.empty(target.shape, dtype=target.dtype)
        data, done = bytes_of(found), 0
        while done < data.size:  # a call moves at most 2 GiB
            try:
                count = os.preadv(self._descriptor, [data.data[done:]], place.offset_bytes + done)
            except OSError as error:
                raise CarrierFailed(f"segment {self.segment}: {error}") from error
            if not count:
                raise CarrierFailed(f"segment {self.segment} was cut")
            done += count
        if not is_direct:
            _copy(target, found)

    def refer(self, message: tensor_pb2.Tensor, place: Place) -> None:
        message.shared_memory.segment = self.segment
        message.shared_memory.slot = place.slot
        message.shared_memory.offset_bytes = place.offset_bytes
        message.shared_memory.size_bytes = place.size_bytes
        message.shared_memory.generation = place.generation

    def place_of(self, message: tensor_pb2.Tensor) -> Place:
        if not self.segment and message.WhichOneof("data") == "shared_memory":
            try:
                self._open(message.shared_memory.segment)
            except PreconditionFailed as error:
                raise CarrierFailed(error.message) from error
        if (
            message.WhichOneof("data") != "shared_memory"
            or message.shared_memory.segment != self.segment
        ):
            raise InvalidInput(
                f"a tensor came by {message.WhichOneof('data')} of "
                f"{message.shared_memory.segment[:100]!r}, the stream's segment is {self.segment}",
                reason="CARRIER_NOT_CHOSEN",
            )
        slot = message.shared_memory
        return Place(slot.slot, slot.offset_bytes, slot.size_bytes, slot.generation)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy between tensors of one dtype and shape, which overlap nowhere.

    The C library's copy, where it can do it, is quicker than torch's on one thread, and starts no
    threads: a receiving thread would get a pool of its own."""
    on_cpu = target.device.type == source.device.type == "cpu"
    if on_cpu and target.is_contiguous() and source.is_contiguous() and not source.is_neg():
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
    else:
        target.copy_(source)


def _view(memory: torch.Tensor, place: Place, like: torch.Tensor) -> torch.Tensor:
    """A tensor in place, of the dtype and shape of another."""
    flat = memory[place.offset_bytes : place.offset_bytes + place.size_bytes]
    return flat.view(like.dtype).view(like.shape)

"""Tensors in staging memory: a few slots of equal size that the sender fills and the receiver
copies out of, each exactly once.

Where the memory lies and how a message names a place in it differs (Staging: shared memory here,
CUDA in cuda_ipc); what a slot is does not. A tensor's header, its dtype and shape, is the same for
all carriers.

Shared memory is a file. The sender creates the segment, allocated up front, and maps it; the
receiver attaches it: it removes its name where it may, and reads without a mapping, as a file that
the other side cuts would end a process that has mapped it. So each side writes into its own folder
only. The creator's death leaves a file that the next sweep of the folder removes (`SharedFolder`).

The two ends, SlotWriter and SlotReader, never wait forever. A slot is handed over with the header
that names it, all tensors of a header being in one, and comes back with a SlotReturn that repeats
its generation. So a return that is late (the slot has been handed over again) or comes twice
changes nothing. Headers are read in order, so a return also hands back what was handed over before;
where there are many slots the receiver speaks up only when half of them are read, for a return
costs as much as a header."""

from __future__ import annotations

import ctypes
import logging
import math
import mmap
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from podracer.common.v1 import tensor_pb2
from podracer_core.errors import Exhausted, InvalidInput, PreconditionFailed
from podracer_platform.shared_folder import SEGMENT, NamedFile, SharedFolder

PAYLOAD_BYTES = 1 << 31
"""Bytes of all tensors of one header that a receiver accepts."""

MAX_TENSORS = 4096
"""Most tensors of one header."""

_MAX_AXES = 8
_MAX_STRIDE = 1 << 60  # an axis of 0 makes any other one possible, but not its strides

_DTYPES: dict[torch.dtype, tensor_pb2.DataType.ValueType] = {
    torch.float32: tensor_pb2.DATA_TYPE_FLOAT32,
    torch.float64: tensor_pb2.DATA_TYPE_FLOAT64,
    torch.float16: tensor_pb2.DATA_TYPE_FLOAT16,
    torch.bfloat16: tensor_pb2.DATA_TYPE_BFLOAT16,
    torch.uint8: tensor_pb2.DATA_TYPE_UINT8,
    torch.int8: tensor_pb2.DATA_TYPE_INT8,
    torch.int16: tensor_pb2.DATA_TYPE_INT16,
    torch.int32: tensor_pb2.DATA_TYPE_INT32,
    torch.int64: tensor_pb2.DATA_TYPE_INT64,
    torch.bool: tensor_pb2.DATA_TYPE_BOOL,
}
_TORCH_DTYPES = {number: dtype for dtype, number in _DTYPES.items()}


def header_of(tensor: torch.Tensor) -> tensor_pb2.Tensor:
    """The message without its bytes. Raises InvalidInput for a dtype or a rank that the wire does
    not know."""
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None or tensor.dim() > _MAX_AXES:
        raise InvalidInput(
            f"a tensor of {tensor.dtype} with {tensor.dim()} axes has no form on the wire"
        )
    return tensor_pb2.Tensor(dtype=dtype, shape=tensor.shape)


def size_bytes_of(message: tensor_pb2.Tensor) -> int:
    """Bytes that dtype and shape stand for. Raises InvalidInput for what is neither."""
    dtype = _TORCH_DTYPES.get(message.dtype)
    shape = tuple(message.shape[: _MAX_AXES + 1])
    if (
        dtype is None
        or len(shape) > _MAX_AXES
        or min(shape, default=0) < 0
        or math.prod([size or 1 for size in shape]) > _MAX_STRIDE
    ):
        raise InvalidInput(
            f"not a tensor: dtype {message.dtype}, shape {list(shape)}", reason="BAD_TENSOR"
        )
    return math.prod(shape) * int(dtype.itemsize)


def empty_for(message: tensor_pb2.Tensor, device: torch.device | str = "cpu") -> torch.Tensor:
    """A tensor of the message's dtype and shape. Raises InvalidInput where it cannot be one, or is
    too large."""
    size = size_bytes_of(message)
    if size > PAYLOAD_BYTES:
        raise InvalidInput(
            f"a tensor of {size} bytes is more than {PAYLOAD_BYTES}", reason="PAYLOAD_TOO_LARGE"
        )
    return torch.empty(tuple(message.shape), dtype=_TORCH_DTYPES[message.dtype], device=device)


def bytes_of(tensor: torch.Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The tensor's bytes, row-major and flat: a view where it lies contiguous on the CPU."""
    flat: np.ndarray[tuple[int], np.dtype[Any]] = (
        tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    )
    return flat


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


logger = logging.getLogger(__name__)


class SlotTable:
    """Free slots, and the number of times that each has been handed over. Safe to use from several
    threads."""

    def __init__(self, count: int) -> None:
        self._changed = threading.Condition()
        self._free = deque(range(count))
        self._generations = [0] * count
        self._away: dict[int, int] = {}  # slot -> generation, the longest away first

    def acquire(self, timeout_s: float) -> tuple[int, int] | None:
        """A free slot and its generation from now on, from 1; None where none comes back in
        time."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self._free:
                if not self._changed.wait(deadline - time.monotonic()) and not self._free:
                    return None
            slot = self._free.popleft()
            self._generations[slot] += 1
            self._away[slot] = self._generations[slot]
            return slot, self._generations[slot]

    def abandon(self, slot: int) -> None:
        """Take a slot back that was not handed over after all."""
        with self._changed:
            del self._away[slot]
            self._free.append(slot)
            self._changed.notify()

    def release(self, slot: int, generation: int) -> bool:
        """Take back a slot, and those that went before it; False for a return that is late or comes
        twice.

        Raises InvalidInput for one that was never handed over.
        """
        with self._changed:
            if (
                not 0 <= slot < len(self._generations)
                or not 0 < generation <= self._generations[slot]
            ):
                raise InvalidInput(
                    f"slot {slot} came back with generation {generation}, with which it was never "
                    "handed over",
                    reason="BAD_SLOT_RETURN",
                )
            if self._away.get(slot) != generation:
                return False
            for earlier in list(self._away):
                del self._away[earlier]
                self._free.append(earlier)
                if earlier == slot:
                    break
            self._changed.notify()
            return True


class SlotWriter:
    """The sending end. One thread stages, another may take slots back meanwhile."""

    def __init__(self, staging: Staging, wait_s: float = 0.0) -> None:
        """`wait_s`: how long `stage` waits for a slot, at most."""
        self._staging, self._wait_s = staging, wait_s
        self._table = SlotTable(staging.layout.slot_count)
        self._complained = False

    def stage(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, tensor_pb2.Tensor]:
        """Copy into one slot what is large enough to be worth it and fits; the messages hand the
        slot over.

        Empty where nothing is, or where no slot is free: what is missing has to go inline. The
        tensors may have any strides and lie on any device, and may change afterwards. Raises
        InvalidInput for a dtype or a rank that the wire does not know."""
        places = self._places(tensors)
        if not places:
            return {}
        messages = {name: header_of(tensors[name]) for name in places}
        lease = self._table.acquire(self._wait_s)
        if lease is None:
            self._complain()
            return {}
        slot, generation = lease
        start = slot * self._staging.layout.slot_size_bytes
        try:
            for name, (offset, size) in places.items():
                tensor = tensors[name].detach()
                place = Place(slot, start + offset, size, generation)
                self._staging.write(place, tensor)
                self._staging.refer(messages[name], place)
            self._staging.synchronize()
        except (RuntimeError, CarrierFailed):
            # the slot was not handed over, so it will not be returned
            self._table.abandon(slot)
            raise
        return messages

    def take_back(self, message: tensor_pb2.SlotReturn) -> None:
        """A slot has come back. Raises InvalidInput for one that is not of this memory, or was
        never handed over."""
        if message.segment != self._staging.segment:
            raise InvalidInput(
                f"a slot of {message.segment[:100]!r} was returned, the stream's is "
                f"{self._staging.segment!r}",
                reason="BAD_SLOT_RETURN",
            )
        self._table.release(message.slot, message.generation)

    def close(self) -> None:
        """Give the memory back."""
        self._staging.close()

    def _places(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, int]]:
        """Name -> offset within a slot and size, of those that go there."""
        room, offset = self._staging.layout.slot_size_bytes, 0
        places: dict[str, tuple[int, int]] = {}
        for name, tensor in tensors.items():
            size = tensor.numel() * tensor.element_size()
            if size and size >= self._staging.inline_below_bytes and offset + size <= room:
                places[name] = (offset, size)
                offset += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return places

    def _complain(self) -> None:
        if not self._complained:
            self._complained = True
            logger.warning(
                "none of %d staging slots was returned within %.1f s: sending tensors inline until "
                "one is",
                self._staging.layout.slot_count,
                self._wait_s,
            )


class SlotReader:
    """The receiving end, in one thread. What comes off the wire is checked before it is touched."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._generations = [0] * staging.layout.slot_count
        self._unreturned, self._return_every = 0, max(staging.layout.slot_count // 2, 1)

    @property
    def device(self) -> torch.device:
        """The device of the memory, where arriving tensors are wanted."""
        return self._staging.device

    def read(
        self, messages: Mapping[str, tensor_pb2.Tensor], targets: Mapping[str, torch.Tensor]
    ) -> tensor_pb2.SlotReturn | None:
        """Copy what the messages of one header (at least one) name into `targets`, of their dtypes
        and shapes; returns what hands their slot back, if it is time to: it is free for the sender
        once that is sent.

        Raises InvalidInput for a place outside its slot, of another size than its tensor, or handed
        over before."""
        places = {name: self._checked(name, message) for name, message in messages.items()}
        if len({(place.slot, place.generation) for place in places.values()}) > 1:
            raise InvalidInput(
                "the tensors of one header are in several slots, expected one", reason="BAD_SLOT"
            )
        for name, place in places.items():
            self._staging.read(place, targets[name])
        self._staging.synchronize()
        self._generations[place.slot] = place.generation
        self._unreturned += 1
        if self._unreturned < self._return_every:
            return None
        self._unreturned = 0
        return tensor_pb2.SlotReturn(
            segment=self._staging.segment, slot=place.slot, generation=place.generation
        )

    def _checked(self, name: str, message: tensor_pb2.Tensor) -> Place:
        place = self._staging.place_of(message)
        layout = self._staging.layout
        size = size_bytes_of(message)
        first = place.slot * layout.slot_size_bytes
        wrong = ""
        if not 0 <= place.slot < layout.slot_count:
            wrong = f"there are {layout.slot_count} slots"
        elif place.size_bytes != size:
            wrong = f"its shape stands for {size} bytes"
        elif place.offset_bytes % ALIGNMENT_BYTES:
            wrong = f"an offset is a multiple of {ALIGNMENT_BYTES}"
        elif not first <= place.offset_bytes <= first + layout.slot_size_bytes - size:
            wrong = f"the slot has the bytes from {first} to {first + layout.slot_size_bytes}"
        elif place.generation <= self._generations[place.slot]:
            wrong = f"the slot has been handed over {self._generations[place.slot]} times already"
        if wrong:
            raise InvalidInput(
                f"tensor {name!r} is said to be at {place}, but {wrong}", reason="BAD_SLOT"
            )
        return place

"""Staging slots in a file that two processes of one machine have mapped.

The answering side of a stream creates the segment, allocated up front; the opener attaches it and removes its name at
once. From then on the memory lives exactly as long as the two mappings, however the processes end. Before that, the
creator's death leaves a file that the next sweep of the folder removes (`SharedFolder`).
"""

from __future__ import annotations

import mmap
import os

import torch

from podracer.common.v1 import tensor_pb2
from podracer_core.carriers.shared_folder import SEGMENT, NamedFile, SharedFolder
from podracer_core.carriers.staging import Place, SlotLayout, Staging
from podracer_core.errors import Exhausted, InvalidInput

INLINE_BELOW_BYTES = 16 << 10
"""Below this a tensor's bytes in the message cost less than a slot and its return."""


class SharedMemory(Staging):
    """A mapped segment. Made by `create` on the one side and `attach` on the other."""

    kind = tensor_pb2.CARRIER_KIND_SHARED_MEMORY
    device = torch.device("cpu")
    inline_below_bytes = INLINE_BELOW_BYTES

    def __init__(self, segment: str, layout: SlotLayout, descriptor: int, file: NamedFile | None = None) -> None:
        """Raises Exhausted where there is no room in this process's address space."""
        self.segment, self.layout = segment, layout
        self._file = file  # the creator's
        try:
            # Never closed: it would not wait for tensors that still look into it. It goes with the last of them.
            mapping = mmap.mmap(descriptor, layout.size_bytes)
        except (OSError, ValueError) as error:
            raise Exhausted(f"cannot map {layout.size_bytes} bytes: {error}", reason="SHARED_MEMORY_FULL") from error
        self._memory = torch.frombuffer(mapping, dtype=torch.uint8)

    @classmethod
    def create(cls, folder: SharedFolder, layout: SlotLayout) -> SharedMemory:
        """A new segment. Raises Exhausted where the folder has no room, PreconditionFailed where it takes no files."""
        file = folder.create(SEGMENT, layout.size_bytes)
        try:
            return cls(file.name, layout, file.descriptor, file)
        except Exhausted:
            file.close()
            raise

    @classmethod
    def attach(cls, folder: SharedFolder, segment: str, layout: SlotLayout) -> SharedMemory:
        """The other side's segment, which has no name afterwards.

        Raises InvalidInput for a name that is none and for a file that is smaller than the layout, PreconditionFailed
        where there is no such file, Exhausted where it cannot be mapped.
        """
        descriptor = folder.open(segment)
        try:
            size_bytes = os.fstat(descriptor).st_size
            if size_bytes < layout.size_bytes:  # to touch what lies behind a file's end is a SIGBUS
                raise InvalidInput(
                    f"segment {segment} has {size_bytes} bytes, the layout {layout.size_bytes}", reason="BAD_CARRIER"
                )
            attached = cls(segment, layout, descriptor)
        finally:
            os.close(descriptor)  # the mapping has its own
        folder.unlink(segment)
        return attached

    @property
    def memory(self) -> torch.Tensor:
        return self._memory

    def refer(self, message: tensor_pb2.Tensor, place: Place) -> None:
        message.shared_memory.segment = self.segment
        message.shared_memory.slot = place.slot
        message.shared_memory.offset_bytes = place.offset_bytes
        message.shared_memory.size_bytes = place.size_bytes
        message.shared_memory.generation = place.generation

    def place_of(self, message: tensor_pb2.Tensor) -> Place:
        if message.WhichOneof("data") != "shared_memory" or message.shared_memory.segment != self.segment:
            raise InvalidInput(
                f"a tensor came by {message.WhichOneof('data')} of {message.shared_memory.segment[:100]!r}, the "
                f"stream's segment is {self.segment}",
                reason="CARRIER_NOT_CHOSEN",
            )
        slot = message.shared_memory
        return Place(slot.slot, slot.offset_bytes, slot.size_bytes, slot.generation)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

"""The two ends of a stream's staging slots: the writer and the reader. Neither waits forever.

A slot is handed over with the header that names it, all tensors of a header being in one, and comes
back with a SlotReturn that repeats its generation. So a return that is late (the slot has been
handed over again) or comes twice changes nothing. Headers are read in order, so a return also hands
back what was handed over before; where there are many slots the receiver speaks up only when half
of them are read, for a return costs as much as a header."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping

import torch

from podracer.common.v1 import tensor_pb2
from podracer_core.errors import InvalidInput
from podracer_platform.carriers.staging import ALIGNMENT_BYTES, CarrierFailed, Place, Staging
from podracer_platform.carriers.wire import header_of, size_bytes_of

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

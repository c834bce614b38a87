"""The carrier that always works, a tensor's bytes in a gRPC message or in chunks after it; and both
ends of a stream.

A message carries at most 1 MiB of tensor bytes; what does not fit is announced in it and follows on
the same stream as TensorChunk messages, in order. Encoding copies a tensor once (into the `bytes`
that protobuf wants) and decoding once (into memory of its own, so that the result may be written to
and outlives the message).

If the stream has staging slots (`slots`), large tensors go there. Tensors that do not fit, or find
no free slot, go inline. So sender and receiver need not know the carrier."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch

from podracer.common.v1 import tensor_pb2
from podracer_core.errors import InvalidInput
from podracer_platform.carriers.slots import (
    MAX_TENSORS,
    PAYLOAD_BYTES,
    SlotReader,
    SlotWriter,
    bytes_of,
    empty_for,
    header_of,
    size_bytes_of,
)

Message = TypeVar("Message", bound=Any)

CHUNK_BYTES = 1 << 20
"""Tensor bytes in one message at most."""

_STAGED = ("shared_memory", "cuda_ipc")


def encode_tensor(tensor: torch.Tensor) -> tensor_pb2.Tensor:
    """The whole tensor inline, however large. Raises InvalidInput for a dtype or a rank that the
    wire does not know."""
    message = header_of(tensor)
    if tensor.numel():
        message.inline = bytes_of(tensor).tobytes()
    return message


def decode_tensor(message: tensor_pb2.Tensor) -> torch.Tensor:
    """A new CPU tensor from an inline message. Raises InvalidInput unless the bytes are exactly its
    elements."""
    carrier = message.WhichOneof("data")
    if carrier not in ("inline", None):
        raise InvalidInput(
            f"a tensor came by {carrier}, expected inline bytes", reason="CARRIER_NOT_CHOSEN"
        )
    data, size = message.inline, size_bytes_of(message)
    if len(data) != size:
        raise InvalidInput(
            f"a tensor of shape {list(message.shape)} has {size} bytes, {len(data)} came",
            reason="BAD_TENSOR",
        )
    tensor = empty_for(message)
    bytes_of(tensor)[...] = np.frombuffer(data, np.uint8)
    return tensor


class TensorEncoder:
    """The sending end of one stream: hands over slots, and splits what is too large for a message
    into chunks."""

    def __init__(self, message_bytes: int = CHUNK_BYTES, slots: SlotWriter | None = None) -> None:
        """`message_bytes`: of tensors in one message, at most CHUNK_BYTES. `slots`: of the stream,
        where it has any."""
        self._message_bytes = message_bytes
        self._slots = slots
        self._payload_ids = itertools.count(1)

    def encode(
        self, tensors: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, tensor_pb2.Tensor], list[tensor_pb2.TensorChunk]]:
        """The header's message, and the chunks that must follow it at once. The tensors may change
        afterwards."""
        messages = self._slots.stage(tensors) if self._slots is not None else {}
        chunks: list[tensor_pb2.TensorChunk] = []
        room = self._message_bytes
        for name, tensor in tensors.items():
            if name in messages:
                continue
            size = tensor.numel() * tensor.element_size()
            if size <= room:
                messages[name] = encode_tensor(tensor)
                room -= size
                continue
            message = header_of(tensor)
            message.chunked.payload_id = next(self._payload_ids)
            message.chunked.size_bytes = size
            messages[name] = message
            chunks += self._chunks(bytes_of(tensor), message.chunked.payload_id)
        return messages, chunks

    def _chunks(
        self, data: np.ndarray[tuple[int], np.dtype[np.uint8]], payload_id: int
    ) -> Iterable[tensor_pb2.TensorChunk]:
        step = self._message_bytes
        return [
            tensor_pb2.TensorChunk(
                payload_id=payload_id,
                offset_bytes=offset,
                data=data[offset : offset + step].tobytes(),
            )
            for offset in range(0, data.size, step)
        ]


def chunk_messages(
    message: Callable[[], Message], chunks: Iterable[tensor_pb2.TensorChunk]
) -> Iterator[Message]:
    """A message for each chunk, in its field `chunk`."""
    for chunk in chunks:
        sent = message()
        sent.chunk.CopyFrom(chunk)  # as an argument it would be serialized and parsed
        yield sent


class TensorDecoder:
    """The receiving end of one stream: `begin` with a header's tensors, then `add` each chunk, then
    `take`."""

    def __init__(self, payload_bytes: int = PAYLOAD_BYTES) -> None:
        self._payload_bytes = payload_bytes
        self._slots: SlotReader | None = None
        self._give_back: Callable[[tensor_pb2.SlotReturn], None] | None = None
        self._tensors: dict[str, torch.Tensor] = {}
        self._wanted: Mapping[str, torch.Tensor] = {}
        self._open: dict[int, tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], int]] = {}

    def use_slots(
        self, slots: SlotReader, give_back: Callable[[tensor_pb2.SlotReturn], None]
    ) -> None:
        """Accept tensors in these slots from the next header on. `give_back` sends a return to the
        other side, as soon as a slot has been copied out."""
        # in this order: another thread may be decoding
        self._give_back, self._slots = give_back, slots

    @property
    def complete(self) -> bool:
        """Whether every announced byte has come."""
        return not self._open

    def begin(
        self,
        messages: Mapping[str, tensor_pb2.Tensor],
        into: Mapping[str, torch.Tensor] | None = None,
    ) -> bool:
        """Start with a header; True if it brought everything. Tensors of `into` take what comes by
        their names, whatever their strides and devices. Raises InvalidInput for a header that
        cannot be right."""
        if self._open:
            raise InvalidInput(
                "a new header came before all chunks of the previous one", reason="BAD_TENSOR"
            )
        if len(messages) > MAX_TENSORS:
            raise InvalidInput(
                f"a message has {len(messages)} tensors, more than {MAX_TENSORS}",
                reason="BAD_TENSOR",
            )
        if sum(size_bytes_of(message) for message in messages.values()) > self._payload_bytes:
            raise InvalidInput(
                f"a message announces more than {self._payload_bytes} bytes",
                reason="PAYLOAD_TOO_LARGE",
            )
        self._tensors, self._wanted = {}, into or {}
        staged: dict[str, tensor_pb2.Tensor] = {}
        for name, message in messages.items():
            self._require_fit(name, message)
            kind = message.WhichOneof("data")
            if kind in _STAGED and self._slots is not None:
                staged[name] = message
            elif kind == "chunked":
                self._tensors[name] = self._announced(name, message)
            else:
                self._tensors[name] = decode_tensor(message)
        if staged:
            self._read(staged)
        return self.complete

    def add(self, chunk: tensor_pb2.TensorChunk) -> bool:
        """Take the next piece; True once everything is there. Raises InvalidInput for one that does
        not fit."""
        if chunk.payload_id not in self._open:
            raise InvalidInput(
                f"a chunk has the unannounced payload {chunk.payload_id}", reason="BAD_TENSOR"
            )
        target, filled = self._open[chunk.payload_id]
        data = chunk.data
        if chunk.offset_bytes != filled or not data or filled + len(data) > target.size:
            raise InvalidInput(
                f"received {len(data)} bytes for offset {chunk.offset_bytes}; {filled} of "
                f"{target.size} are complete",
                reason="BAD_TENSOR",
            )
        target[filled : filled + len(data)] = np.frombuffer(data, np.uint8)
        filled += len(data)
        if filled < target.size:
            self._open[chunk.payload_id] = (target, filled)
        else:
            del self._open[chunk.payload_id]
        return self.complete

    def take(self) -> dict[str, torch.Tensor]:
        """The tensors, once `complete`; they are the caller's, and lie where the stream's slots
        do."""
        if self._open:
            raise InvalidInput(f"{len(self._open)} payloads are not complete", reason="BAD_TENSOR")
        tensors, self._tensors = self._tensors, {}
        for name, tensor in tensors.items():
            wanted = self._wanted.get(name)
            if wanted is not None and wanted is not tensor:
                tensors[name] = wanted.copy_(tensor)
            elif self._slots is not None:
                tensors[name] = tensor.to(self._slots.device)
        return tensors

    def _require_fit(self, name: str, message: tensor_pb2.Tensor) -> None:
        wanted = self._wanted.get(name)
        if wanted is not None and (header_of(wanted).dtype, list(wanted.shape)) != (
            message.dtype,
            list(message.shape),
        ):
            raise InvalidInput(
                f"tensor {name!r} has dtype {message.dtype} and shape {list(message.shape)}; it is "
                f"to fill one of {wanted.dtype} and {list(wanted.shape)}",
                reason="BAD_TENSOR",
            )

    def _announced(self, name: str, message: tensor_pb2.Tensor) -> torch.Tensor:
        """A tensor whose bytes are still to come."""
        wanted = self._wanted.get(name)
        in_place = wanted is not None and wanted.is_contiguous() and wanted.device.type == "cpu"
        tensor = wanted if wanted is not None and in_place else empty_for(message)
        payload, target = message.chunked, bytes_of(tensor)
        if payload.size_bytes != target.size or payload.payload_id in self._open:
            raise InvalidInput(
                f"the payload size of tensor {name!r} does not match its shape", reason="BAD_TENSOR"
            )
        if target.size:
            self._open[payload.payload_id] = (target, 0)
        return tensor

    def _read(self, messages: Mapping[str, tensor_pb2.Tensor]) -> None:
        slots, give_back = self._slots, self._give_back
        assert slots is not None and give_back is not None, "begin has looked"
        for name, message in messages.items():
            wanted = self._wanted.get(name)
            self._tensors[name] = wanted if wanted is not None else empty_for(message, slots.device)
        returned = slots.read(messages, self._tensors)
        if returned is not None:
            give_back(returned)

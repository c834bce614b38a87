"""The carrier that always works: a tensor's bytes inside a gRPC message, or in chunks after it.

A message carries at most 1 MiB of tensor bytes; what does not fit is announced in it and follows on the same stream as
TensorChunk messages, in order. Encoding copies a tensor once (into the `bytes` that protobuf wants) and decoding once
(into memory of its own, so that the result may be written to and outlives the message).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch

from podracer.common.v1 import tensor_pb2
from podracer_core.errors import InvalidInput

__all__ = ["CHUNK_BYTES", "TensorDecoder", "TensorEncoder", "decode_tensor", "encode_tensor"]

CHUNK_BYTES = 1 << 20
"""Tensor bytes in one message at most."""

PAYLOAD_BYTES = 1 << 31
"""Bytes of all tensors of one header that a receiver accepts."""

_MAX_AXES = 8

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


def encode_tensor(tensor: torch.Tensor) -> tensor_pb2.Tensor:
    """The whole tensor inline, however large. Raises InvalidInput for a dtype or a rank that the wire does not know."""
    message = _header(tensor)
    if tensor.numel():
        message.inline = _bytes_of(tensor).tobytes()
    return message


def decode_tensor(message: tensor_pb2.Tensor) -> torch.Tensor:
    """A new CPU tensor from an inline message. Raises InvalidInput unless the bytes are exactly its elements."""
    carrier = message.WhichOneof("data")
    if carrier not in ("inline", None):
        raise InvalidInput(f"a tensor came by {carrier}, expected inline bytes", reason="CARRIER_NOT_CHOSEN")
    tensor = _empty(message)
    data = message.inline
    target = _bytes_of(tensor)
    if len(data) != target.size:
        raise InvalidInput(
            f"a tensor of shape {list(message.shape)} has {target.size} bytes, {len(data)} came", reason="BAD_TENSOR"
        )
    target[...] = np.frombuffer(data, np.uint8)
    return tensor


class TensorEncoder:
    """The sending end of one stream: splits what is too large for a message into chunks."""

    def __init__(self, message_bytes: int = CHUNK_BYTES) -> None:
        self._message_bytes = message_bytes
        self._payload_ids = itertools.count(1)

    def encode(
        self, tensors: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, tensor_pb2.Tensor], list[tensor_pb2.TensorChunk]]:
        """What the header holds, and the chunks that must follow it at once. The tensors may change afterwards."""
        messages: dict[str, tensor_pb2.Tensor] = {}
        chunks: list[tensor_pb2.TensorChunk] = []
        room = self._message_bytes
        for name, tensor in tensors.items():
            size = tensor.numel() * tensor.element_size()
            if size <= room:
                messages[name] = encode_tensor(tensor)
                room -= size
                continue
            message = _header(tensor)
            message.chunked.payload_id = next(self._payload_ids)
            message.chunked.size_bytes = size
            messages[name] = message
            chunks += _chunks(_bytes_of(tensor), message.chunked.payload_id)
        return messages, chunks


class TensorDecoder:
    """The receiving end of one stream: `begin` with a header's tensors, then `add` each chunk, then `take`."""

    def __init__(self, payload_bytes: int = PAYLOAD_BYTES) -> None:
        self._payload_bytes = payload_bytes
        self._tensors: dict[str, torch.Tensor] = {}
        self._open: dict[int, tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], int]] = {}

    @property
    def complete(self) -> bool:
        """Whether every announced byte has come."""
        return not self._open

    def begin(self, messages: Mapping[str, tensor_pb2.Tensor]) -> bool:
        """Start with a header; True if it brought everything. Raises InvalidInput for a header that cannot be right."""
        if self._open:
            raise InvalidInput("a new header came before the chunks of the one before it", reason="BAD_TENSOR")
        if sum(_size_bytes(message) for message in messages.values()) > self._payload_bytes:
            raise InvalidInput(f"a message announces more than {self._payload_bytes} bytes", reason="PAYLOAD_TOO_LARGE")
        self._tensors = {}
        for name, message in messages.items():
            if message.WhichOneof("data") != "chunked":
                self._tensors[name] = decode_tensor(message)
                continue
            payload, tensor = message.chunked, _empty(message)
            target = _bytes_of(tensor)
            if payload.size_bytes != target.size or payload.payload_id in self._open:
                raise InvalidInput(f"the payload of tensor {name!r} is not what its shape says", reason="BAD_TENSOR")
            self._tensors[name] = tensor
            if target.size:
                self._open[payload.payload_id] = (target, 0)
        return self.complete

    def add(self, chunk: tensor_pb2.TensorChunk) -> bool:
        """Take the next piece; True once everything is there. Raises InvalidInput for one that does not fit."""
        if chunk.payload_id not in self._open:
            raise InvalidInput(
                f"a chunk of payload {chunk.payload_id} came, which nobody announced", reason="BAD_TENSOR"
            )
        target, filled = self._open[chunk.payload_id]
        data = chunk.data
        if chunk.offset_bytes != filled or not data or filled + len(data) > target.size:
            raise InvalidInput(
                f"{len(data)} bytes came for offset {chunk.offset_bytes}; {filled} of {target.size} are there",
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
        """The tensors, once `complete`; they are the caller's."""
        if self._open:
            raise InvalidInput(f"{len(self._open)} payloads are not complete", reason="BAD_TENSOR")
        tensors, self._tensors = self._tensors, {}
        return tensors


def _header(tensor: torch.Tensor) -> tensor_pb2.Tensor:
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None or tensor.dim() > _MAX_AXES:
        raise InvalidInput(f"a tensor of {tensor.dtype} with {tensor.dim()} axes has no form on the wire")
    return tensor_pb2.Tensor(dtype=dtype, shape=tensor.shape)


def _size_bytes(message: tensor_pb2.Tensor) -> int:
    """Bytes that dtype and shape stand for. Raises InvalidInput for what is neither."""
    dtype = _TORCH_DTYPES.get(message.dtype)
    if dtype is None or len(message.shape) > _MAX_AXES or any(size < 0 for size in message.shape):
        raise InvalidInput(
            f"not a tensor: dtype {message.dtype}, shape {list(message.shape[: _MAX_AXES + 1])}", reason="BAD_TENSOR"
        )
    return math.prod(message.shape) * int(dtype.itemsize)


def _empty(message: tensor_pb2.Tensor) -> torch.Tensor:
    size = _size_bytes(message)
    if size > PAYLOAD_BYTES:
        raise InvalidInput(f"a tensor of {size} bytes is more than {PAYLOAD_BYTES}", reason="PAYLOAD_TOO_LARGE")
    return torch.empty(tuple(message.shape), dtype=_TORCH_DTYPES[message.dtype])


def _bytes_of(tensor: torch.Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The tensor's bytes, row-major and flat: a view where it lies contiguous on the CPU."""
    flat: np.ndarray[tuple[int], np.dtype[np.uint8]] = (
        tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    )
    return flat


def _chunks(data: np.ndarray[tuple[int], np.dtype[np.uint8]], payload_id: int) -> Iterable[tensor_pb2.TensorChunk]:
    return [
        tensor_pb2.TensorChunk(
            payload_id=payload_id, offset_bytes=offset, data=data[offset : offset + CHUNK_BYTES].tobytes()
        )
        for offset in range(0, data.size, CHUNK_BYTES)
    ]

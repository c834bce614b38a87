"""A tensor on the wire, the same for all carriers: dtype and shape, and the number of bytes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from podracer.common.v1 import tensor_pb2
from podracer_core.errors import InvalidInput

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


def dtype_of(message: tensor_pb2.Tensor) -> torch.dtype:
    """dtype of a message that `size_bytes_of` has accepted."""
    return _TORCH_DTYPES[message.dtype]


def empty_for(message: tensor_pb2.Tensor, device: torch.device | str = "cpu") -> torch.Tensor:
    """A tensor of the message's dtype and shape. Raises InvalidInput where it cannot be one, or is
    too large."""
    size = size_bytes_of(message)
    if size > PAYLOAD_BYTES:
        raise InvalidInput(
            f"a tensor of {size} bytes is more than {PAYLOAD_BYTES}", reason="PAYLOAD_TOO_LARGE"
        )
    return torch.empty(tuple(message.shape), dtype=dtype_of(message), device=device)


def bytes_of(tensor: torch.Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The tensor's bytes, row-major and flat: a view where it lies contiguous on the CPU."""
    flat: np.ndarray[tuple[int], np.dtype[Any]] = (
        tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    )
    return flat

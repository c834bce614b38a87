"""Tensors through messages: bit for bit, whatever their type and size, and nothing that does not
add up."""

from __future__ import annotations

import pytest
import torch

from podracer.common.v1 import tensor_pb2
from podracer_core.errors import InvalidInput
from podracer_platform.carriers import (
    CHUNK_BYTES,
    MAX_TENSORS,
    TensorDecoder,
    TensorEncoder,
    decode_tensor,
    encode_tensor,
)
from support.errors import raises

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
]  # fmt: skip


def through_bytes(message: tensor_pb2.Tensor) -> tensor_pb2.Tensor:
    return tensor_pb2.Tensor.FromString(message.SerializeToString())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (2, 3, 4)], ids=str)
def test_every_dtype_and_shape_comes_back_bit_for_bit(dtype, shape):
    tensor = (torch.randn(shape) * 50).to(dtype)
    back = decode_tensor(through_bytes(encode_tensor(tensor)))
    assert back.dtype == dtype
    assert back.shape == shape
    assert torch.equal(back, tensor)


def test_special_values_keep_their_bits():
    tensor = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    assert torch.equal(
        decode_tensor(encode_tensor(tensor)).view(torch.int32), tensor.view(torch.int32)
    )


def test_a_view_with_strides_is_sent_as_it_reads():
    tensor = torch.arange(24.0).view(2, 3, 4).transpose(0, 2)[1:]
    assert torch.equal(decode_tensor(encode_tensor(tensor)), tensor)


def test_a_tensor_that_requires_grad_is_sent_as_values():
    tensor = torch.ones(3, requires_grad=True)
    assert torch.equal(decode_tensor(encode_tensor(tensor)), tensor.detach())


def test_what_is_decoded_is_the_receivers_own():
    message = encode_tensor(torch.zeros(4))
    first = decode_tensor(message)
    first += 1
    assert torch.equal(decode_tensor(message), torch.zeros(4))


@pytest.mark.parametrize(
    "message",
    [
        tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[3], inline=b"\0" * 11),
        tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[3], inline=b"\0" * 13),
        tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[3]),
        tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[-1], inline=b""),
        tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_UNSPECIFIED, shape=[1], inline=b"\0"),
        tensor_pb2.Tensor(dtype=77, shape=[1], inline=b"\0"),
        tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_UINT8, shape=[1] * 9, inline=b"\0"),
        tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_UINT8, shape=[1 << 40, 1 << 40], inline=b"\0"),
        tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_UINT8, shape=[(1 << 31) - 1] * 7 + [0]),
        tensor_pb2.Tensor(
            dtype=tensor_pb2.DATA_TYPE_UINT8,
            shape=[1],
            shared_memory=tensor_pb2.SharedMemorySlot(segment="x"),
        ),
    ],
    ids=[
        "short",
        "long",
        "missing",
        "negative",
        "no dtype",
        "unknown dtype",
        "axes",
        "huge",
        "huge and empty",
        "other carrier",
    ],
)
def test_a_message_that_does_not_add_up_is_refused(message):
    with pytest.raises(InvalidInput):
        decode_tensor(message)


def test_a_dtype_without_a_form_on_the_wire_is_refused():
    with pytest.raises(InvalidInput, match="complex64"):
        encode_tensor(torch.zeros(2, dtype=torch.complex64))


def test_small_tensors_go_inline_and_large_ones_in_chunks():
    tensors = {
        "small": torch.arange(5),
        "large": torch.randn(700_000),
        "after": torch.ones(3, dtype=torch.bool),
    }
    messages, chunks = TensorEncoder().encode(tensors)
    assert messages["small"].WhichOneof("data") == messages["after"].WhichOneof("data") == "inline"
    assert messages["large"].WhichOneof("data") == "chunked"
    assert all(len(chunk.data) <= CHUNK_BYTES for chunk in chunks)
    decoder = TensorDecoder()
    assert not decoder.begin(messages)
    completed = [decoder.add(chunk) for chunk in chunks]
    assert completed == [False] * (len(chunks) - 1) + [True]
    back = decoder.take()
    assert list(back) == list(tensors)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_no_message_carries_more_than_its_limit_even_of_many_small_tensors():
    tensors = {str(index): torch.randn(30_000) for index in range(20)}
    messages, chunks = TensorEncoder().encode(tensors)
    assert sum(len(message.inline) for message in messages.values()) <= CHUNK_BYTES
    decoder = TensorDecoder()
    decoder.begin(messages)
    for chunk in chunks:
        decoder.add(chunk)
    back = decoder.take()
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_what_was_encoded_may_change_afterwards():
    tensor = torch.zeros(400_000)
    messages, chunks = TensorEncoder().encode({"x": tensor})
    tensor += 1
    decoder = TensorDecoder()
    decoder.begin(messages)
    for chunk in chunks:
        decoder.add(chunk)
    assert not decoder.take()["x"].any()


def test_payload_numbers_never_repeat_on_a_stream():
    encoder = TensorEncoder()
    numbers = [
        encoder.encode({"x": torch.zeros(300_000)})[0]["x"].chunked.payload_id for _ in range(3)
    ]
    assert len(set(numbers)) == 3


class TestChunksThatDoNotFit:
    def begun(self) -> tuple[TensorDecoder, list[tensor_pb2.TensorChunk]]:
        messages, chunks = TensorEncoder().encode({"x": torch.zeros(600_000)})
        decoder = TensorDecoder()
        decoder.begin(messages)
        return decoder, chunks

    def test_out_of_order(self):
        decoder, chunks = self.begun()
        with pytest.raises(InvalidInput):
            decoder.add(chunks[1])

    def test_twice(self):
        decoder, chunks = self.begun()
        decoder.add(chunks[0])
        with pytest.raises(InvalidInput):
            decoder.add(chunks[0])

    def test_of_an_unannounced_payload(self):
        decoder, chunks = self.begun()
        with pytest.raises(InvalidInput):
            decoder.add(tensor_pb2.TensorChunk(payload_id=99, data=chunks[0].data))

    def test_beyond_the_end(self):
        decoder, chunks = self.begun()
        for chunk in chunks[:-1]:
            decoder.add(chunk)
        chunks[-1].data += b"\0"
        with pytest.raises(InvalidInput):
            decoder.add(chunks[-1])

    def test_empty(self):
        decoder, chunks = self.begun()
        with pytest.raises(InvalidInput):
            decoder.add(tensor_pb2.TensorChunk(payload_id=chunks[0].payload_id))

    def test_a_header_before_they_have_all_come(self):
        decoder, _ = self.begun()
        with pytest.raises(InvalidInput):
            decoder.begin({})

    def test_taking_before_they_have_all_come(self):
        decoder, _ = self.begun()
        with pytest.raises(InvalidInput):
            decoder.take()


def test_a_header_of_another_size_than_its_shape_is_refused():
    messages, _ = TensorEncoder().encode({"x": torch.zeros(600_000)})
    messages["x"].chunked.size_bytes -= 4
    with pytest.raises(InvalidInput):
        TensorDecoder().begin(messages)


def test_a_header_of_too_many_tensors_is_refused():
    messages = {str(index): encode_tensor(torch.zeros(0)) for index in range(MAX_TENSORS + 1)}
    with raises(InvalidInput, "BAD_TENSOR", match=f"{MAX_TENSORS + 1} .* {MAX_TENSORS}"):
        TensorDecoder().begin(messages)


def test_more_than_the_receiver_accepts_is_refused_before_any_memory_is_taken():
    message = tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[1000])
    message.chunked.payload_id, message.chunked.size_bytes = 1, 4000
    with raises(InvalidInput, "PAYLOAD_TOO_LARGE"):
        TensorDecoder(payload_bytes=1000).begin({"x": message})

"""Staging slots over shared memory: bit for bit, never more than there are, and nothing off the
wire is believed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from podracer.common.v1 import tensor_pb2
from podracer_core.errors import Exhausted, InvalidInput, PreconditionFailed
from podracer_platform.carriers import (
    ALIGNMENT_BYTES,
    INLINE_BELOW_BYTES,
    CarrierFailed,
    Place,
    SharedMemory,
    SlotLayout,
    SlotReader,
    SlotTable,
    SlotWriter,
    TensorDecoder,
    TensorEncoder,
)
from podracer_platform.shared_folder import SharedFolder
from support.errors import raises

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
]  # fmt: skip
LARGE = INLINE_BELOW_BYTES
Slot = tensor_pb2.SharedMemorySlot


class Pair:
    """Both ends of a stream in one process, each with a mapping of its own."""

    def __init__(
        self, folder: Path, slot_size_bytes: int = 64 * LARGE, slot_count: int = 2
    ) -> None:
        layout = SlotLayout(slot_size_bytes, slot_count)
        self.staging = SharedMemory.create(SharedFolder(folder), layout)
        attached = SharedMemory.attach(SharedFolder(folder), self.staging.segment, layout)
        self.writer = SlotWriter(self.staging)
        self.encoder = TensorEncoder(slots=self.writer)
        self.decoder = TensorDecoder()
        self.returns: list[tensor_pb2.SlotReturn] = []
        self.decoder.use_slots(SlotReader(attached), self.returns.append)

    def send(self, tensors: dict[str, torch.Tensor]) -> dict[str, tensor_pb2.Tensor]:
        """The header as it comes off the wire; chunks follow by themselves."""
        messages, self.chunks = self.encoder.encode(tensors)
        return {
            name: tensor_pb2.Tensor.FromString(one.SerializeToString())
            for name, one in messages.items()
        }

    def receive(
        self, messages: dict[str, tensor_pb2.Tensor], into: dict[str, torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        self.decoder.begin(messages, into)
        for chunk in self.chunks:
            self.decoder.add(chunk)
        return self.decoder.take()

    def give_back(self) -> None:
        for one in self.returns:
            self.writer.take_back(one)
        self.returns.clear()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.writer.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_crosses_bit_for_bit(pair, dtype):
    tensors = {
        "x": (torch.randn(3, 7, 1031) * 50).to(dtype),
        "y": (torch.randn(LARGE + 1) * 50).to(dtype),
    }
    messages = pair.send(tensors)
    assert {one.WhichOneof("data") for one in messages.values()} == {"shared_memory"}
    back = pair.receive(messages)
    for name, tensor in tensors.items():
        assert back[name].dtype == dtype
        assert torch.equal(back[name].view(torch.uint8), tensor.view(torch.uint8))


def test_views_and_gradients_are_sent_as_they_read(pair):
    tensors = {
        "transposed": torch.randn(90, 100).t(),
        "strided": torch.randn(200, 300)[::2, 1::2],
        "expanded": torch.randn(1, 50).expand(200, 50),
        "trained": torch.randn(100, 100, requires_grad=True),
    }
    back = pair.receive(pair.send(tensors))
    for name, tensor in tensors.items():
        assert torch.equal(back[name], tensor.detach()), name
        assert not back[name].requires_grad


def test_what_was_received_is_the_receivers_own(pair):
    first = pair.receive(pair.send({"x": torch.zeros(LARGE)}))["x"]
    pair.give_back()
    for value in (1.0, 2.0, 3.0):  # every slot is overwritten
        pair.receive(pair.send({"x": torch.full((LARGE,), value)}))
        pair.give_back()
    assert torch.equal(first, torch.zeros(LARGE))


def test_tensors_may_change_once_they_are_sent(pair):
    tensor = torch.zeros(LARGE)
    messages = pair.send({"x": tensor})
    tensor.fill_(7)
    assert torch.equal(pair.receive(messages)["x"], torch.zeros(LARGE))


def test_small_and_empty_tensors_take_no_slot(pair):
    for _ in range(5):  # more often than there are slots
        tensors = {"small": torch.ones(10), "empty": torch.ones(0, 3), "scalar": torch.tensor(3)}
        messages = pair.send(tensors)
        assert not any(one.HasField("shared_memory") for one in messages.values())
        back = pair.receive(messages)
        assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
    assert not pair.returns


def test_what_does_not_fit_into_a_slot_goes_inline(pair):
    tensors = {
        "huge": torch.randn(64 * LARGE),  # four slots
        "fits": torch.randn(10 * LARGE),
        "fits no more": torch.randn(10 * LARGE),
        "also fits": torch.randn(LARGE),
    }
    messages = pair.send(tensors)
    kinds = {name: one.WhichOneof("data") for name, one in messages.items()}
    assert kinds == {
        "huge": "chunked",
        "fits": "shared_memory",
        "fits no more": "inline",
        "also fits": "shared_memory",
    }
    back = pair.receive(messages)
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
    assert [one.slot for one in pair.returns] == [0]


def test_without_a_free_slot_tensors_go_inline_and_that_is_said_once(pair, caplog):
    tensor = torch.randn(LARGE)
    kinds = [pair.send({"x": tensor})["x"].WhichOneof("data") for _ in range(4)]
    assert kinds == ["shared_memory", "shared_memory", "inline", "inline"]
    assert len(caplog.messages) == 1
    assert "none of 2 staging slots" in caplog.messages[0]


def test_a_slot_serves_again_once_it_has_come_back(pair):
    for index in range(20):
        messages = pair.send({"x": torch.full((LARGE,), float(index))})
        assert messages["x"].WhichOneof("data") == "shared_memory"
        assert pair.receive(messages)["x"][0] == index
        pair.give_back()


def test_destinations_are_filled_whatever_the_carrier_and_their_strides(pair):
    tensors = {
        "staged": torch.randn(100, 100), "inline": torch.randn(10, 10),
        "chunked": torch.randn(600, 600), "elsewhere": torch.randn(100, 100),
    }  # fmt: skip
    for strided in (False, True):
        ring = {
            name: torch.zeros(*one.shape, 2) if strided else torch.zeros_like(one)
            for name, one in tensors.items()
        }
        into = {
            name: one[..., 1] if strided else one
            for name, one in ring.items()
            if name != "elsewhere"
        }
        messages = pair.send(tensors)
        assert {name: one.WhichOneof("data") for name, one in messages.items()} == {
            "staged": "shared_memory", "inline": "inline", "chunked": "chunked", "elsewhere": "shared_memory"
        }  # fmt: skip
        back = pair.receive(messages, into)
        pair.give_back()
        assert all(back[name] is one for name, one in into.items())
        assert all(torch.equal(back[name], one) for name, one in tensors.items())
        if strided:
            assert not any(one[..., 0].any() for one in ring.values())


def test_a_destination_of_another_shape_is_refused(pair):
    messages = pair.send({"x": torch.zeros(LARGE)})
    with pytest.raises(InvalidInput, match="'x'"):
        pair.receive(messages, {"x": torch.zeros(LARGE, 1)})
    with pytest.raises(InvalidInput, match="'x'"):
        pair.receive(messages, {"x": torch.zeros(LARGE, dtype=torch.int32)})


BAD_PLACES: dict[str, Callable[[Slot], None]] = {
    "segment": lambda slot: setattr(slot, "segment", "podracer-segment-other"),
    "no segment": lambda slot: slot.ClearField("segment"),
    "slot": lambda slot: setattr(slot, "slot", 2),
    "negative slot": lambda slot: setattr(slot, "slot", -1),
    "other slot": lambda slot: setattr(slot, "slot", 1),
    "offset": lambda slot: setattr(slot, "offset_bytes", 64 * LARGE),
    "negative offset": lambda slot: setattr(slot, "offset_bytes", -ALIGNMENT_BYTES),
    "far offset": lambda slot: setattr(slot, "offset_bytes", 1 << 62),
    "crooked offset": lambda slot: setattr(slot, "offset_bytes", 4),
    "size": lambda slot: setattr(slot, "size_bytes", slot.size_bytes + 4),
    "negative size": lambda slot: setattr(slot, "size_bytes", -1),
    "no generation": lambda slot: setattr(slot, "generation", 0),
    "negative generation": lambda slot: setattr(slot, "generation", -5),
}


@pytest.mark.parametrize("case", BAD_PLACES)
def test_a_place_that_cannot_be_right_is_refused(pair, case):
    messages = pair.send({"x": torch.zeros(60 * LARGE // 4)})
    BAD_PLACES[case](messages["x"].shared_memory)
    with pytest.raises(InvalidInput):
        pair.receive(messages)
    assert not pair.returns


def test_a_tensor_larger_than_its_slot_is_refused(pair):
    (message,) = pair.send({"x": torch.zeros(LARGE)}).values()
    message.shape[:] = [1 << 28]
    message.shared_memory.size_bytes = 1 << 30
    with raises(InvalidInput, "BAD_SLOT", match="slot"):
        pair.receive({"x": message})


def test_a_header_comes_once(pair):
    messages = pair.send({"x": torch.zeros(LARGE)})
    pair.receive(messages)
    with raises(InvalidInput, "BAD_SLOT", match="handed over 1"):
        pair.receive(messages)


def test_a_header_in_two_slots_is_refused(pair):
    parts = {**pair.send({"x": torch.zeros(LARGE)}), **pair.send({"y": torch.zeros(LARGE)})}
    with pytest.raises(InvalidInput, match="several slots"):
        pair.receive(parts)


def test_a_slot_is_refused_by_a_stream_without_slots(pair):
    messages = pair.send({"x": torch.zeros(LARGE)})
    with raises(InvalidInput, "CARRIER_NOT_CHOSEN"):
        TensorDecoder().begin(messages)


class TestReturns:
    def test_late_and_repeated_ones_change_nothing(self):
        table = SlotTable(1)
        assert table.acquire(0) == (0, 1)
        assert table.release(0, 1)
        assert not table.release(0, 1), "twice"
        assert table.acquire(0) == (0, 2)
        assert not table.release(0, 1), "late: the slot has been handed over again"
        assert table.acquire(0) is None
        assert table.release(0, 2)

    def test_one_hands_back_what_went_before_it_and_no_more(self):
        table = SlotTable(4)
        given = [table.acquire(0) for _ in range(4)]
        assert given == [(0, 1), (1, 1), (2, 1), (3, 1)]
        assert table.release(2, 1)
        assert not table.release(1, 1), "it is back already"
        assert [table.acquire(0) for _ in range(4)] == [(0, 2), (1, 2), (2, 2), None]
        assert table.release(0, 2), "with slot 3, which has been away for longer"
        assert [table.acquire(0) for _ in range(3)] == [(3, 2), (0, 3), None]

    def test_come_for_half_of_the_slots_at_once_where_there_are_many(self, tmp_path):
        for count, expected in ((1, 12), (2, 12), (4, 6), (6, 4)):
            pair, returns = Pair(tmp_path, LARGE, count), 0
            for index in range(12):
                messages = pair.send({"x": torch.full((LARGE // 4,), float(index))})
                assert messages["x"].WhichOneof("data") == "shared_memory", (count, index)
                assert pair.receive(messages)["x"].eq(index).all()
                returns += len(pair.returns)
                pair.give_back()
            assert returns == expected
            pair.writer.close()

    @pytest.mark.parametrize(
        ("slot", "generation"), [(0, 2), (0, 0), (0, -1), (1, 1), (-1, 1), (2, 1), (1 << 30, 1)]
    )
    def test_of_what_was_never_handed_over(self, slot, generation):
        table = SlotTable(2)
        table.acquire(0)
        with raises(InvalidInput, "BAD_SLOT_RETURN"):
            table.release(slot, generation)

    def test_of_another_segment(self, pair):
        pair.receive(pair.send({"x": torch.zeros(LARGE)}))
        (returned,) = pair.returns
        returned.segment = "another"
        with pytest.raises(InvalidInput, match="another"):
            pair.writer.take_back(returned)

    def test_wake_who_waits(self):
        table = SlotTable(1)
        table.acquire(0)
        threading.Timer(0.05, table.release, (0, 1)).start()
        assert table.acquire(10.0) == (0, 2)

    def test_a_tensor_that_cannot_be_copied_keeps_no_slot(self, pair):
        for _ in range(3):
            with pytest.raises(NotImplementedError):
                pair.send({"x": torch.empty(LARGE, device="meta")})
        assert pair.send({"x": torch.zeros(LARGE)})["x"].WhichOneof("data") == "shared_memory"


class TestSegments:
    def test_who_attaches_takes_the_name_away_and_the_memory_stays(self, tmp_path):
        layout = SlotLayout(4096, 1)
        made = SharedMemory.create(SharedFolder(tmp_path), layout)
        attached = SharedMemory.attach(SharedFolder(tmp_path), made.segment, layout)
        assert not list(tmp_path.iterdir())
        made.memory.fill_(7)
        made.close()
        del made
        found = torch.zeros(4096, dtype=torch.uint8)
        attached.read(Place(0, 0, 4096, 1), found)
        assert found.eq(7).all()
        attached.close()

    def test_one_that_the_other_side_cuts_harms_nobody(self, tmp_path):
        """To touch a mapping behind a file's end would end the process."""
        made = SharedMemory.create(SharedFolder(tmp_path), SlotLayout(1 << 20, 1))
        attached = SharedMemory.attach(SharedFolder(tmp_path), made.segment, made.layout)
        os.ftruncate(made._file.descriptor, 4096)
        with pytest.raises(CarrierFailed, match="was cut"):
            attached.read(Place(0, 0, 1 << 20, 1), torch.zeros(1 << 20, dtype=torch.uint8))
        made.close()

    def test_one_that_the_first_tensor_names_and_that_is_not_there(self, tmp_path):
        made = SharedMemory.create(SharedFolder(tmp_path), SlotLayout(1 << 20, 1))
        made.refer(message := tensor_pb2.Tensor(), Place(0, 0, 4096, 1))
        made.close()
        with pytest.raises(CarrierFailed, match="cannot open"):
            SharedMemory.attach(SharedFolder(tmp_path), "", made.layout).place_of(message)

    def test_an_unattached_one_goes_with_its_creator(self, tmp_path):
        made = SharedMemory.create(SharedFolder(tmp_path), SlotLayout(4096, 1))
        assert len(list(tmp_path.iterdir())) == 1
        made.close()
        assert not list(tmp_path.iterdir())

    def test_one_smaller_than_its_layout_is_refused(self, tmp_path):
        made = SharedMemory.create(SharedFolder(tmp_path), SlotLayout(4096, 1))
        with raises(InvalidInput, "BAD_CARRIER"):
            SharedMemory.attach(SharedFolder(tmp_path), made.segment, SlotLayout(4096, 2))
        made.close()

    def test_one_that_is_not_there(self, tmp_path):
        with pytest.raises(PreconditionFailed):
            SharedMemory.attach(
                SharedFolder(tmp_path), f"podracer-segment-{'0' * 32}", SlotLayout(4096, 1)
            )

    def test_one_that_cannot_be_mapped(self, tmp_path, monkeypatch):
        def no_memory(*_: object) -> None:
            raise OSError(12, "Cannot allocate memory")

        monkeypatch.setattr("mmap.mmap", no_memory)
        with raises(Exhausted, "SHARED_MEMORY_FULL"):
            SharedMemory.create(SharedFolder(tmp_path), SlotLayout(4096, 1))
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("size", "count"), [(0, 1), (4095, 1), (-64, 1), (4096, 0), (4096, 65), (4096, -1)]
    )
    def test_a_layout_that_there_cannot_be(self, size, count):
        with pytest.raises(InvalidInput, match="slots of"):
            SlotLayout(size, count)

"""CUDA IPC: the protocol on memory that a dictionary stands in for, and on a GPU between two real
processes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from podracer.common.v1 import tensor_pb2
from podracer_core.errors import InvalidInput
from podracer_platform.carriers import (
    HANDLE_BYTES,
    CarrierFailed,
    CudaIpc,
    DeviceMemory,
    RuntimeMemory,
    SlotLayout,
    SlotReader,
    SlotWriter,
    TensorDecoder,
    TensorEncoder,
    cuda_ipc,
    device_uuid,
)

LAYOUT = SlotLayout(1 << 16, 2)
CPU = torch.device("cpu")


class PretendedMemory(DeviceMemory):
    """Memory of the CPU, found by handle as a driver finds it."""

    def __init__(self) -> None:
        self.allocations: dict[bytes, torch.Tensor] = {}
        self.opened = self.synchronized = 0

    def allocate(self, size_bytes: int, device: torch.device) -> tuple[torch.Tensor, bytes]:
        handle = len(self.allocations).to_bytes(HANDLE_BYTES, "big")
        self.allocations[handle] = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
        return self.allocations[handle], handle

    def open(self, handle: bytes, size_bytes: int, device: torch.device) -> torch.Tensor:
        self.opened += 1
        if handle not in self.allocations:
            raise CarrierFailed("no such memory")
        return self.allocations[handle]

    def synchronize(self, device: torch.device) -> None:
        self.synchronized += 1


class Pair:
    def __init__(self) -> None:
        self.memory = PretendedMemory()
        self.staging = CudaIpc.export(LAYOUT, CPU, self.memory)
        self.writer = SlotWriter(self.staging)
        self.encoder = TensorEncoder(slots=self.writer)
        self.decoder = TensorDecoder()
        self.returns: list[tensor_pb2.SlotReturn] = []
        self.decoder.use_slots(
            SlotReader(CudaIpc.receiving(LAYOUT, CPU, self.memory)), self.returns.append
        )

    def message(self) -> tensor_pb2.Tensor:
        return self.encoder.encode({"x": torch.arange(100.0)})[0]["x"]


def test_even_small_tensors_stay_on_the_device_and_its_memory_is_opened_once():
    pair = Pair()
    for index in range(6):
        tensors = {
            "small": torch.tensor(index),
            "flags": torch.rand(33) > 0.5,
            "large": torch.randn(7000).view(70, 100),
        }
        messages, chunks = pair.encoder.encode(tensors)
        assert {one.WhichOneof("data") for one in messages.values()} == {"cuda_ipc"}
        assert not chunks
        assert pair.decoder.begin(messages)
        back = pair.decoder.take()
        assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
        (returned,) = pair.returns
        pair.writer.take_back(returned)
        pair.returns.clear()
    assert pair.memory.opened == 1
    assert pair.memory.synchronized == 12, (
        "each side waits for its copies before it speaks of the slot"
    )


def test_handles_and_devices_that_are_not_the_streams_are_refused():
    for change, error in (
        ({"memory_handle": b"short"}, InvalidInput),
        ({"memory_handle": b"x" * HANDLE_BYTES}, CarrierFailed),
        ({"device_uuid": "GPU-another"}, InvalidInput),
        ({"event_handle": b"e" * 64}, InvalidInput),
        ({"offset_bytes": 1 << 16}, InvalidInput),
        ({"slot": 2}, InvalidInput),
        ({"generation": 0}, InvalidInput),
    ):
        pair = Pair()
        message = pair.message()
        for name, value in change.items():  # type: ignore[attr-defined]
            setattr(message.cuda_ipc, name, value)
        with pytest.raises(error):
            pair.decoder.begin({"x": message})
        assert not pair.returns


def test_a_second_allocation_on_one_stream_is_refused():
    pair = Pair()
    pair.decoder.begin({"x": pair.message()})
    other = CudaIpc.export(LAYOUT, CPU, pair.memory)
    messages, _ = TensorEncoder(slots=SlotWriter(other)).encode({"x": torch.arange(100.0)})
    with pytest.raises(InvalidInput, match="one allocation"):
        pair.decoder.begin(messages)


def test_a_machine_without_a_gpu_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    cuda_ipc._runtime.cache_clear()
    with pytest.raises(CarrierFailed, match="CUDA"):
        RuntimeMemory().allocate(4096, torch.device("cuda"))
    assert device_uuid(CPU) == ""


EXPORTER = """
import sys
import torch
from podracer_platform.carriers import CudaIpc, RuntimeMemory
from podracer_platform.carriers import TensorEncoder
from podracer_platform.carriers import SlotWriter
from podracer_platform.carriers import SlotLayout
from podracer.common.v1 import tensor_pb2
writer = SlotWriter(CudaIpc.export(SlotLayout(1 << 20, 2), torch.device("cuda", 0), RuntimeMemory()))
encoder = TensorEncoder(slots=writer)
for index in range(5):
    tensors = {"x": torch.full((1000, 100), float(index), device="cuda"), "y": torch.arange(7, device="cuda")[::2]}
    messages, _ = encoder.encode(tensors)
    print(*(messages[name].SerializeToString().hex() for name in ("x", "y")), flush=True)
    line = sys.stdin.readline()
    if not line:
        break
    writer.take_back(tensor_pb2.SlotReturn.FromString(bytes.fromhex(line)))
"""


@pytest.mark.gpu
def test_between_two_processes():
    device = torch.device("cuda", 0)
    returns: list[tensor_pb2.SlotReturn] = []
    decoder = TensorDecoder()
    decoder.use_slots(
        SlotReader(CudaIpc.receiving(SlotLayout(1 << 20, 2), device, RuntimeMemory())),
        returns.append,
    )
    with subprocess.Popen(
        [sys.executable, "-c", EXPORTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as exporter:
        assert exporter.stdin is not None
        assert exporter.stdout is not None
        for index in range(5):
            parts = [
                tensor_pb2.Tensor.FromString(bytes.fromhex(part))
                for part in exporter.stdout.readline().split()
            ]
            assert decoder.begin(dict(zip("xy", parts, strict=True)))
            back: dict[str, Any] = decoder.take()
            assert back["x"].device == device
            assert back["x"].eq(index).all()
            assert back["y"].tolist() == [0, 2, 4, 6]
            exporter.stdin.write(returns.pop().SerializeToString().hex() + "\n")
            exporter.stdin.flush()
    assert exporter.returncode == 0


@pytest.mark.gpu
def test_a_handle_of_nothing_is_refused_and_the_device_goes_on_working():
    device = torch.device("cuda", 0)
    with pytest.raises(CarrierFailed):
        RuntimeMemory().open(b"\1" * HANDLE_BYTES, 4096, device)
    assert torch.ones(3, device=device).sum().item() == 3

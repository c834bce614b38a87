"""Staging slots in a CUDA allocation that another process on the same GPU has mapped: tensors stay
on the device.

The sender makes the allocation and exports it as a cudaIpcMemHandle_t, which every message repeats;
the receiver maps it with the first one. Both sides synchronize their stream before they speak of a
slot, so no events cross.

The runtime's own calls are used instead of torch's storage sharing: that pickles, keeps reference
counters in files of /dev/shm that a killed process leaves behind, and cannot export what its
allocator makes from expandable segments."""

from __future__ import annotations

import ctypes
import functools
import weakref
from abc import ABC, abstractmethod
from typing import Any

import torch

from podracer.common.v1 import tensor_pb2
from podracer_core.errors import Exhausted, InvalidInput
from podracer_platform.carriers.slots import CarrierFailed, Place, SlotLayout, Staging

HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1  # cudaIpcMemLazyEnablePeerAccess, the only flag there is


def device_uuid(device: torch.device) -> str:
    """UUID of a CUDA device as the driver prints it; "" for other devices."""
    if device.type != "cuda":
        return ""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


class DeviceMemory(ABC):
    """The calls of the CUDA runtime that are needed. Memory lives as long as the tensors that view
    it."""

    @abstractmethod
    def allocate(self, size_bytes: int, device: torch.device) -> tuple[torch.Tensor, bytes]:
        """Memory as uint8 [size_bytes], and its handle of HANDLE_BYTES. Raises Exhausted where
        there is none left, CarrierFailed where it cannot be exported."""

    @abstractmethod
    def open(self, handle: bytes, size_bytes: int, device: torch.device) -> torch.Tensor:
        """Another process's memory. Raises CarrierFailed where the handle is of none, or cannot be
        mapped."""

    @abstractmethod
    def synchronize(self, device: torch.device) -> None:
        """Wait for what this thread has asked of the device."""


class CudaIpc(Staging):
    """The sender's memory (`export`), or the receiver's view of it (`receiving`), which the first
    message opens."""

    kind = tensor_pb2.CARRIER_KIND_CUDA_IPC

    def __init__(
        self, layout: SlotLayout, device: torch.device, device_memory: DeviceMemory
    ) -> None:
        """See `export` and `receiving`."""
        self.layout, self.device = layout, device
        self._device_memory = device_memory
        self._uuid = device_uuid(device)
        self._memory: torch.Tensor | None = None
        self._handle = b""

    @classmethod
    def export(
        cls, layout: SlotLayout, device: torch.device, device_memory: DeviceMemory
    ) -> CudaIpc:
        """New memory. Raises Exhausted where the device has none left, CarrierFailed where it
        exports none."""
        staging = cls(layout, device, device_memory)
        staging._memory, staging._handle = device_memory.allocate(layout.size_bytes, device)
        return staging

    @classmethod
    def receiving(
        cls, layout: SlotLayout, device: torch.device, device_memory: DeviceMemory
    ) -> CudaIpc:
        """The receiving side, for the memory that the other side exports."""
        return cls(layout, device, device_memory)

    @property
    def memory(self) -> torch.Tensor:
        if self._memory is None:
            raise InvalidInput("no message has named the memory yet", reason="CARRIER_NOT_CHOSEN")
        return self._memory

    def refer(self, message: tensor_pb2.Tensor, place: Place) -> None:
        message.cuda_ipc.device_uuid = self._uuid
        message.cuda_ipc.memory_handle = self._handle
        message.cuda_ipc.slot = place.slot
        message.cuda_ipc.offset_bytes = place.offset_bytes
        message.cuda_ipc.size_bytes = place.size_bytes
        message.cuda_ipc.generation = place.generation

    def place_of(self, message: tensor_pb2.Tensor) -> Place:
        reference = message.cuda_ipc
        if message.WhichOneof("data") != "cuda_ipc" or reference.device_uuid != self._uuid:
            raise InvalidInput(
                f"a tensor came by {message.WhichOneof('data')} of device "
                f"{reference.device_uuid[:100]!r}, the stream's is {self._uuid}",
                reason="CARRIER_NOT_CHOSEN",
            )
        if reference.event_handle:
            raise InvalidInput(
                "events are not waited for: synchronize before sending", reason="BAD_SLOT"
            )
        if self._memory is None:
            if len(reference.memory_handle) != HANDLE_BYTES:
                raise InvalidInput(
                    f"a memory handle has {HANDLE_BYTES} bytes, {len(reference.memory_handle)} "
                    "came",
                    reason="BAD_SLOT",
                )
            self._memory = self._device_memory.open(
                reference.memory_handle, self.layout.size_bytes, self.device
            )
            self._handle = reference.memory_handle
        elif reference.memory_handle != self._handle:
            raise InvalidInput(
                "a stream has one allocation, and another one came", reason="BAD_SLOT"
            )
        return Place(
            reference.slot, reference.offset_bytes, reference.size_bytes, reference.generation
        )

    def synchronize(self) -> None:
        self._device_memory.synchronize(self.device)

    def close(self) -> None:
        self._memory = None


class _IpcHandle(ctypes.Structure):
    """cudaIpcMemHandle_t, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


class _Allocation:
    """Device memory in the form in which torch takes it without a copy, keeping this object for as
    long as it does."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class RuntimeMemory(DeviceMemory):
    """CUDA's runtime, the very library that torch has loaded.

    The exporter of a handle belongs to the same pod, so its allocation size is trusted: the runtime
    does not report it."""

    def allocate(self, size_bytes: int, device: torch.device) -> tuple[torch.Tensor, bytes]:
        runtime, address, handle = _runtime(), ctypes.c_void_p(), _IpcHandle()
        with torch.cuda.device(device):
            code = runtime.cudaMalloc(ctypes.byref(address), size_bytes)
            if code or address.value is None:
                raise Exhausted(
                    f"no {size_bytes} bytes on {device}: {_text(code)}", reason="DEVICE_MEMORY_FULL"
                )
            tensor = _tensor_at(address.value, size_bytes, device, runtime.cudaFree)
            code = runtime.cudaIpcGetMemHandle(ctypes.byref(handle), address)
            if code:
                raise CarrierFailed(f"{device} exports no memory: {_text(code)}")
        return tensor, bytes(handle)

    def open(self, handle: bytes, size_bytes: int, device: torch.device) -> torch.Tensor:
        runtime, address = _runtime(), ctypes.c_void_p()
        with torch.cuda.device(device):
            given = _IpcHandle.from_buffer_copy(handle)
            code = runtime.cudaIpcOpenMemHandle(ctypes.byref(address), given, _LAZY_PEER_ACCESS)
            if code or address.value is None:
                raise CarrierFailed(
                    f"cannot map the other side's memory on {device}: {_text(code)}"
                )
            return _tensor_at(address.value, size_bytes, device, runtime.cudaIpcCloseMemHandle)

    def synchronize(self, device: torch.device) -> None:
        torch.cuda.current_stream(device).synchronize()


def _tensor_at(address: int, size_bytes: int, device: torch.device, release: Any) -> torch.Tensor:
    allocation = _Allocation(address, size_bytes)
    # At the end of the process the driver takes it back by itself, and the runtime may have gone
    # before.
    weakref.finalize(allocation, release, ctypes.c_void_p(address)).atexit = False
    tensor = torch.as_tensor(allocation, device=device)
    if tensor.data_ptr() != address:
        raise CarrierFailed(f"torch does not look into memory of {device}, it copies it")
    return tensor


def _text(code: int) -> str:
    """Message of an error code; clears the runtime's last error, so that torch's next check does
    not find it."""
    runtime = _runtime()
    runtime.cudaGetLastError()
    return f"{bytes(runtime.cudaGetErrorString(code)).decode(errors='replace')} ({code})"


@functools.cache
def _runtime() -> Any:
    """Raises CarrierFailed without it."""
    version = torch.version.cuda
    if not version or not torch.cuda.is_available():
        raise CarrierFailed("this torch has no CUDA, or there is no device")
    torch.cuda.init()  # type: ignore[no-untyped-call]
    name = f"libcudart.so.{version.partition('.')[0]}"
    try:
        runtime = ctypes.CDLL(name)
    except OSError as error:
        raise CarrierFailed(f"cannot load {name}: {error}") from error
    runtime.cudaMalloc.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t)
    runtime.cudaFree.argtypes = (ctypes.c_void_p,)
    runtime.cudaIpcGetMemHandle.argtypes = (ctypes.POINTER(_IpcHandle), ctypes.c_void_p)
    runtime.cudaIpcOpenMemHandle.argtypes = (
        ctypes.POINTER(ctypes.c_void_p),
        _IpcHandle,
        ctypes.c_uint,
    )
    runtime.cudaIpcCloseMemHandle.argtypes = (ctypes.c_void_p,)
    runtime.cudaGetErrorString.argtypes = (ctypes.c_int,)
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    return runtime

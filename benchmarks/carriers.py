"""How fast tensors cross between two processes by each carrier, beside a plain memcpy.

A second process serves worker sessions as a worker does, with the same server, session queue and
encoder; this one receives as a learner does. A batch is one tensor, from 1 KB to 64 MB. It is
copied out of one of many sources and into one of many destinations, 64 MB of each (or 256 batches,
or 2), so that large batches are not in anybody's cache, as rollouts are not; memcpy goes over the
same number of sources and destinations. Neither side looks into the data.

    GB/s, µs   batches that follow one another, 16 in flight (2 of the largest): what the carrier
               can do
    alone, µs  from asking for one until it is there, nothing else under way

`shared memory` sends what is below its threshold inline, as it does in a pod. `ours ÷ memcpy` is
the time of a batch in a stream over the time of a memcpy that was measured right before and after.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import torch
from report import Target, finish, print_table, versions

from podracer.common.v1 import tensor_pb2
from podracer.worker.v1 import worker_service_pb2, worker_service_pb2_grpc
from podracer_platform.carriers.inline import CHUNK_BYTES, TensorDecoder, TensorEncoder
from podracer_platform.carriers.negotiation import CarrierOffering, Endpoint, Payload, choose
from podracer_platform.carriers.shared_folder import SharedFolder
from podracer_platform.carriers.slots import SlotReader, SlotWriter
from podracer_platform.rpc.auth import Authorizer
from podracer_platform.rpc.channel import open_channel
from podracer_platform.rpc.guard import Context
from podracer_platform.rpc.server import create_server
from podracer_platform.rpc.sessions import Session, SessionSlots
from podracer_platform.rpc.streams import StreamCall
from podracer_platform.rpc.tokens import FileToken, Role, TokenFiles, create_tokens
from podracer_platform.rpc.work_queue import WorkQueue
from podracer_platform.service.lifetime import (
    PARENT_VARIABLE,
    exit_with_parent_if_asked,
    stop_event_on_signals,
)

KB, MB = 1 << 10, 1 << 20
SIZES = (KB, 4 * KB, 16 * KB, 64 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 64 * MB)
QUICK_SIZES = (KB, 64 * KB, MB, 16 * MB)
CHUNKS = (64 * KB, 256 * KB, MB)
LARGE = MB  # from here on a carrier has to keep up with memcpy
RING_BYTES, RING_TENSORS = 64 * MB, 256
IN_FLIGHT_BYTES, IN_FLIGHT = 128 * MB, (2, 16)

CollectRequest = worker_service_pb2.CollectRequest
CollectResponse = worker_service_pb2.CollectResponse


@dataclass(frozen=True)
class Carrier:
    """A row of the table. `chunk_bytes`: of an inline one."""

    name: str
    kind: tensor_pb2.CarrierKind.ValueType
    device: str = "cpu"
    chunk_bytes: int = CHUNK_BYTES


@dataclass(frozen=True)
class Figures:
    """Medians: seconds of a batch in a stream and of one alone, and the stream's over the memcpy's
    beside it."""

    streamed_s: float
    alone_s: float
    ratio: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="four sizes, three short windows: under a minute"
    )
    parser.add_argument("--serve", nargs=2, metavar=("ADDRESS", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.serve:
        exit_with_parent_if_asked()
        serve(options.serve[0], Path(options.serve[1]))
        return
    sizes, windows, window_s = (QUICK_SIZES, 3, 0.15) if options.quick else (SIZES, 5, 0.5)
    print(
        versions("torch", "grpcio", "protobuf"),
        f"· {windows} windows of {window_s} s, one thread a process",
    )
    found: dict[tuple[str, int], Figures] = {}
    with other_process() as (channel, folder):
        for size in sizes:
            for carrier in carriers():
                found[carrier.name, size] = measure(
                    carrier, size, channel, folder, windows, window_s
                )
            report_size(size, found)
    report(found, sizes)


def carriers() -> list[Carrier]:
    """The carriers that this machine supports."""
    rows = [Carrier("shared memory", tensor_pb2.CARRIER_KIND_SHARED_MEMORY)]
    rows += [
        Carrier(
            f"inline, {bytes_text(chunk)} chunks", tensor_pb2.CARRIER_KIND_INLINE, chunk_bytes=chunk
        )
        for chunk in CHUNKS
    ]
    if torch.cuda.is_available():
        rows.append(Carrier("CUDA IPC", tensor_pb2.CARRIER_KIND_CUDA_IPC, "cuda:0"))
    return rows


# This process, which receives
# -----------------------------------------------------------------------------------------


class Receiver:
    """The learner's end: batches are copied into the ring's tensors one after the other."""

    def __init__(self, channel: grpc.Channel, carrier: Carrier, size: int, folder: Path) -> None:
        """Opens the session and waits for it."""
        self.ring = ring(size, carrier.device)
        self._arrived, self._in_part, self._part, self._decoder = 0, 0, 1, TensorDecoder()
        endpoint = Endpoint(SharedFolder(folder), sends=False, device=torch.device(carrier.device))
        self.in_flight = min(max(IN_FLIGHT_BYTES // size, IN_FLIGHT[0]), IN_FLIGHT[1])
        self._offering = CarrierOffering(endpoint, self.in_flight)
        del self._offering.message.kinds[:]
        self._offering.message.kinds.append(carrier.kind)
        self._call: StreamCall[CollectRequest, tensor_pb2.CarrierChoice | int]
        self._call = StreamCall(
            worker_service_pb2_grpc.WorkerServiceStub(channel).Collect, self._decode
        )
        # The session is no environment's: these fields tell the size of a batch and of a chunk.
        opening = worker_service_pb2.OpenCollect(
            envs_per_member=size,
            horizon=carrier.chunk_bytes,
            device=carrier.device,
            max_in_flight=self.in_flight,
        )
        opening.carriers.CopyFrom(self._offering.message)
        self._call.send(CollectRequest(open=opening))
        choice = self._call.receive(60.0)
        assert isinstance(choice, tensor_pb2.CarrierChoice)
        self.kind = choice.kind

    def batches(self, count: int, in_flight: int) -> int:
        """Receive at least so many, asked for in halves of what may be in flight; returns how many
        came."""
        self._in_part, self._part = 0, max(in_flight // 2, 1)
        part = self._part
        parts = -(-count // part)
        request = CollectRequest(rollout_request=worker_service_pb2.RolloutRequest(count=part))
        for _ in range(min(in_flight // part, parts)):
            self._call.send(request)
        for received in range(1, parts + 1):
            self._call.receive(60.0)
            if received + in_flight // part <= parts:
                self._call.send(request)
        return parts * part

    def close(self) -> None:
        self._call.close()
        self._offering.close()

    def _decode(self, response: CollectResponse) -> tensor_pb2.CarrierChoice | int | None:
        """In the receiving thread."""
        kind = response.WhichOneof("message")
        if kind == "opened":
            staging = self._offering.settle(response.opened.carrier)
            if staging is not None:
                give_back = lambda slot: self._call.send(CollectRequest(slot_return=slot))  # noqa: E731
                self._decoder.use_slots(SlotReader(staging), give_back)
            return response.opened.carrier
        if kind == "rollout":
            target = self.ring[self._arrived % len(self.ring)]
            complete = self._decoder.begin(response.rollout.tensors, {"batch": target})
        else:
            complete = self._decoder.add(response.chunk)
        if not complete:
            return None
        self._decoder.take()
        self._arrived += 1
        self._in_part = (self._in_part + 1) % self._part
        return None if self._in_part else self._arrived


def measure(
    carrier: Carrier, size: int, channel: grpc.Channel, folder: Path, windows: int, window_s: float
) -> Figures:
    """Windows of memcpy and of the carrier in turn; raises RuntimeError where it is not the carrier
    that was asked for, or does not bring what was sent."""
    receiver = Receiver(channel, carrier, size, folder)
    try:
        if receiver.kind != carrier.kind and size >= LARGE:
            raise RuntimeError(f"{carrier.name} cannot be used here")
        streamed = partial(receiver.batches, in_flight=receiver.in_flight)
        alone = partial(receiver.batches, in_flight=1)
        sources, targets = ring(size, carrier.device, filled=True), receiver.ring
        streamed(len(targets) + receiver.in_flight)  # every page of both sides has been touched
        if not all(
            torch.equal(target, source) for target, source in zip(targets, sources, strict=True)
        ):
            raise RuntimeError(f"{carrier.name} brings something else than was sent")
        own = ring(size, carrier.device)
        copying = partial(copy_all, sources, own)
        copying(len(own))
        streamed_s, ratios, before_s = [], [], timed(copying, window_s)
        for _ in range(windows):
            streamed_s.append(timed(streamed, window_s))
            after_s = timed(copying, window_s)
            ratios.append(2 * streamed_s[-1] / (before_s + after_s))
            before_s = after_s
        alone_s = [timed(alone, window_s / 2) for _ in range(windows)]
    finally:
        receiver.close()
    return Figures(
        statistics.median(streamed_s), statistics.median(alone_s), statistics.median(ratios)
    )


def timed(work: Callable[[int], int], window_s: float) -> float:
    """Seconds an item when `work(count)` fills the window; it returns how many it has done."""
    count = 1
    while True:
        start = time.perf_counter()
        done = work(count)
        seconds = time.perf_counter() - start
        if seconds >= window_s / 2 or count >= 1 << 20:
            return seconds / done
        count = max(2 * count, min(int(count * window_s / seconds), 64 * count))


def copy_all(sources: list[torch.Tensor], targets: list[torch.Tensor], count: int) -> int:
    """So many memcpys, over the ring."""
    on_device = targets[0].device.type == "cuda"
    for index in range(count):
        source, target = sources[index % len(sources)], targets[index % len(targets)]
        if on_device:
            target.copy_(source)
        else:
            ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
    if on_device:
        torch.cuda.synchronize()
    return count


def ring(size: int, device: str, *, filled: bool = False) -> list[torch.Tensor]:
    """Tensors of `size` bytes, the same in both processes where they are filled; else zeros, every
    page touched."""
    count = min(max(RING_BYTES // size, 2), RING_TENSORS)
    return [
        torch.full(
            (size // 4,), float(index + 1) if filled else 0.0, dtype=torch.float32, device=device
        )
        for index in range(count)
    ]


# The other process, which sends
# ---------------------------------------------------------------------------------------


class SendingSession(Session):
    """The worker's end: what is asked for is encoded in the main thread, as a worker does."""

    def __init__(self, work: WorkQueue, folder: SharedFolder) -> None:
        super().__init__()
        self._work, self._folder = work, folder
        self._slots: SlotWriter | None = None
        self._sent = 0

    def receive(self, request: CollectRequest) -> None:
        kind = request.WhichOneof("message")
        if kind == "open":
            self._work.submit(partial(self._open, request.open)).result()
        elif kind == "slot_return" and self._slots is not None:
            self._slots.take_back(request.slot_return)
        elif kind == "rollout_request":
            for _ in range(request.rollout_request.count):
                self._work.submit(self._send)

    def drain(self) -> None:
        self.outbox.close()

    def close(self) -> None:
        if self._slots is not None:
            self._slots.close()

    def _open(self, request: worker_service_pb2.OpenCollect) -> None:
        endpoint = Endpoint(self._folder, sends=True, device=torch.device(request.device))
        size = request.envs_per_member
        choice, staging = choose(
            request.carriers, endpoint, Payload(size, 1, request.max_in_flight)
        )
        self._slots = None if staging is None else SlotWriter(staging, 10.0)
        self._encoder = TensorEncoder(request.horizon, self._slots)
        self._ring = ring(size, request.device, filled=True)
        self.outbox.put(CollectResponse(opened=worker_service_pb2.CollectOpened(carrier=choice)))

    def _send(self) -> None:
        messages, chunks = self._encoder.encode({"batch": self._ring[self._sent % len(self._ring)]})
        self._sent += 1
        response = CollectResponse()
        for name, message in messages.items():
            response.rollout.tensors[name].CopyFrom(message)
        self.outbox.put(response)
        for chunk in chunks:
            piece = CollectResponse()
            piece.chunk.CopyFrom(chunk)
            self.outbox.put(piece)


class SendingService(worker_service_pb2_grpc.WorkerServiceServicer):
    """Collect alone."""

    def __init__(self, work: WorkQueue, folder: SharedFolder) -> None:
        self._make_session, self._sessions = partial(SendingSession, work, folder), SessionSlots(2)

    async def Collect(  # type: ignore[override]
        self, request_iterator: AsyncIterator[CollectRequest], context: Context
    ) -> None:
        await self._sessions.serve(self._make_session, request_iterator, context)


def serve(address: str, folder: Path) -> None:
    """Serve Collect until SIGTERM."""
    stop, work = stop_event_on_signals(), WorkQueue()
    service = SendingService(work, SharedFolder(shared_folder(folder)))
    methods = {"/podracer.worker.v1.WorkerService/Collect": (Role.POD,)}
    register = partial(worker_service_pb2_grpc.add_WorkerServiceServicer_to_server, service)
    server = create_server(address, [register], Authorizer(methods, TokenFiles(folder)))
    server.start()
    print("listening", flush=True)
    work.run(stop)
    server.drain(0.0)


@contextmanager
def other_process() -> Iterator[tuple[grpc.Channel, Path]]:
    """A channel to it, and the folder for shared memory."""
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="carriers-")))
        create_tokens(folder)
        address = f"unix://{folder}/w.sock"
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid()), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--serve", address, str(folder)]
        process = held.enter_context(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        )
        held.callback(process.terminate)
        assert process.stdout is not None, "asked for as a pipe above"
        if process.stdout.readline().strip() != "listening":
            raise RuntimeError("the other process has not started")
        yield (
            held.enter_context(open_channel(address, FileToken(folder / "pod"))),
            shared_folder(folder),
        )


def shared_folder(fallback: Path) -> Path:
    """As a pod has it: in memory where the machine has such a folder."""
    configured = os.environ.get("PODRACER_SHM_DIR")
    if configured:
        return Path(configured)
    return Path("/dev/shm") if Path("/dev/shm").is_dir() else fallback


# What came of it
# ------------------------------------------------------------------------------------------------------


def report_size(size: int, found: dict[tuple[str, int], Figures]) -> None:
    """A table of one size, as soon as it is known."""
    rows: list[list[object]] = []
    for (name, its_size), figures in found.items():
        if its_size == size:
            rows.append(
                [
                    name,
                    size / figures.streamed_s / 1e9,
                    figures.streamed_s * 1e6,
                    figures.alone_s * 1e6,
                    figures.ratio,
                ]
            )
    of_memcpy = [
        figures.streamed_s / figures.ratio
        for (_, its_size), figures in found.items()
        if its_size == size
    ]
    memcpy_s = statistics.median(of_memcpy)
    rows.insert(0, ["memcpy, one process", size / memcpy_s / 1e9, memcpy_s * 1e6, "", 1.0])
    print_table(
        f"batches of {bytes_text(size)}",
        ["carrier", "GB/s", "µs", "alone, µs", "ours ÷ memcpy"],
        rows,
    )


def report(found: dict[tuple[str, int], Figures], sizes: tuple[int, ...]) -> None:
    """The targets, and everything for programs."""
    large = [size for size in sizes if size >= LARGE]
    targets = {
        "shared memory ÷ memcpy, worst of ≥ 1 MB": Target(
            max(found["shared memory", size].ratio for size in large), 2.0, at_most=True
        )
    }
    for carrier in carriers():
        if carrier.kind == tensor_pb2.CARRIER_KIND_INLINE:
            slowest = min(size / found[carrier.name, size].streamed_s / 1e6 for size in large)
            targets[f"{carrier.name}, MB/s, slowest of ≥ 1 MB"] = Target(slowest, 500.0)
    figures = {
        f"{name}, {bytes_text(size)}": {
            "gigabytes_per_second": size / one.streamed_s / 1e9,
            "streamed_us": one.streamed_s * 1e6,
            "alone_us": one.alone_s * 1e6,
            "times_memcpy": one.ratio,
        }
        for (name, size), one in found.items()
    }
    finish("carriers", figures, targets)


def bytes_text(size: int) -> str:
    return f"{size // MB} MB" if size >= MB else f"{size // KB} KB"


if __name__ == "__main__":
    main()

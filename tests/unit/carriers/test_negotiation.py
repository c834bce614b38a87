"""Which carrier two ends agree on, and what they fall back to."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from podracer.common.v1 import tensor_pb2
from podracer_core.errors import Exhausted, InvalidInput
from podracer_platform.carriers import (
    CarrierFailed,
    CarrierOffering,
    DeviceMemory,
    Endpoint,
    Payload,
    Place,
    Staging,
    carrier_name,
    choose,
    negotiation,
)
from podracer_platform.shared_folder import SharedFolder
from support.errors import raises

INLINE = tensor_pb2.CARRIER_KIND_INLINE
SHARED_MEMORY = tensor_pb2.CARRIER_KIND_SHARED_MEMORY
CUDA_IPC = tensor_pb2.CARRIER_KIND_CUDA_IPC
PAYLOAD = Payload(size_bytes=1 << 20, tensor_count=10, in_flight=2)


def endpoint(folder: Path, *, sends: bool = True, **fields: object) -> Endpoint:
    return Endpoint(SharedFolder(folder), sends, **fields)  # type: ignore[arg-type]


def receiving(folder: Path) -> Endpoint:
    return endpoint(folder, sends=False)


def agree(
    opener: Endpoint, answerer: Endpoint, payload: Payload = PAYLOAD
) -> tuple[tensor_pb2.CarrierChoice, Staging | None, Staging | None]:
    """The choice, and what the opener and the other side have of it."""
    offering = CarrierOffering(opener)
    choice, answered = choose(offering.message, answerer, payload)
    return choice, offering.settle(choice), answered


@pytest.mark.parametrize("opener_sends", [False, True])
def test_one_folder_means_shared_memory_in_a_file_of_the_sender(tmp_path, opener_sends):
    """Each has a folder of its own beside the other's; no file stays."""
    folders = {sends: tmp_path / str(sends) for sends in (False, True)}
    for folder in folders.values():
        folder.mkdir()
    ends = [endpoint(folders[sends], sends=sends) for sends in (opener_sends, not opener_sends)]
    choice, *stagings = agree(*ends)
    assert choice.kind == SHARED_MEMORY
    assert choice.slot_count == 2
    assert choice.slot_size_bytes >= 1 << 20
    writer, reader = reversed(stagings) if not opener_sends else stagings
    assert writer is not None
    assert reader is not None
    assert [path.parent for path in tmp_path.glob("*/*")] == (
        [folders[True]] if opener_sends else []
    )
    place, message = Place(0, 0, 1 << 20, 1), tensor_pb2.Tensor()
    writer.write(place, torch.full((1 << 20,), 5, dtype=torch.uint8))
    writer.refer(message, place)
    reader.read(reader.place_of(message), found := torch.zeros(1 << 20, dtype=torch.uint8))
    assert found.eq(5).all()
    assert not list(tmp_path.glob("*/*"))
    writer.close()


def test_two_folders_of_one_name_mean_inline(tmp_path, caplog):
    """As two containers that both call theirs /dev/shm."""
    for name in ("one/here", "other/there"):
        (tmp_path / name).mkdir(parents=True)
    choice, opened, answered = agree(
        receiving(tmp_path / "one/here"), endpoint(tmp_path / "other/there")
    )
    assert (choice.kind, opened, answered) == (INLINE, None, None)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not caplog.messages, "that is nothing to complain about"


def test_the_opener_limits_the_slots(tmp_path):
    for max_slots, in_flight, expected in ((0, 8, 2), (1, 8, 1), (8, 3, 3), (64, 0, 1)):
        offering = CarrierOffering(endpoint(tmp_path), max_slots)
        choice, staging = choose(
            offering.message, endpoint(tmp_path), Payload(1 << 20, 1, in_flight)
        )
        assert choice.slot_count == expected
        assert staging is not None
        staging.close()
        offering.close()


def test_small_payloads_stay_inline(tmp_path):
    choice, *_ = agree(endpoint(tmp_path), endpoint(tmp_path), Payload(8000, 10, 1))
    assert choice.kind == INLINE


def test_an_offer_without_carriers_is_answered_inline(tmp_path):
    unknown = tensor_pb2.CarrierOffer(kinds=[tensor_pb2.CARRIER_KIND_REFERENCE])
    for offer in (
        tensor_pb2.CarrierOffer(),
        unknown,
        CarrierOffering(endpoint(tmp_path), inline_only=True).message,
    ):
        choice, staging = choose(offer, endpoint(tmp_path), PAYLOAD)
        assert (choice.kind, staging) == (INLINE, None)


def test_a_malformed_offer_is_refused(tmp_path):
    offer = tensor_pb2.CarrierOffer(kinds=[SHARED_MEMORY], nonce=b"x" * 32)
    for name in ("../nonce", "/etc/passwd", ""):
        offer.nonce_file = name
        with raises(InvalidInput, "BAD_CARRIER"):
            choose(offer, endpoint(tmp_path), PAYLOAD)
    with pytest.raises(InvalidInput, match="slots"):
        choose(tensor_pb2.CarrierOffer(max_slots=65), endpoint(tmp_path), PAYLOAD)


def test_a_nonce_of_nothing_proves_nothing(tmp_path):
    offering = CarrierOffering(endpoint(tmp_path))
    (tmp_path / offering.message.nonce_file).write_bytes(b"")
    offering.message.nonce = b""
    assert choose(offering.message, endpoint(tmp_path), PAYLOAD)[0].kind == INLINE
    offering.close()


def test_a_full_folder_falls_back_to_inline_and_says_so_once(tmp_path, monkeypatch, caplog):
    allocate = os.posix_fallocate

    def almost_full(descriptor: int, offset: int, size: int) -> None:
        if size > 4096:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", almost_full)
    answerer = endpoint(tmp_path)
    for size in (1 << 20, 2 << 20, 3 << 20):
        choice, opened, answered = agree(receiving(tmp_path), answerer, Payload(size, 10, 1))
        assert (choice.kind, opened, answered) == (INLINE, None, None)
    assert len(caplog.messages) == 1
    assert "shared memory cannot be used" in caplog.messages[0]
    assert "No space left on device" in caplog.messages[0]
    assert not list(tmp_path.iterdir())


def test_an_opener_without_a_folder_offers_inline_and_says_so_once(tmp_path, caplog):
    opener = endpoint(tmp_path / "nowhere")
    assert [list(CarrierOffering(opener).message.kinds) for _ in range(3)] == [[INLINE]] * 3
    assert len(caplog.messages) == 1


def test_a_choice_that_was_not_offered_or_cannot_be_had_is_refused(tmp_path):
    segment = f"podracer-segment-{'0' * 32}"
    choices = {
        "not offered": tensor_pb2.CarrierChoice(kind=CUDA_IPC, slot_size_bytes=4096, slot_count=1),
        "cannot open": tensor_pb2.CarrierChoice(
            kind=SHARED_MEMORY, segment=segment, slot_size_bytes=4096, slot_count=1
        ),
        "no name": tensor_pb2.CarrierChoice(
            kind=SHARED_MEMORY, segment="../x", slot_size_bytes=4096, slot_count=1
        ),
        "slots of": tensor_pb2.CarrierChoice(kind=SHARED_MEMORY, segment=segment),
        "3 slots were chosen, 2 offered": tensor_pb2.CarrierChoice(
            kind=SHARED_MEMORY, segment=segment, slot_size_bytes=4096, slot_count=3
        ),
    }
    for problem, choice in choices.items():
        with pytest.raises(CarrierFailed, match=problem):
            CarrierOffering(receiving(tmp_path)).settle(choice)
        assert not list(tmp_path.iterdir()), "the offer is taken back"


def test_kinds_have_names():
    kinds = (INLINE, SHARED_MEMORY, CUDA_IPC, tensor_pb2.CARRIER_KIND_REFERENCE)
    assert [carrier_name(kind) for kind in kinds] == [
        "inline",
        "shared memory",
        "CUDA IPC",
        "carrier 4",
    ]


class OfDevice(DeviceMemory):
    def __init__(self, *, full: bool = False) -> None:
        self.full = full

    def allocate(self, size_bytes: int, device: torch.device) -> tuple[torch.Tensor, bytes]:
        if self.full:
            raise Exhausted("no memory on the device")
        return torch.zeros(size_bytes, dtype=torch.uint8), b"h" * 64

    def open(self, handle: bytes, size_bytes: int, device: torch.device) -> torch.Tensor:
        raise CarrierFailed("not asked for here")

    def synchronize(self, device: torch.device) -> None:
        pass


class TestCudaIpc:
    @pytest.fixture(autouse=True)
    def devices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def uuid(device: torch.device) -> str:
            return f"GPU-{device.index}" if device.type == "cuda" else ""

        monkeypatch.setattr(negotiation, "device_uuid", uuid)
        monkeypatch.setattr("podracer_platform.carriers.cuda_ipc.device_uuid", uuid)

    def gpu(self, folder: Path, index: int, *, full: bool = False) -> Endpoint:
        return endpoint(
            folder, device=torch.device("cuda", index), device_memory=OfDevice(full=full)
        )

    def test_one_device_is_better_than_one_folder(self, tmp_path):
        choice, opened, answered = agree(self.gpu(tmp_path, 0), self.gpu(tmp_path, 0))
        assert choice.kind == CUDA_IPC
        assert opened is not None
        assert answered is not None
        assert not list(tmp_path.iterdir())

    def test_two_devices_or_a_cpu_share_a_folder_at_best(self, tmp_path):
        for answerer in (self.gpu(tmp_path, 1), endpoint(tmp_path)):
            choice, _, answered = agree(self.gpu(tmp_path, 0), answerer)
            assert choice.kind == SHARED_MEMORY
            assert answered is not None
            answered.close()

    def test_a_full_device_falls_back(self, tmp_path, caplog):
        choice, _, answered = agree(self.gpu(tmp_path, 0), self.gpu(tmp_path, 0, full=True))
        assert choice.kind == SHARED_MEMORY
        assert answered is not None
        answered.close()
        assert "CUDA IPC cannot be used" in caplog.messages[0]

"""Tensors come back as they were, or the damage is named."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from podracer_core.checkpoint import load_checkpoint, open_checkpoint_folder, save_checkpoint
from podracer_core.errors import DataCorrupted, InvalidInput, NotFound
from podracer_core.storage import FILE_NAME, FolderStore, ObjectStore
from support.errors import raises

PREFIX = "projects/p/jobs/j/agents/a/checkpoints/100-3/"
METADATA = {"algorithm": "ppo", "env_steps": 100, "returns": [0.1, -200.0]}

FLAT = torch.arange(24, dtype=torch.float32)
GROUPS: dict[str, dict[str, Tensor]] = {
    "actor": {
        "layers.0.weight": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),
        "not contiguous": torch.arange(6.0).view(2, 3).t(),
        "expanded": torch.tensor([1.0]).expand(3, 2),
        "needs a gradient": torch.ones(2, requires_grad=True),
        "empty": torch.empty(0, 3),
        "half": torch.tensor([1.5, -2.0], dtype=torch.float16),
        "brain": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "special": torch.tensor([float("nan"), float("inf"), -0.0], dtype=torch.float64),
    },
    "optimizer": {"step": torch.tensor(7, dtype=torch.int64), "scalar": torch.tensor(0.25)},
    "random": {
        "key": torch.tensor([-(2**63), 2**63 - 1]),
        "flags": torch.tensor([True, False]),
        "byte": torch.tensor([255], dtype=torch.uint8),
    },
    "normalizer": {},
    "replay/0": {"first": FLAT[:10], "second": FLAT[10:], "all of it": FLAT, "again": FLAT},
}


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return FolderStore(tmp_path / "store")


def _equal(
    left: Mapping[str, Mapping[str, Tensor]], right: Mapping[str, Mapping[str, Tensor]]
) -> bool:
    def bits(groups: Mapping[str, Mapping[str, Tensor]]) -> Iterator[tuple[object, ...]]:
        for group, name in sorted(
            (label, name) for label, tensors in groups.items() for name in tensors
        ):
            tensor = groups[group][name].detach().contiguous()
            yield (
                group,
                name,
                tensor.dtype,
                tuple(tensor.shape),
                bytes(tensor.view(-1).view(torch.uint8).tolist()),
            )

    return list(left) == list(right) and list(bits(left)) == list(bits(right))


def test_round_trip_of_every_kind_of_tensor(store):
    reference = save_checkpoint(store, PREFIX, GROUPS, METADATA)
    loaded = load_checkpoint(store, PREFIX, reference.manifest_sha256)
    assert _equal(loaded.groups, GROUPS)
    assert loaded.metadata == METADATA
    assert torch.__version__.startswith(loaded.libraries["torch"])  # which says no "+cu130"
    assert reference.prefix == PREFIX
    assert reference.size_bytes == sum(info.size_bytes for info in store.list(PREFIX))
    assert all(
        not tensor.requires_grad for group in loaded.groups.values() for tensor in group.values()
    )


def test_loaded_tensors_can_be_written_to(store):
    save_checkpoint(store, PREFIX, GROUPS, METADATA)
    tensor = load_checkpoint(store, PREFIX).groups["actor"]["layers.0.weight"]
    tensor.zero_()
    assert not load_checkpoint(store, PREFIX).groups["actor"]["layers.0.weight"].eq(tensor).all()


def test_only_some_groups(store):
    save_checkpoint(store, PREFIX, GROUPS, METADATA)
    assert list(load_checkpoint(store, PREFIX, groups=("actor", "absent")).groups) == ["actor"]


def test_the_manifest_is_written_last_and_without_it_nothing_counts(store, monkeypatch):
    written: list[str] = []
    put = store.put
    monkeypatch.setattr(store, "put", lambda key, data: (put(key, data), written.append(key))[1])
    save_checkpoint(store, PREFIX, GROUPS, METADATA)
    assert written == [
        *(f"{PREFIX}{group}.safetensors" for group in GROUPS),
        f"{PREFIX}{FILE_NAME}",
    ]
    store.delete(f"{PREFIX}{FILE_NAME}")
    with pytest.raises(NotFound, match=r"manifest\.json"):
        load_checkpoint(store, PREFIX)
    with pytest.raises(DataCorrupted, match=r"manifest\.json"):
        load_checkpoint(store, PREFIX, "0" * 64)


def test_an_interrupted_save_can_be_repeated(store, monkeypatch):
    put, calls = store.put, itertools.count()

    def killed(key: str, data: bytes) -> None:
        if next(calls) == 2:
            raise KeyboardInterrupt
        put(key, data)

    monkeypatch.setattr(store, "put", killed)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(store, PREFIX, GROUPS, METADATA)
    monkeypatch.undo()
    reference = save_checkpoint(store, PREFIX, GROUPS, METADATA)
    assert _equal(load_checkpoint(store, PREFIX, reference.manifest_sha256).groups, GROUPS)


def test_the_same_content_has_the_same_reference(store):
    reference = save_checkpoint(store, PREFIX, GROUPS, METADATA)
    assert save_checkpoint(store, PREFIX, GROUPS, METADATA) == reference
    assert save_checkpoint(store, PREFIX, GROUPS, {**METADATA, "env_steps": 101}) != reference


@pytest.mark.parametrize(
    ("groups", "metadata", "prefix"),
    [
        ({"../actor": {}}, {}, PREFIX),
        ({"Actor": {}}, {}, PREFIX),
        ({"actor": {"w": torch.zeros(1, dtype=torch.complex64)}}, {}, PREFIX),
        ({"actor": {"w": torch.zeros(2, 2).to_sparse()}}, {}, PREFIX),
        ({}, {"best": float("inf")}, PREFIX),
        ({}, {}, PREFIX.rstrip("/")),
        ({"actor": {}}, {}, "../outside/"),
    ],
)
def test_refuses_what_cannot_be_stored_before_anything_is_written(store, groups, metadata, prefix):
    with pytest.raises(InvalidInput):
        save_checkpoint(store, prefix, groups, metadata)
    assert list(store.list()) == []


class TestDamage:
    """What may happen to stored files: each is named, and no tensor comes out."""

    KEY = f"{PREFIX}actor.safetensors"

    @pytest.fixture
    def sha256(self, store: ObjectStore) -> str:
        return save_checkpoint(store, PREFIX, GROUPS, METADATA).manifest_sha256

    def _assert_refused(self, store: ObjectStore, sha256: str | None, named: str) -> None:
        with pytest.raises(DataCorrupted) as caught:
            load_checkpoint(store, PREFIX, sha256)
        assert named in str(caught.value)
        assert caught.value.metadata["file"] == named

    def test_one_bit_flipped(self, store, sha256):
        data = store.get(self.KEY)
        for position in range(0, len(data), 37):
            store.put(
                self.KEY, data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :]
            )
            self._assert_refused(store, None, self.KEY)


class TestFolder:
    def test_a_folder_or_its_manifest(self, tmp_path):
        save_checkpoint(FolderStore(tmp_path), "some/where/", GROUPS, METADATA)
        folder = tmp_path / "some" / "where"
        for path in (folder, folder / FILE_NAME):
            assert _equal(open_checkpoint_folder(path).groups, GROUPS)
        assert sorted(path.name for path in folder.iterdir()) == sorted(
            [FILE_NAME, "replay", *(f"{group}.safetensors" for group in GROUPS if "/" not in group)]
        )

    def test_a_folder_that_is_no_checkpoint(self, tmp_path):
        for path in (tmp_path, tmp_path / "absent", tmp_path / FILE_NAME):
            with raises(InvalidInput, "NO_CHECKPOINT", match=r"a manifest\.json"):
                open_checkpoint_folder(path)
        with raises(InvalidInput, "NO_CHECKPOINT", match="too long"):
            open_checkpoint_folder(tmp_path / ("a" * 300))
        assert list(tmp_path.iterdir()) == []

"""A manifest comes back as it was, and nothing else passes for one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podracer_core.errors import DataCorrupted, InvalidInput, NotFound
from podracer_core.storage import (
    FolderStore,
    Manifest,
    ManifestFile,
    read_file,
    read_manifest,
    verify,
)
from support.errors import raises

FILE = ManifestFile.describe("actor.safetensors", b"weights")
MANIFEST = Manifest((FILE,), {"returns": [0.1, -1e300], "nested": {"ü": None}}, {"torch": "2.13.0"})


def test_round_trip_is_exact_and_its_bytes_are_always_the_same():
    text = MANIFEST.to_json()
    assert Manifest.from_json(text) == MANIFEST
    reordered = dataclasses.replace(MANIFEST, metadata=dict(reversed(MANIFEST.metadata.items())))
    assert reordered.to_json() == text
    assert MANIFEST.size_bytes == 7


@pytest.mark.parametrize(
    "metadata", [{"x": float("nan")}, {"x": float("inf")}, {"x": b"bytes"}, {"x": Path()}]
)
def test_refuses_metadata_that_json_cannot_carry(metadata):
    with pytest.raises(InvalidInput, match="JSON"):
        dataclasses.replace(MANIFEST, metadata=metadata).to_json()


def _changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    value = json.loads(MANIFEST.to_json())
    change(value)
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"schema": 1}',
        b"[" * 100_000,
        MANIFEST.to_json()[:-2],
        MANIFEST.to_json().replace(b"-1e+300", b"NaN"),
        MANIFEST.to_json().replace(b'"torch"', b'"torch": "1", "torch"'),
        _changed(lambda value: value.update(extra=1)),
        _changed(lambda value: value.pop("libraries")),
        _changed(lambda value: value.update(metadata=[])),
        _changed(lambda value: value.update(libraries={"torch": 2})),
        _changed(lambda value: value.update(files={})),
        _changed(lambda value: value.update(files=["actor"])),
        _changed(lambda value: value["files"].append(value["files"][0])),
        _changed(lambda value: value["files"][0].update(size=-1)),
        _changed(lambda value: value["files"][0].update(size=True)),
        _changed(lambda value: value["files"][0].update(size=1.0)),
        _changed(lambda value: value["files"][0].update(sha256="0")),
        _changed(lambda value: value["files"][0].update(path="../../etc/passwd")),
        _changed(lambda value: value["files"][0].update(path="/etc/passwd")),
        _changed(lambda value: value["files"][0].update(path=3)),
        _changed(lambda value: value["files"][0].pop("size")),
        _changed(lambda value: value["files"][0].update(folder="..")),
        _changed(lambda value: value["files"][0].update(folder="64-1/../..")),
        _changed(lambda value: value["files"][0].update(folder="")),
        _changed(lambda value: value["files"][0].update(folder=3)),
    ],
)
def test_refuses_what_it_has_not_written(data):
    with pytest.raises(DataCorrupted, match=r"some/manifest\.json"):
        Manifest.from_json(data, "some/manifest.json")


def test_reads_what_the_first_version_has_written():
    older = _changed(lambda value: value.update(schema="podracer/manifest/v1"))
    assert Manifest.from_json(older).files == Manifest.from_json(_changed(lambda value: None)).files


def test_a_file_of_a_checkpoint_beside_is_found_and_verified_there(tmp_path):
    store = FolderStore(tmp_path)
    store.put("agents/a/checkpoints/64-1/actor.safetensors", b"weights")
    beside = FILE.seen_from_beside("agents/a/checkpoints/64-1/")
    assert beside.seen_from_beside("agents/a/checkpoints/128-1/") == beside
    prefix = "agents/a/checkpoints/192-2/"
    manifest = Manifest((beside,), {}, {})
    assert Manifest.from_json(manifest.to_json()) == manifest
    store.put(f"{prefix}manifest.json", manifest.to_json())
    assert verify(store, prefix) == manifest
    assert read_file(store, prefix, beside) == b"weights"
    assert beside.key("") == "actor.safetensors", "a checkpoint that was downloaded is whole"
    store.put("agents/a/checkpoints/64-1/actor.safetensors", b"weighty")
    with pytest.raises(DataCorrupted, match="64-1/actor"):
        verify(store, prefix)


def test_says_that_a_schema_is_unknown():
    with raises(InvalidInput, "UNKNOWN_SCHEMA"):
        Manifest.from_json(
            _changed(lambda value: value.update(schema="podracer/manifest/v9", new=1))
        )


@pytest.mark.parametrize("data", [b"weight", b"weights ", b"weighty"])
def test_a_file_must_be_what_was_recorded(data):
    FILE.verify(b"weights")
    with pytest.raises(DataCorrupted, match=r"actor\.safetensors"):
        FILE.verify(data)


class TestInAStore:
    @pytest.fixture
    def store(self, tmp_path: Path) -> FolderStore:
        store = FolderStore(tmp_path)
        store.put("p/actor.safetensors", b"weights")
        store.put("p/manifest.json", MANIFEST.to_json())
        return store

    def test_what_is_whole_is_accepted(self, store):
        assert verify(store, "p/") == MANIFEST
        assert read_file(store, "p/", FILE) == b"weights"

    @pytest.mark.parametrize("data", [b"weight", b"weights ", b"weighty"])
    def test_what_was_altered_is_named(self, store, data):
        store.put("p/actor.safetensors", data)
        for call in (lambda: verify(store, "p/"), lambda: read_file(store, "p/", FILE)):
            with pytest.raises(DataCorrupted, match=r"p/actor\.safetensors"):
                call()

    def test_what_is_missing_is_named(self, store):
        store.delete("p/actor.safetensors")
        for call in (lambda: verify(store, "p/"), lambda: read_file(store, "p/", FILE)):
            with pytest.raises(DataCorrupted, match=r"p/actor\.safetensors"):
                call()

    def test_a_missing_manifest_is_corruption_only_where_one_was_committed(self, store):
        store.delete("p/manifest.json")
        with pytest.raises(NotFound, match=r"no p/manifest\.json"):
            read_manifest(store, "p/")
        with pytest.raises(DataCorrupted, match=r"p/manifest\.json"):
            read_manifest(store, "p/", "0" * 64)

    def test_another_manifest_than_the_committed_one_is_refused(self, store):
        with pytest.raises(DataCorrupted, match="committed"):
            read_manifest(store, "p/", "0" * 64)

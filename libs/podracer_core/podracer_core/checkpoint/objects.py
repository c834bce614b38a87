"""One agent's tensors as objects. The manifest is written last and makes them valid; loading
verifies every byte."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import re
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from podracer_core.errors import DataCorrupted, InvalidInput
from podracer_core.storage import (
    FILE_NAME,
    CheckpointRef,
    FolderStore,
    Manifest,
    ManifestFile,
    ObjectStore,
    read_file,
    read_manifest,
)

SUFFIX = ".safetensors"

_GROUP = re.compile(r"[a-z][a-z0-9_-]*(?:/[a-z0-9_-]+)*")  # actor, critic, … replay/7
_LIBRARIES = ("podracer-core", "torch", "safetensors")
_DTYPES = frozenset(
    {
        torch.float64, torch.float32, torch.float16, torch.bfloat16,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    }
)  # fmt: skip


def save_checkpoint(
    store: ObjectStore,
    prefix: str,
    groups: Mapping[str, Mapping[str, Tensor]],
    metadata: Mapping[str, Any],
    earlier: Collection[ManifestFile] = (),
) -> CheckpointRef:
    """Write each group as `<prefix><group>.safetensors`, then `<prefix>manifest.json` with
    `metadata` (JSON values).

    prefix   ends with `/`; of its own for every checkpoint (`storage.layout.checkpoint_prefix`), so
             nothing is read here and nothing that may be committed is overwritten
    groups   actor, critic, optimizer, normalizer, algorithm, environment, random …: tensors of one
             agent, any layout and device. They must not change until this returns.
    earlier  files of a committed checkpoint beside this one (`CheckpointRef.files`,
             `Checkpoint.files`): those that are the same here are named in place of being written
             again

    The same content always gives the same reference. Raises InvalidInput for what cannot be stored,
    before anything is written, and the errors of the store."""
    if prefix and not prefix.endswith("/"):
        raise InvalidInput(f"the prefix of a checkpoint ends with /; got {prefix!r}")
    bodies = {_path(group): _serialize(group, tensors) for group, tensors in groups.items()}
    there = {(file.path, file.size_bytes, file.sha256): file for file in earlier}
    described = (ManifestFile.describe(path, body) for path, body in bodies.items())
    files = tuple(there.get((file.path, file.size_bytes, file.sha256), file) for file in described)
    manifest = Manifest(
        files, metadata, {name: importlib.metadata.version(name) for name in _LIBRARIES}
    )
    text = manifest.to_json()
    for file in files:
        if not file.folder:
            store.put(file.key(prefix), bodies[file.path])
    store.put(f"{prefix}{FILE_NAME}", text)
    beside = tuple(file.seen_from_beside(prefix) for file in files)
    return CheckpointRef(
        prefix, hashlib.sha256(text).hexdigest(), manifest.size_bytes + len(text), beside
    )


def _path(group: str) -> str:
    if not _GROUP.fullmatch(group):
        raise InvalidInput(f"a group of tensors is called actor or replay/7, not {group!r}")
    return f"{group}{SUFFIX}"


def _serialize(group: str, tensors: Mapping[str, Tensor]) -> bytes:
    """One safetensors file; copies the data once (and once more from a GPU, or where a tensor is
    not contiguous)."""
    packed: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES or tensor.layout != torch.strided:
            raise InvalidInput(
                f"{group}: {name} is a {tensor.layout} tensor of {tensor.dtype}; it cannot be "
                "stored"
            )
        dense = tensor.detach().cpu().contiguous()
        # safetensors refuses tensors that overlap in memory, and cannot be asked whether two do.
        storage = dense.untyped_storage().data_ptr()
        packed[name] = dense.clone() if storage in storages else dense
        storages.add(storage)
    return safetensors.torch.save(packed)


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by group and name, on the CPU, and the metadata; `files`: in the form in which a
    checkpoint beside this one may name them."""

    groups: Mapping[str, Mapping[str, Tensor]]
    metadata: Mapping[str, Any]
    libraries: Mapping[str, str]
    files: tuple[ManifestFile, ...] = ()


def load_checkpoint(
    store: ObjectStore,
    prefix: str,
    manifest_sha256: str | None = None,
    groups: tuple[str, ...] | None = None,
    skip: tuple[str, ...] = (),
) -> Checkpoint:
    """Read a checkpoint, or only some of its groups.

    manifest_sha256   the one of CommitCheckpoint; with it only that checkpoint is accepted
    groups            names to read, such as ("actor", "normalizer"); a checkpoint need not have all
                      of them
    skip              names not to read, with what is below them: "replay" for replay/7, too

    Raises NotFound if there is no finished checkpoint, DataCorrupted, naming the file, if a part is
    missing, truncated, altered or foreign, InvalidInput (UNKNOWN_SCHEMA) if a newer version has
    written it."""
    if prefix and not prefix.endswith("/"):
        raise InvalidInput(f"the prefix of a checkpoint ends with /; got {prefix!r}")
    manifest = read_manifest(store, prefix, manifest_sha256)
    loaded: dict[str, Mapping[str, Tensor]] = {}
    for file in manifest.files:
        group = file.path.removesuffix(SUFFIX)
        if not file.path.endswith(SUFFIX):
            raise DataCorrupted(
                f"{prefix}{file.path} cannot be a part of a checkpoint", file=f"{prefix}{file.path}"
            )
        if (groups is None or group in groups) and group.partition("/")[0] not in skip:
            loaded[group] = _read_group(store, prefix, file)
    files = tuple(file.seen_from_beside(prefix) for file in manifest.files)
    return Checkpoint(loaded, manifest.metadata, manifest.libraries, files)


def open_checkpoint_folder(
    path: Path, groups: tuple[str, ...] | None = None, skip: tuple[str, ...] = ()
) -> Checkpoint:
    """The checkpoint in a local folder, or the one that a local `manifest.json` belongs to; read
    only.

    Raises InvalidInput if there is none, and the errors of `load_checkpoint`.
    """
    folder = path.parent if path.name == FILE_NAME else path
    try:
        found = (folder / FILE_NAME).is_file()
    except OSError as error:  # a name that is too long, a folder without permission
        raise InvalidInput(
            f"no checkpoint at {str(path)[:200]}: {error.strerror}", reason="NO_CHECKPOINT"
        ) from error
    if not found:
        raise InvalidInput(
            f"no checkpoint at {path}: expected a folder with a {FILE_NAME}", reason="NO_CHECKPOINT"
        )
    return load_checkpoint(FolderStore(folder, create=False), "", groups=groups, skip=skip)


def load_packed_checkpoint(
    store: ObjectStore, key: str, sha256: str, size_bytes: int
) -> Checkpoint:
    """The tensors of a checkpoint that was uploaded as one archive. Raises DataCorrupted if it is
    not that archive."""
    data = read_file(store, "", ManifestFile(key, size_bytes, sha256))
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            groups = {
                name.removesuffix(SUFFIX): safetensors.torch.load(archive.read(name))
                for name in archive.namelist()
            }
    except (zipfile.BadZipFile, SafetensorError) as error:
        raise DataCorrupted(
            f"{key} is not an archive of a checkpoint: {error}", file=key
        ) from error
    return Checkpoint(groups, {}, {})


def _read_group(store: ObjectStore, prefix: str, file: ManifestFile) -> Mapping[str, Tensor]:
    data = read_file(store, prefix, file)
    try:
        return safetensors.torch.load(data)
    except SafetensorError as error:
        key = file.key(prefix)
        raise DataCorrupted(f"{key} is not a safetensors file: {error}", file=key) from error

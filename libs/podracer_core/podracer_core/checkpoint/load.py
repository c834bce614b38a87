"""Objects -> one agent's tensors, every byte verified first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from podracer_core.checkpoint.save import SUFFIX
from podracer_core.errors import DataCorrupted, InvalidInput
from podracer_core.storage.folder import FolderStore
from podracer_core.storage.manifest import FILE_NAME, ManifestFile, read_file, read_manifest
from podracer_core.storage.object_store import ObjectStore


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by group and name, on the CPU, and what was written beside them; `files` as a checkpoint beside this one
    may name them."""

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

    manifest_sha256   what CommitCheckpoint was told; with it nothing but that very checkpoint is accepted
    groups            names to read, such as ("actor", "normalizer"); a checkpoint need not have all of them
    skip              names not to read, with what is below them: "replay" for replay/7, too

    Raises NotFound if there is no finished checkpoint, DataCorrupted, naming the file, if a part is missing, truncated,
    altered or foreign, InvalidInput (UNKNOWN_SCHEMA) if a newer version has written it.
    """
    if prefix and not prefix.endswith("/"):
        raise InvalidInput(f"the prefix of a checkpoint ends with /; got {prefix!r}")
    manifest = read_manifest(store, prefix, manifest_sha256)
    loaded: dict[str, Mapping[str, Tensor]] = {}
    for file in manifest.files:
        group = file.path.removesuffix(SUFFIX)
        if not file.path.endswith(SUFFIX):
            raise DataCorrupted(f"{prefix}{file.path} cannot be a part of a checkpoint", file=f"{prefix}{file.path}")
        if (groups is None or group in groups) and group.partition("/")[0] not in skip:
            loaded[group] = _read_group(store, prefix, file)
    files = tuple(file.seen_from_beside(prefix) for file in manifest.files)
    return Checkpoint(loaded, manifest.metadata, manifest.libraries, files)


def open_checkpoint_folder(path: Path, groups: tuple[str, ...] | None = None) -> Checkpoint:
    """The checkpoint in a local folder, or the one that a local `manifest.json` belongs to; read only.

    Raises InvalidInput where there is none, and the errors of `load_checkpoint`.
    """
    folder = path.parent if path.name == FILE_NAME else path
    try:
        found = (folder / FILE_NAME).is_file()
    except OSError as error:  # a name that is too long, a folder of somebody else's
        raise InvalidInput(f"no checkpoint at {str(path)[:200]}: {error.strerror}", reason="NO_CHECKPOINT") from error
    if not found:
        raise InvalidInput(f"no checkpoint at {path}: expected a folder with a {FILE_NAME}", reason="NO_CHECKPOINT")
    return load_checkpoint(FolderStore(folder, create=False), "", groups=groups)


def _read_group(store: ObjectStore, prefix: str, file: ManifestFile) -> Mapping[str, Tensor]:
    data = read_file(store, prefix, file)
    try:
        return safetensors.torch.load(data)
    except SafetensorError as error:
        key = file.key(prefix)
        raise DataCorrupted(f"{key} is not a safetensors file: {error}", file=key) from error

"""The keys of the object store (DESIGN §9), and the manifest of objects that belong together:
written last, it certifies that all of them are complete.

projects/<p>/jobs/<uid>/agents/<a>/checkpoints/<step>-<fence>/{actor,critic,…}.safetensors,
manifest.json
projects/<p>/jobs/<uid>/agents/<a>/checkpoints/<step>-<fence>/replay/{tail,<part>}.safetensors:
later ones may name it projects/<p>/artifacts/<x>/<file>"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from podracer_core.errors import DataCorrupted, InvalidInput, NotFound
from podracer_core.storage.object_store import ObjectStore, check_key

SCHEMA = "podracer/manifest/v2"
_OLDER = "podracer/manifest/v1"  # the same, without `folder`
FILE_NAME = "manifest.json"

_MAX_BYTES = 16 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FOLDER = re.compile(r"[0-9]+-[0-9]+")


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One file: its path below the manifest's folder, its length, and its SHA-256 in lower-case
    hexadecimal digits.

    folder   of the checkpoint beside this one that has the file, if an earlier one does; else empty
    """

    path: str
    size_bytes: int
    sha256: str
    folder: str = ""

    @classmethod
    def describe(cls, path: str, data: bytes) -> ManifestFile:
        """The record of `data`."""
        return cls(path, len(data), hashlib.sha256(data).hexdigest())

    def verify(self, data: bytes) -> None:
        """Raises DataCorrupted unless these are the recorded bytes."""
        found = ManifestFile.describe(self.path, data)
        if (found.size_bytes, found.sha256) != (self.size_bytes, self.sha256):
            raise _altered(self, found.size_bytes)

    def key(self, prefix: str) -> str:
        """The file's key, for the manifest at `prefix`. Without a prefix it is a downloaded
        checkpoint, whose folder has all files."""
        if not self.folder or not prefix:
            return f"{prefix}{self.path}"
        return f"{prefix[: prefix.rstrip('/').rfind('/') + 1]}{self.folder}/{self.path}"

    def seen_from_beside(self, prefix: str) -> ManifestFile:
        """The file as a checkpoint beside the one at `prefix` may name it."""
        return replace(self, folder=self.folder or prefix.rstrip("/").rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class Manifest:
    """files, free metadata (JSON values), and versions of the libraries that wrote them."""

    files: tuple[ManifestFile, ...]
    metadata: Mapping[str, Any]
    libraries: Mapping[str, str]
    schema: str = SCHEMA

    def to_json(self) -> bytes:
        """The same manifest always gives the same bytes. Raises InvalidInput for metadata that JSON
        cannot carry."""
        value = {
            "schema": self.schema,
            "files": [_entry(file) for file in self.files],
            "metadata": dict(self.metadata),
            "libraries": dict(self.libraries),
        }
        try:
            return json.dumps(value, allow_nan=False, sort_keys=True, indent=1).encode()
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"the metadata of a manifest must be finite JSON values: {error}"
            ) from error

    @classmethod
    def from_json(cls, data: bytes, name: str = FILE_NAME) -> Manifest:
        """The inverse of `to_json`; also reads manifests of former versions.

        Raises DataCorrupted for a malformed manifest, and InvalidInput (reason UNKNOWN_SCHEMA) for
        a manifest of an unknown schema."""
        try:
            value = json.loads(data, object_pairs_hook=_object, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise DataCorrupted(f"{name} is not JSON: {error}", file=name) from error
        schema = value.get("schema") if isinstance(value, dict) else None
        if not isinstance(schema, str):
            raise DataCorrupted(f"{name} is not a manifest: it names no schema", file=name)
        if schema not in (SCHEMA, _OLDER):
            raise InvalidInput(
                f"{name} has schema {schema[:100]!r}; this version of Podracer reads {SCHEMA!r} "
                "and older",
                reason="UNKNOWN_SCHEMA",
                file=name,
            )
        try:
            return cls._from_value(value)
        except (TypeError, ValueError, InvalidInput) as error:
            raise DataCorrupted(f"{name} is not a manifest: {error}", file=name) from error

    @classmethod
    def _from_value(cls, value: dict[str, Any]) -> Manifest:
        _expect_keys(value, {"schema", "files", "metadata", "libraries"})
        metadata, libraries = value["metadata"], value["libraries"]
        if not isinstance(metadata, dict) or not isinstance(libraries, dict):
            raise TypeError("metadata and libraries must be objects")
        if not all(isinstance(version, str) for version in libraries.values()):
            raise TypeError("versions of libraries must be strings")
        if not isinstance(value["files"], list):
            raise TypeError("files must be a list")
        files = tuple(_file(entry) for entry in value["files"])
        if len({file.path for file in files}) != len(files):
            raise ValueError("a file is listed twice")
        return cls(files, metadata, libraries)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files, without the manifest itself."""
        return sum(file.size_bytes for file in self.files)


def read_manifest(store: ObjectStore, prefix: str, sha256: str | None = None) -> Manifest:
    """The manifest at `prefix`, checked against the hash of its bytes if one is given.

    Raises NotFound if there is none (the writing was never finished), DataCorrupted if there should
    be one (`sha256` is given) or if it has been altered."""
    key = f"{prefix}{FILE_NAME}"
    try:
        if store.stat(key).size_bytes > _MAX_BYTES:
            raise DataCorrupted(f"{key} is larger than any manifest ({_MAX_BYTES} bytes)", file=key)
        data = store.get(key)
    except NotFound as error:
        if sha256 is not None:
            raise DataCorrupted(f"{key} is missing", file=key) from error
        raise NotFound(
            f"{store.url}: there is no {key}; without it nothing at {prefix!r} counts", key=key
        ) from error
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise DataCorrupted(
            f"{key} is not the manifest that was committed: its SHA-256 differs", file=key
        )
    return Manifest.from_json(data, key)


def read_file(store: ObjectStore, prefix: str, file: ManifestFile) -> bytes:
    """One file of a manifest, verified. Raises DataCorrupted that names it if it is missing,
    truncated or altered."""
    key = file.key(prefix)
    recorded = ManifestFile(key, file.size_bytes, file.sha256)
    try:
        found = store.stat(key).size_bytes
        if found != file.size_bytes:  # before reading what may be of any size
            raise _altered(recorded, found)
        data = store.get(key)
    except NotFound as error:
        raise DataCorrupted(f"{key} is missing", file=key) from error
    recorded.verify(data)
    return data


def verify(store: ObjectStore, prefix: str, sha256: str | None = None) -> Manifest:
    """Compare all files at `prefix` with their manifest, in pieces. Raises as `read_manifest` and
    `read_file`."""
    manifest = read_manifest(store, prefix, sha256)
    for file in manifest.files:
        key, digest, size_bytes = file.key(prefix), hashlib.sha256(), 0
        try:
            for chunk in store.read_chunks(key):
                digest.update(chunk)
                size_bytes += len(chunk)
        except NotFound as error:
            raise DataCorrupted(f"{key} is missing", file=key) from error
        if (size_bytes, digest.hexdigest()) != (file.size_bytes, file.sha256):
            raise _altered(ManifestFile(key, file.size_bytes, file.sha256), size_bytes)
    return manifest


def _altered(file: ManifestFile, found_bytes: int) -> DataCorrupted:
    if found_bytes != file.size_bytes:
        message = f"{file.path} has {found_bytes} bytes; its manifest says {file.size_bytes}"
    else:
        message = f"{file.path} has been altered: its SHA-256 is not the one in its manifest"
    return DataCorrupted(message, file=file.path)


def _entry(file: ManifestFile) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": file.path, "size": file.size_bytes, "sha256": file.sha256}
    return entry | {"folder": file.folder} if file.folder else entry


def _file(entry: Any) -> ManifestFile:
    if not isinstance(entry, dict):
        raise TypeError("a file must be an object")
    _expect_keys(entry, {"path", "size", "sha256"} | entry.keys() & {"folder"})
    path = entry["path"]
    size = entry["size"]
    sha256 = entry["sha256"]
    folder = entry.get("folder", "")
    if not isinstance(path, str) or not isinstance(sha256, str) or type(size) is not int:
        raise TypeError("a file must have a path, a size and a sha256")
    if size < 0 or not _SHA256.fullmatch(sha256):
        raise ValueError(f"file {path!r} has an impossible size or sha256")
    if "folder" in entry and not (isinstance(folder, str) and _FOLDER.fullmatch(folder)):
        raise ValueError(f"file {path!r} has an impossible folder")
    return ManifestFile(check_key(path), size, sha256, folder)


def _expect_keys(value: dict[str, Any], names: set[str]) -> None:
    if set(value) != names:
        raise ValueError(f"expected the keys {sorted(names)}, found {sorted(value)}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key is there twice")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


REPLAY_FOLDER = "replay/"
"""Folder in a checkpoint: parts of a replay buffer, which later ones of the agent may name in place
of writing them."""

UPLOADS_FOLDER = "artifacts/"
"""Folder in a project: uploaded files."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_CHECKPOINT = re.compile(
    r"projects/(?P<project>[^/]+)/jobs/(?P<job>[^/]+)/agents/(?P<agent>[^/]+)/checkpoints/(?P<step>\d+)-(?P<fence>\d+)/"
)


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A written checkpoint: its prefix, and the hash of its manifest's bytes.

    prefix            key prefix in the store, with a `/` at its end
    manifest_sha256   64 lower-case hexadecimal digits
    size_bytes        of all its files, the manifest included
    files             its files, in the form in which a checkpoint beside it may name them
    """

    prefix: str
    manifest_sha256: str
    size_bytes: int
    files: tuple[ManifestFile, ...]


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """The parts of a checkpoint's prefix: ids (no resource names), lineage steps, fence of the
    writing lease."""

    project: str
    job_uid: str
    agent: str
    env_steps: int
    fence: int

    @property
    def prefix(self) -> str:
        """The key prefix, with a `/` at its end. Raises InvalidInput for an id that is invalid in a
        key."""
        if self.env_steps < 0 or self.fence < 0:
            raise InvalidInput(
                f"a checkpoint has env_steps and fence of 0 or more, not {self.env_steps}, "
                f"{self.fence}"
            )
        agent = agent_prefix(self.project, self.job_uid, self.agent)
        return f"{agent}checkpoints/{self.env_steps}-{self.fence}/"

    @classmethod
    def parse(cls, prefix: str) -> CheckpointPlace:
        """The inverse of `prefix`; InvalidInput for anything else."""
        found = _CHECKPOINT.fullmatch(prefix)
        if found is None:
            raise InvalidInput(
                f"{prefix!r} is not the prefix of a checkpoint", reason="INVALID_CHECKPOINT_PREFIX"
            )
        place = cls(
            found["project"], found["job"], found["agent"], int(found["step"]), int(found["fence"])
        )
        if place.prefix != prefix:  # 007 for 7
            raise InvalidInput(
                f"{prefix!r} is not the prefix of a checkpoint", reason="INVALID_CHECKPOINT_PREFIX"
            )
        return place

    @classmethod
    def of_object(cls, key: str) -> CheckpointPlace | None:
        """The checkpoint that an object belongs to; None if it belongs to none."""
        found = _CHECKPOINT.match(key)
        try:
            return None if found is None else cls.parse(found[0])
        except InvalidInput:
            return None


def job_prefix(project: str, job_uid: str) -> str:
    """The prefix of a job's objects. Raises InvalidInput for an id that is invalid in a key."""
    return f"projects/{_checked(project)}/jobs/{_checked(job_uid)}/"


def agent_prefix(project: str, job_uid: str, agent: str) -> str:
    """The prefix of an agent's objects. Raises InvalidInput for an id that is invalid in a key."""
    return f"{job_prefix(project, job_uid)}agents/{_checked(agent)}/"


def written_pattern(project: str, job_uid: str, fence: int) -> str:
    """The objects that the holder of a lease writes; `*` is any text."""
    return f"{job_prefix(project, job_uid)}agents/*/checkpoints/*-{fence}/*"


def checkpoint_prefix(project: str, job_uid: str, agent: str, env_steps: int, fence: int) -> str:
    """The prefix of a checkpoint: no two leases, and no two moments of a lease, share one."""
    return CheckpointPlace(project, job_uid, agent, env_steps, fence).prefix


def of_project(key: str, project: str) -> bool:
    """Whether an object belongs to a project."""
    return key.startswith(f"projects/{_checked(project)}/")


def artifact_key(project: str, artifact: str, file: str) -> str:
    """Key of a file of an uploaded artifact."""
    return check_key(f"projects/{_checked(project)}/{UPLOADS_FOLDER}{_checked(artifact)}/{file}")


def _checked(part: str) -> str:
    if not _ID.fullmatch(part):
        raise InvalidInput(
            f"{part[:200]!r} cannot be an id in the object store: letters, digits, - and _, at "
            "most 128",
            reason="INVALID_ID",
        )
    return part

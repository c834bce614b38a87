"""A user's code for tests: folders, archives, and files in an object store."""

from __future__ import annotations

import hashlib
import io
import stat
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from podracer_core.catalogue import StoredFile
from podracer_core.storage import ObjectStore, artifact_key
from podracer_platform.attachments import pack_code, put_file

LINE = """
import gymnasium
import numpy


class Line(gymnasium.Env):
    '''Walk along a line: a step to the right gives 1.'''

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, table=None):
        self.start = float(open(table).read()) if table else 0.0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.steps = self.start, 0
        return numpy.array([self.position], numpy.float32), {}

    def step(self, action):
        self.position += 1.0 if action == 1 else -1.0
        self.steps += 1
        return numpy.array([self.position], numpy.float32), float(action), self.steps >= 8, False, {}
"""
"""An environment; `table` is a file with the number at which it starts."""


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files by their paths below `folder`, which is returned."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def stored(
    content: bytes, name: str = "", key: str = "projects/default/artifacts/a/content"
) -> StoredFile:
    """What names this content."""
    return StoredFile(key, hashlib.sha256(content).hexdigest(), len(content), name)


def store_file(store: ObjectStore, content: bytes, name: str) -> StoredFile:
    """Put a file where ArtifactService would."""
    file = stored(content, name)
    file = StoredFile(
        artifact_key("default", file.sha256, "content"), file.sha256, file.size_bytes, name
    )
    store.put(file.key, content)
    return file


def store_code(store: ObjectStore, folder: Path, entry_point: str) -> StoredFile:
    """Pack a folder and put it where ArtifactService would."""
    return store_file(store, pack_code(folder, entry_point), "code.zip")


def bring_file(
    put: Callable[..., Any], request: Callable[..., Any], content: bytes, name: str
) -> StoredFile:
    """Send a file to a worker or an evaluator; `put` is its stub's PutFile."""
    file = stored(content, name)
    with tempfile.NamedTemporaryFile() as source:
        source.write(content)
        source.flush()
        put_file(put, request, file, Path(source.name))
    return file


def make_zip(
    *entries: tuple[str, bytes], kind: int = stat.S_IFREG, method: int = zipfile.ZIP_DEFLATED
) -> bytes:
    """A zip of any paths, as a hostile client may make it."""
    packed = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(packed, "w", method) as archive:
        warnings.simplefilter("ignore")  # a name that is there twice
        for name, content in entries:
            entry = zipfile.ZipInfo("x")
            entry.filename = name  # the constructor would mend it
            entry.external_attr = (kind | 0o644) << 16
            entry.compress_type = method
            archive.writestr(entry, content)
    return packed.getvalue()

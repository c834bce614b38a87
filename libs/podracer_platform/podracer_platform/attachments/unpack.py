"""Unpack a code archive into a folder. The archive is untrusted: everything in it is checked."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from podracer_core.errors import InvalidInput
from podracer_platform.attachments.limits import (
    CHUNK_BYTES,
    MAX_FILES,
    MAX_PACKED_BYTES,
    MAX_UNPACKED_BYTES,
    count_folders,
    is_plain_path,
    mebibytes,
)

_END = struct.Struct("<4s4H2LH")  # the end of the central directory, without a comment
_END_MAGIC = b"PK\x05\x06"
_LARGE_MAGIC, _LARGE_BYTES = b"PK\x06\x07", 20  # the locator of zip64, which stands before it
_MAX_DIRECTORY_BYTES = 16 << 20  # MAX_FILES of the longest paths
_ENCRYPTED = 0x1
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    RuntimeError,
    ValueError,
    OverflowError,
)
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def announced_bytes(archive: Path) -> int:
    """The unpacked size according to the archive; `unpack_code` writes no more than that. Raises
    InvalidInput as it does."""
    with _opened(archive) as opened:
        return sum(entry.file_size for entry in _checked(opened))


def unpack_code(archive: Path, target: Path) -> None:
    """Write the files of a zip below `target`, an empty folder: readable, not writable.

    Raises InvalidInput (INVALID_CODE_ARCHIVE) for an absolute path, `..`, a link or a device, a
    duplicate path, too many files or folders, more bytes than it announces or than are allowed,
    encryption, and for a file that is not a zip."""
    with _opened(archive) as opened:
        for entry in _checked(opened):
            path = target / entry.filename
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                mode = 0o555 if entry.external_attr >> 16 & stat.S_IXUSR else 0o444
                descriptor = os.open(
                    path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode
                )
            except (FileExistsError, NotADirectoryError) as error:
                raise _refused(f"{entry.filename!r} is a file and a folder") from error
            with os.fdopen(descriptor, "wb") as file:
                _copy(opened, entry, file)


def _copy(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, file: BinaryIO) -> None:
    left = entry.file_size
    with _refusing(f"{entry.filename!r} cannot be unpacked"), archive.open(entry) as source:
        while data := source.read(CHUNK_BYTES):
            left -= len(data)
            if left < 0:
                raise _refused(f"{entry.filename!r} unpacks to more than it announces")
            file.write(data)
    if left:
        raise _refused(f"{entry.filename!r} unpacks to less than it announces")


def is_unpacked(archive: Path, folder: Path) -> bool:
    """Whether `folder` has what `unpack_code` writes there, and nothing else."""
    with _opened(archive) as opened:
        entries = {entry.filename: entry for entry in _checked(opened)}
        found = []
        for place, folders, names in os.walk(folder):
            paths = [Path(place, name) for name in names]
            found += [path.relative_to(folder).as_posix() for path in paths]
            is_empty = not names and not folders and Path(place) != folder
            if is_empty or any(Path(place, name).is_symlink() for name in folders):
                return False
        if sorted(found) != sorted(entries):
            return False
        return all(_is_whole(opened, entry, folder / name) for name, entry in entries.items())


def _is_whole(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with (
        os.fdopen(descriptor, "rb") as file,
        _refusing("it is damaged"),
        archive.open(entry) as source,
    ):
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        while data := source.read(CHUNK_BYTES):
            if file.read(len(data)) != data:
                return False
        return not file.read(1)


@contextlib.contextmanager
def _refusing(problem: str) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise _refused(f"{problem}: {error}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # it names a place before the beginning of the file
            raise
        raise _refused(problem) from error


def _opened(archive: Path) -> zipfile.ZipFile:
    """The opened archive. Raises InvalidInput before a large directory is read: zipfile reads it as
    a whole."""
    size_bytes = archive.stat().st_size
    if size_bytes > MAX_PACKED_BYTES:
        raise _refused(
            f"it has {mebibytes(size_bytes)}, the limit is {mebibytes(MAX_PACKED_BYTES)}"
        )
    with archive.open("rb") as file:
        file.seek(max(0, size_bytes - _END.size - _LARGE_BYTES))
        tail = file.read()
    if len(tail) < _END.size or not tail[-_END.size :].startswith(_END_MAGIC):
        raise _refused("it is not a zip file without a comment")
    *_, count, directory_bytes, _, comment_bytes = _END.unpack(tail[-_END.size :])
    if (
        comment_bytes
        or tail.startswith(_LARGE_MAGIC)
        or directory_bytes > _MAX_DIRECTORY_BYTES
        or count > MAX_FILES
    ):
        raise _refused(
            f"it has a comment, a directory of more than {mebibytes(_MAX_DIRECTORY_BYTES)}, or "
            f"{_many()}"
        )
    with _refusing("it is not a zip file"):
        return zipfile.ZipFile(archive)


def _checked(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The files of the archive, checked; folders are created for them."""
    entries = archive.infolist()
    if len(entries) > MAX_FILES:
        raise _refused(f"it has {_many()}")
    files = [entry for entry in entries if not _is_folder(entry)]
    paths = set()
    for entry in files:
        if entry.filename in paths:
            raise _refused(f"{entry.filename!r} is there twice")
        paths.add(entry.filename)
    if count_folders(paths) > MAX_FILES:
        raise _refused(f"it has more than {MAX_FILES:_} folders")
    size_bytes = sum(entry.file_size for entry in files)
    if size_bytes > MAX_UNPACKED_BYTES:
        raise _refused(
            f"it unpacks to {mebibytes(size_bytes)}, the limit is {mebibytes(MAX_UNPACKED_BYTES)}"
        )
    return files


def _is_folder(entry: zipfile.ZipInfo) -> bool:
    """Whether the entry is a folder. Raises InvalidInput for an entry of a forbidden kind."""
    name, kind = entry.filename, stat.S_IFMT(entry.external_attr >> 16)
    parts = name.removesuffix("/").split("/")
    if name.startswith("/"):
        raise _refused(f"{name[:200]!r} is an absolute path")
    if ".." in parts:
        raise _refused(f"{name[:200]!r} leads out of its folder")
    # The other name is what stood there before `zipfile` cut it off at a NUL, or took that of an
    # extra field.
    if not all(is_plain_path(one.removesuffix("/")) for one in (name, entry.orig_filename)):
        raise _refused(f"{name[:200]!r} is not a plain relative path")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or (kind == stat.S_IFDIR and not entry.is_dir()):
        raise _refused(f"{name[:200]!r} is a link or a device")
    if entry.flag_bits & _ENCRYPTED or entry.compress_type not in _METHODS:
        raise _refused(f"{name[:200]!r} is encrypted, or packed by another method than deflate")
    return entry.is_dir()


def _many() -> str:
    return f"more than {MAX_FILES:_} entries"


def _refused(problem: str) -> InvalidInput:
    return InvalidInput(f"the code archive is refused: {problem}", reason="INVALID_CODE_ARCHIVE")

"""A code folder as an archive, and back; the limits of a job's files.

The same content gives the same bytes, and so the same hash. An archive to be unpacked is untrusted:
everything in it is checked."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from podracer_core.errors import InvalidInput

MAX_PACKED_BYTES = 64 << 20
"""The maximum size of a code archive."""

MAX_UNPACKED_BYTES = 256 << 20
MAX_FILES = 10_000
"""The maximum contents of an unpacked code archive; it may have as many folders as files."""

MAX_DATA_BYTES = 2 << 30
"""The maximum size of a data set, which is the limit of ArtifactService."""

CHUNK_BYTES = 1 << 20
"""The size of the pieces of a file in a stream."""


def mebibytes(size_bytes: int) -> str:
    """`12.3 MiB`, for messages."""
    return f"{size_bytes / 2**20:.1f} MiB"


_MAX_PATH_BYTES = 1024
_MAX_NAME_BYTES = 255  # what file systems take
_MAX_DEPTH = 32
_BAD_CHARACTER = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_DRIVE = re.compile(r"[A-Za-z]:")


def is_plain_path(path: str) -> bool:
    """Whether the path is relative, stays below its folder, and is valid on every file system."""
    if _BAD_CHARACTER.search(path) or _DRIVE.match(path):
        return False
    names = path.split("/")
    if (
        {"", ".", ".."} & set(names)
        or len(names) > _MAX_DEPTH
        or len(path.encode()) > _MAX_PATH_BYTES
    ):
        return False
    return max(len(name.encode()) for name in names) <= _MAX_NAME_BYTES


def count_folders(paths: Iterable[str]) -> int:
    """The number of folders that hold files with these paths."""
    folders: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in folders:
            folders.add(path)
    return len(folders)


_SHOWN = 5
# what marks one of Podracer's, such as runs/
_STATE_FOLDER = ("lock", "tokens", "orchestrator.sqlite")


@dataclass(frozen=True, slots=True)
class CodeFile:
    """One file: its path in the archive, and its path on disk."""

    path: str
    source: Path
    size_bytes: int
    executable: bool


def code_files(folder: Path, entry_point: str) -> list[CodeFile]:
    """The files of a code folder, or the one file of a module, by their path in the archive, in
    order.

    A folder with an `__init__.py` is a package itself, and stands in the archive by its name; any
    other holds packages. Hidden files, `__pycache__`, compiled Python and a state folder of
    Podracer are left out. Raises InvalidInput (`environment.code`) if the folder is too large,
    cannot be read, has a link to the outside, or does not hold the module of `entry_point`."""
    try:
        root = folder.resolve(strict=True)
        prefix = f"{root.name}/" if (root / "__init__.py").is_file() else ""
        found: list[CodeFile] = []
        for file in (
            [_file(root.name, root, root, root.stat())] if root.is_file() else _walk(root, prefix)
        ):
            found.append(file)
            if len(found) > MAX_FILES:
                raise refuse_code(
                    f"{folder} has more than {MAX_FILES:_} files, which is the limit; "
                    f"{_largest(found)}"
                )
    except OSError as error:
        raise refuse_code(f"cannot read {error.filename or folder}: {error.strerror}") from error
    size_bytes = sum(file.size_bytes for file in found)
    if size_bytes > MAX_UNPACKED_BYTES:
        raise refuse_code(size_problem(f"{folder} has", size_bytes, MAX_UNPACKED_BYTES, found))
    _require_module(folder, entry_point, found)
    return sorted(found, key=lambda file: file.path)


def refuse_code(problem: str) -> InvalidInput:
    """The error for a code folder that cannot be sent."""
    return InvalidInput(problem, field="environment.code", reason="INVALID_CODE")


def size_problem(what: str, size_bytes: int, limit_bytes: int, files: Sequence[CodeFile]) -> str:
    """The error for a folder that is too large."""
    return (
        f"{what} {mebibytes(size_bytes)}, the limit is {mebibytes(limit_bytes)}; {_largest(files)}"
    )


def _largest(files: Sequence[CodeFile]) -> str:
    largest = sorted(files, key=lambda file: file.size_bytes, reverse=True)[:_SHOWN]
    return "its largest files: " + ", ".join(
        f"{file.path} ({mebibytes(file.size_bytes)})" for file in largest
    )


def _walk(root: Path, prefix: str) -> Iterator[CodeFile]:
    waiting: list[tuple[Path, str, tuple[Path, ...]]] = [
        (root, prefix, (root,))
    ]  # the last: the folders that lead there, to find links in circles
    for count in itertools.count(1):
        if not waiting:
            return
        if count > MAX_FILES:
            raise refuse_code(f"{root} has more than {MAX_FILES:_} folders, which is the limit")
        folder, prefix, above = waiting.pop()
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries)
        if set(names).issuperset(_STATE_FOLDER):
            continue
        for name in names:
            if name.startswith(".") or name == "__pycache__" or name.endswith((".pyc", ".pyo")):
                continue
            path = folder / name
            if not is_plain_path(prefix + name):
                raise refuse_code(
                    f"{folder}: the name {name!r} cannot stand in an archive, or is too deep or "
                    "too long"
                )
            real = _inside(path, root) if path.is_symlink() else path
            status = real.stat()
            if not stat.S_ISDIR(status.st_mode):
                yield _file(prefix + name, path, real, status)
            elif real in above:
                raise refuse_code(f"{path} is a link to a folder that it lies in")
            else:
                waiting.append((real, f"{prefix}{name}/", (*above, real)))


def _file(name: str, path: Path, real: Path, status: os.stat_result) -> CodeFile:
    if not stat.S_ISREG(status.st_mode):
        raise refuse_code(f"{path} is neither a file nor a folder")
    if not os.access(real, os.R_OK):
        raise refuse_code(f"{path} cannot be read: permission denied")
    return CodeFile(name, real, status.st_size, bool(status.st_mode & stat.S_IXUSR))


def _inside(link: Path, root: Path) -> Path:
    try:
        real = link.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a circle of links, before Python 3.13
        raise refuse_code(f"{link} is a link to nothing") from error
    if not real.is_relative_to(root):
        raise refuse_code(
            f"{link} is a link to {real}, outside of {root}: copy what it points to into the folder"
        )
    return real


def _require_module(folder: Path, entry_point: str, files: Sequence[CodeFile]) -> None:
    module = re.split(r"[.:]", entry_point, maxsplit=1)[0]
    if not any(re.split(r"[./]", file.path, maxsplit=1)[0] == module for file in files):
        raise refuse_code(
            f"{folder} does not hold the module {module} of {entry_point}: expected {module}/ or "
            f"{module}.py in it, or the package folder {module} itself, with an __init__.py"
        )


_NO_TIME = (1980, 1, 1, 0, 0, 0)
_UNIX = 3


def pack_code(folder: Path, entry_point: str) -> bytes:
    """A zip of a code folder, in order of path, without times and owners. Raises InvalidInput as
    `code_files` does, if the archive becomes too large, and if a file becomes shorter during the
    call."""
    files = code_files(folder, entry_point)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for file in files:
            entry = zipfile.ZipInfo(file.path, _NO_TIME)
            entry.create_system = _UNIX
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (stat.S_IFREG | (0o755 if file.executable else 0o644)) << 16
            try:
                with archive.open(entry, "w") as target:
                    _copy(file, target)
            except OSError as error:
                raise refuse_code(f"cannot read {file.source}: {error.strerror}") from error
            if (size_bytes := packed.tell()) > MAX_PACKED_BYTES:
                what = f"{folder} packs to more than"
                raise refuse_code(size_problem(what, size_bytes, MAX_PACKED_BYTES, files))
    return packed.getvalue()


def _copy(file: CodeFile, target: IO[bytes]) -> None:
    """Copy as many bytes as the file had at first: it may be a growing log."""
    left = file.size_bytes
    with file.source.open("rb") as source:
        while left:
            data = source.read(min(left, CHUNK_BYTES))
            if not data:
                raise refuse_code(f"{file.source} was changed while it was packed: try again")
            target.write(data)
            left -= len(data)


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
                _copy_out(opened, entry, file)


def _copy_out(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, file: BinaryIO) -> None:
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

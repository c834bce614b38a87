"""An archive of anybody's: what is in it comes out, or nothing and one message."""

from __future__ import annotations

import stat
import struct
import zipfile
from pathlib import Path

import pytest

from podracer_core.errors import InvalidInput
from podracer_platform.attachments import announced_bytes, code_archive, pack_code, unpack_code
from support.code import make_zip, write_files
from support.errors import raises

LARGE = bytes(1 << 20)


def unpacked(packed: bytes, folder: Path) -> Path:
    archive, target = folder / "code.zip", folder / "target"
    archive.write_bytes(packed)
    target.mkdir()
    unpack_code(archive, target)
    return target


def test_what_was_packed_comes_out(tmp_path):
    files = {"my_pkg/__init__.py": b"", "my_pkg/ä/deep.bin": LARGE, "my_pkg/run.sh": b"#!/bin/sh\n"}
    code = write_files(tmp_path / "code", files)
    (code / "my_pkg" / "run.sh").chmod(0o755)
    packed = pack_code(code, "my_pkg:Env")
    target = unpacked(packed, tmp_path)
    assert {
        str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*.*")
    } == files
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in (target / "my_pkg").iterdir()
        if path.is_file()
    }
    assert modes == {"__init__.py": 0o444, "run.sh": 0o555}
    assert announced_bytes(tmp_path / "code.zip") == sum(map(len, files.values()))


def test_folders_in_an_archive_come_by_themselves(tmp_path):
    target = unpacked(make_zip(("a/", b""), ("a/b.py", b"1")), tmp_path)
    assert (target / "a" / "b.py").read_bytes() == b"1"


def test_a_program_does_not_run_as_its_owner(tmp_path):
    target = unpacked(
        make_zip(("run.sh", b"1"), kind=stat.S_IFREG | stat.S_ISUID | 0o755), tmp_path
    )
    assert stat.S_IMODE((target / "run.sh").stat().st_mode) == 0o555


def _encrypted() -> bytes:
    packed = bytearray(make_zip(("a.py", b"1")))
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        packed[packed.index(magic) + offset] |= 1
    return bytes(packed)


def _lying_about_sizes(announced: int) -> bytes:
    """One file of 1 MiB, which announces another size."""
    packed = bytearray(make_zip(("a.py", LARGE)))
    at = packed.index(b"PK\x01\x02")
    struct.pack_into("<L", packed, at + 24, announced)
    return bytes(packed)


def _damaged() -> bytes:
    packed = bytearray(make_zip(("a.py", bytes(range(256)) * 64)))
    packed[60:70] = b"\xff" * 10
    return bytes(packed)


def _far_away() -> bytes:
    """Its file begins where no file is."""
    packed = bytearray(make_zip(("a.py", b"1")))
    struct.pack_into("<L", packed, packed.index(b"PK\x01\x02") + 42, 0x7FFFFFFF)
    return bytes(packed)


def _before_the_beginning() -> bytes:
    """Its directory is said to lie further behind than it does, and so its file before the
    archive."""
    packed = bytearray(make_zip(("a.py", b"1")))
    struct.pack_into("<L", packed, len(packed) - 6, 0x7FFF)
    return bytes(packed)


@pytest.mark.parametrize(
    ("packed", "problem"),
    [
        (make_zip(("/etc/passwd", b"x")), "'/etc/passwd' is an absolute path"),
        (make_zip(("../outside.py", b"x")), "'../outside.py' leads out of its folder"),
        (make_zip(("a/../../outside.py", b"x")), "leads out of its folder"),
        (make_zip(("..", b"x")), "leads out of its folder"),
        (make_zip(("a\\..\\b.py", b"x")), "is not a plain relative path"),
        (make_zip(("C:/b.py", b"x")), "is not a plain relative path"),
        (make_zip(("a//b.py", b"x")), "is not a plain relative path"),
        (make_zip(("./b.py", b"x")), "is not a plain relative path"),
        (make_zip(("a\nb.py", b"x")), "is not a plain relative path"),
        (make_zip(("x" * 1025, b"x")), "is not a plain relative path"),
        (make_zip(("d/" * 40 + "x", b"x")), "is not a plain relative path"),
        (make_zip(("x" * 256, b"x")), "is not a plain relative path"),
        (make_zip(("x" * 256 + "/a.py", b"x")), "is not a plain relative path"),
        (make_zip(("a.py\0../b.py", b"x")), "is not a plain relative path"),
        (make_zip(("link", b"/etc/passwd"), kind=stat.S_IFLNK), "'link' is a link or a device"),
        (make_zip(("null", b""), kind=stat.S_IFCHR), "'null' is a link or a device"),
        (make_zip(("disk", b""), kind=stat.S_IFBLK), "'disk' is a link or a device"),
        (make_zip(("pipe", b""), kind=stat.S_IFIFO), "'pipe' is a link or a device"),
        (make_zip(("a.py", b"1"), ("a.py", b"2")), "'a.py' is there twice"),
        (make_zip(("a", b"1"), ("a/b.py", b"2")), "'a/b.py' is a file and a folder"),
        (make_zip(("a/b.py", b"2"), ("a", b"1")), "'a' is a file and a folder"),
        (make_zip(("a.py", b"1"), method=zipfile.ZIP_BZIP2), "packed by another method than "
                                                             "deflate"),
        (_encrypted(), "is encrypted"),
        (_lying_about_sizes(10), "'a.py' cannot be unpacked: Bad CRC-32"),
        (_lying_about_sizes(2 << 20), "'a.py' unpacks to less than it announces"),
        (_lying_about_sizes(300 << 20), "it unpacks to 300.0 MiB, the limit is 256.0 MiB"),
        (_damaged(), "'a.py' cannot be unpacked"),
        (_far_away(), "'a.py' cannot be unpacked"),
        (_before_the_beginning(), "'a.py' cannot be unpacked"),
        (b"", "it is not a zip file"),
        (b"#!/bin/sh\nrm -rf /\n" * 10, "it is not a zip file"),
        (make_zip(("a.py", b"1"))[:-5], "it is not a zip file"),
        (make_zip(("a.py", b"1")) + b"trailing", "it is not a zip file"),
    ],
)  # fmt: skip
def test_attacks_are_refused_and_write_nothing_outside(packed, problem, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    with raises(InvalidInput, "INVALID_CODE_ARCHIVE") as refused:
        unpacked(packed, inner)
    assert refused.value.message.startswith("the code archive is refused: ")
    assert problem in refused.value.message
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
    assert sorted(path.name for path in inner.iterdir()) == ["code.zip", "target"]


def test_a_bomb_goes_no_further_than_it_announces(tmp_path):
    """64 MiB of zeros pack to 64 KiB; the directory says 1 KiB."""
    packed = bytearray(make_zip(("a.bin", bytes(64 << 20))))
    struct.pack_into("<L", packed, packed.index(b"PK\x01\x02") + 24, 1024)
    with pytest.raises(InvalidInput):
        unpacked(bytes(packed), tmp_path)
    assert sum(path.stat().st_size for path in (tmp_path / "target").rglob("*")) <= 1024


def test_too_many_files(tmp_path, monkeypatch):
    packed = make_zip(*((f"{index}.py", b"") for index in range(20)))
    monkeypatch.setattr(code_archive, "MAX_FILES", 10)
    with raises(InvalidInput, "INVALID_CODE_ARCHIVE", match="10 entries"):
        unpacked(packed, tmp_path)
    lying = bytearray(packed)
    struct.pack_into("<HH", lying, len(lying) - 14, 3, 3)  # the number of entries that it announces
    (tmp_path / "target").rmdir()
    with raises(InvalidInput, "INVALID_CODE_ARCHIVE", match="10 entries"):
        unpacked(bytes(lying), tmp_path)


def test_too_many_folders(tmp_path):
    """Each is a block on the disk that no announced byte tells of."""
    packed = make_zip(*((f"{index}/{'d/' * 20}x", b"") for index in range(600)))
    with raises(InvalidInput, "INVALID_CODE_ARCHIVE", match="10_000 folders"):
        unpacked(packed, tmp_path)
    assert list((tmp_path / "target").iterdir()) == []


def test_a_large_archive_or_directory_is_not_read(tmp_path, monkeypatch):
    packed = make_zip(*((f"{index}.py", b"") for index in range(20)))
    with monkeypatch.context() as patch:
        patch.setattr(code_archive, "MAX_PACKED_BYTES", 100)
        with raises(InvalidInput, "INVALID_CODE_ARCHIVE", match="limit"):
            unpacked(packed, tmp_path)
    (tmp_path / "target").rmdir()
    monkeypatch.setattr(code_archive, "_MAX_DIRECTORY_BYTES", 100)
    with raises(InvalidInput, "INVALID_CODE_ARCHIVE", match="a directory"):
        unpacked(packed, tmp_path)

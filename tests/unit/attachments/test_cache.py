"""Files by hash: whole or not at all, bounded, for several processes, whatever happens to them."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from podracer_core.catalogue import StoredFile
from podracer_core.errors import (
    DataCorrupted,
    Exhausted,
    InvalidInput,
    PermissionRefused,
    Unavailable,
)
from podracer_platform.attachments import FileCache
from support.code import make_zip, stored
from support.errors import raises

MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache"


@pytest.fixture
def root(folder: Path) -> Path:
    return folder / f"podracer-{os.geteuid()}"


@pytest.fixture
def cache(folder: Path) -> FileCache:
    return FileCache(folder, 10 * MIB)


def content(letter: str, size_bytes: int = MIB) -> bytes:
    return letter.encode() * size_bytes


def add(cache: FileCache, data: bytes, name: str = "") -> StoredFile:
    file = stored(data, name)
    cache.add(file, [data]).close()
    return file


def entries(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if not path.name.startswith(".")}


def drafts(root: Path) -> list[Path]:
    return list((root / ".drafts").iterdir())


def has(cache: FileCache, file: StoredFile) -> bool:
    held = cache.hold(file)
    if held is not None:
        held.close()
    return held is not None


def test_what_was_added_is_there_under_its_hash_and_ending(cache, root):
    file = stored(b"a,b\n", "prices.2019.csv.gz")
    assert cache.hold(file) is None
    with cache.add(file, [b"a,", b"b\n"]) as held:
        assert held.path == root / f"{file.sha256}.csv.gz"
        assert held.path.read_bytes() == b"a,b\n"
        assert held.path.stat().st_mode & 0o222 == 0
    with cache.hold(file) as again:
        assert again.path == held.path
    assert drafts(root) == []
    assert root.stat().st_mode & 0o777 == 0o700


def test_an_empty_file(cache):
    assert cache.add(stored(b""), []).path.read_bytes() == b""


@pytest.mark.parametrize("chunks", [[b"abcd"], [b"ab"], [b"abc", b"d"], [b"abx"], []])
def test_other_bytes_than_announced_leave_nothing(cache, root, chunks):
    with pytest.raises(DataCorrupted, match="expected 3 with"):
        cache.add(stored(b"abc"), chunks)
    assert entries(root) == set()
    assert drafts(root) == []


def test_who_stops_half_way_leaves_nothing(cache, root):
    def chunks() -> Iterator[bytes]:
        yield b"a"
        raise Unavailable("the store is away")

    with pytest.raises(Unavailable):
        cache.add(stored(b"abc"), chunks())
    assert entries(root) == set()
    assert drafts(root) == []


def test_the_longest_unused_goes_first(cache, root):
    files = [add(cache, content(letter, 3 * MIB)) for letter in "abc"]
    for age, file in enumerate(reversed(files)):
        os.utime(root / file.local_name, (1000 - age, 1000 - age))
    assert has(cache, files[0])  # which uses it
    newest = add(cache, content("d", 3 * MIB))
    assert entries(root) == {file.sha256 for file in (files[0], files[2], newest)}


def test_what_is_held_stays_and_the_next_goes(cache, root):
    first, second = (add(cache, content(letter, 4 * MIB)) for letter in "ab")
    os.utime(root / first.local_name, (1, 1))
    with cache.hold(first) as held:
        os.utime(root / first.local_name, (1, 1))
        third = add(cache, content("c", 4 * MIB))
        assert entries(root) == {first.sha256, third.sha256}
        assert held.path.read_bytes()[:1] == b"a"
    assert not has(cache, second)


def test_no_room(cache, root):
    with raises(Exhausted, "CACHE_FULL", match="11.0 MiB: 0.0 MiB"):
        add(cache, content("x", 11 * MIB))
    with (
        cache.hold(add(cache, content("a", 6 * MIB))),
        raises(Exhausted, "CACHE_FULL", match="use"),
    ):
        add(cache, content("b", 6 * MIB))
    add(cache, content("b", 6 * MIB))
    assert len(entries(root)) == 1


def test_archives_are_unpacked_once(cache, root):
    packed = make_zip(("a.py", b"1"), ("pkg/b.py", content("x")))
    file = stored(packed, "code.zip")
    assert cache.hold_unpacked(file) is None
    add(cache, packed, "code.zip")
    with cache.hold_unpacked(file) as held, cache.hold_unpacked(file) as again:
        assert held.path == again.path == root / f"{file.sha256}-code"
        assert (held.path / "a.py").read_bytes() == b"1"
    assert drafts(root) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda code: rewrite(code / "pkg" / "b.py", b"2"),
        lambda code: rewrite(code / "pkg" / "b.py", content("x") + b"2"),
        lambda code: (code / "numpy.py").write_bytes(b"2"),
        lambda code: (code / "pkg" / "__pycache__").mkdir(),
        lambda code: (code / "pkg" / "b.py").unlink(),
        lambda code: (code / "pkg" / "b.py").rename(code / "b.py"),
        lambda code: [
            (code / "pkg").rename(code / ".." / "b"),
            (code / "pkg").symlink_to(code / ".." / "b"),
        ],
        lambda code: [(code / "empty").unlink(), os.mkfifo(code / "empty")],
        lambda code: rewrite(next(code.parent.glob("*.zip")), b"2"),
    ],
)
def test_what_an_earlier_session_has_changed_is_not_handed_out(cache, change, caplog):
    packed = make_zip(("a.py", b"1"), ("empty", b""), ("pkg/b.py", content("x")))
    file = add(cache, packed, "code.zip")
    with cache.hold_unpacked(file) as held:
        change(held.path)
    if not has(cache, file):
        add(cache, packed, "code.zip")
    with cache.hold_unpacked(file) as again:
        found = {path.relative_to(again.path).as_posix() for path in again.path.rglob("*")}
        assert found == {"a.py", "empty", "pkg", "pkg/b.py"}
        assert (again.path / "pkg" / "b.py").read_bytes() == content("x")
    assert len(caplog.messages) == 1
    assert "was changed" in caplog.text


def rewrite(path: Path, data: bytes) -> None:
    path.chmod(0o600)
    path.write_bytes(data)


def test_unpacked_code_counts_and_goes_too(cache, root):
    packed = make_zip(("large.bin", content("x", 6 * MIB)))
    file = add(cache, packed, "code.zip")
    with cache.hold_unpacked(file), pytest.raises(Exhausted):
        add(cache, content("a", 6 * MIB))
    newer = add(cache, content("a", 6 * MIB))
    assert newer.sha256 in entries(root)
    assert f"{file.sha256}-code" not in entries(root)


def test_a_bad_archive_leaves_nothing(cache, root):
    file = add(cache, make_zip(("ok.py", b"1"), ("../x", b"1")), "code.zip")
    with raises(InvalidInput, "INVALID_CODE_ARCHIVE"):
        cache.hold_unpacked(file)
    assert entries(root) == {file.local_name}
    assert drafts(root) == []


def test_a_folder_that_others_may_write_is_refused(cache, root):
    root.mkdir(parents=True)
    root.chmod(0o777)
    for use in (
        lambda: add(cache, b"abc"),
        lambda: cache.hold(stored(b"abc")),
        lambda: cache.hold_unpacked(stored(b"")),
    ):
        with pytest.raises(PermissionRefused, match="write permission"):
            use()


def test_a_volume_that_is_open_to_a_group_holds_a_folder_of_ours(cache, folder, root):
    """As an emptyDir under fsGroup is: root's, and 2777."""
    folder.mkdir(parents=True)
    folder.chmod(0o2777)
    assert has(cache, add(cache, b"abc"))
    assert root.stat().st_mode & 0o777 == 0o700
    assert list(folder.iterdir()) == [root]


def test_another_users_folder_is_refused(cache, folder, monkeypatch):
    folder.mkdir(parents=True)
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(PermissionRefused, match="write permission"):
        add(cache, b"abc")


@pytest.mark.parametrize("place", ["folder", "root"])
def test_a_link_in_place_of_a_folder_is_refused(cache, place, tmp_path, request):
    (tmp_path / "elsewhere").mkdir()
    link = request.getfixturevalue(place)
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionRefused):
        add(cache, b"abc")


def test_what_user_code_has_shut_can_be_removed(cache, root, monkeypatch):
    """It runs as the user that the cache is of. Root may read everything, so `open` says what
    others hear."""
    packed = make_zip(("pkg/inner/b.py", content("x", 6 * MIB)))
    file = add(cache, packed, "code.zip")
    cache.hold_unpacked(file).close()
    folder = root / f"{file.sha256}-code"
    (folder / "pkg" / "elsewhere").symlink_to(root.parent)
    (folder / "pkg" / "inner").chmod(0)
    before, really_open = root.parent.stat().st_mode, os.open

    def open_(path: Path, *arguments: int, **named: int) -> int:
        if Path(path) == folder and not stat.S_IMODE(folder.stat().st_mode):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return really_open(path, *arguments, **named)

    monkeypatch.setattr(os, "open", open_)
    folder.chmod(0)
    cache.hold_unpacked(file).close()
    folder.chmod(0)
    add(cache, content("a", 6 * MIB))
    assert not folder.exists()
    assert drafts(root) == []
    assert root.parent.stat().st_mode == before


def test_a_disk_that_fails_is_told(cache, folder):
    folder.parent.mkdir()
    folder.write_text("a file where the folder should be")
    with pytest.raises(Unavailable, match="File exists"):
        add(cache, b"abc")


def test_several_threads_with_one_file(cache, root):
    data, found = content("z"), []

    def use() -> None:
        held = cache.add(stored(data), [data[:10], data[10:]])
        found.append(held.path.read_bytes() == data)
        held.close()

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 8
    assert len(entries(root)) == 1


WRITER = """
import sys, time
from pathlib import Path
from podracer_platform.attachments import FileCache
sys.path.insert(0, sys.argv[2])
from support.code import make_zip, stored
def slowly():
    yield b"x" * 1000
    print("writing", flush=True)
    time.sleep(60)
FileCache(Path(sys.argv[1]), 10 << 20).add(stored(b"x" * 2000), slowly())
"""
HOLDER = """
import sys, time
from pathlib import Path
from podracer_platform.attachments import FileCache
sys.path.insert(0, sys.argv[2])
from support.code import stored
held = FileCache(Path(sys.argv[1]), 10 << 20).hold(stored(b"a" * (6 << 20)))
print("holding" if held else "nothing", flush=True)
time.sleep(60)
"""
HAMMER = """
import random, sys
from pathlib import Path
from podracer_platform.attachments import FileCache
from podracer_core.errors import Exhausted
sys.path.insert(0, sys.argv[2])
from support.code import stored
cache, chance = FileCache(Path(sys.argv[1]), 1 << 20), random.Random(int(sys.argv[3]))
for _ in range(150):
    data = bytes([chance.randrange(8)]) * (200 << 10)
    file = stored(data)
    try:
        held = cache.hold(file) or cache.add(file, [data])
    except Exhausted:
        continue
    assert held.path.read_bytes() == data
    held.close()
print("done", flush=True)
"""


def process(script: str, root: Path, *arguments: str) -> subprocess.Popen[str]:
    tests = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", script, str(root), tests, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def killed(running: subprocess.Popen[str]) -> None:
    running.send_signal(signal.SIGKILL)
    running.wait(10)
    assert running.stdout is not None
    running.stdout.close()


def test_a_writer_that_is_killed_half_way_leaves_nothing_that_counts(cache, root):
    running = process(WRITER, root.parent)
    assert running.stdout is not None
    assert running.stdout.readline() == "writing\n"
    file = stored(b"x" * 2000)
    assert cache.hold(file) is None
    assert len(drafts(root)) == 1
    add(cache, b"another")
    assert len(drafts(root)) == 1, "a draft that is being written stays"
    killed(running)
    add(cache, b"x" * 2000)
    assert has(cache, file)
    assert drafts(root) == []


def test_what_another_process_holds_stays_until_it_ends(cache, root):
    file = add(cache, content("a", 6 * MIB))
    running = process(HOLDER, root.parent)
    assert running.stdout is not None
    assert running.stdout.readline() == "holding\n"
    with pytest.raises(Exhausted):
        add(cache, content("b", 6 * MIB))
    killed(running)
    add(cache, content("b", 6 * MIB))
    assert not has(cache, file)


def test_several_processes_at_once(root):
    running = [process(HAMMER, root.parent, str(seed)) for seed in range(3)]
    deadline = time.monotonic() + 60
    for each in running:
        assert each.stdout is not None
        assert each.wait(deadline - time.monotonic()) == 0
        assert each.stdout.read() == "done\n"
        each.stdout.close()
    assert sum(path.stat().st_size for path in root.iterdir() if path.is_file()) <= MIB

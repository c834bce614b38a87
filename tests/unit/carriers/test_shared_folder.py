"""Files that processes find each other by: kept as long as their process lives, and removed
afterwards."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from podracer_core.errors import Exhausted, InvalidInput, PreconditionFailed
from podracer_platform.shared_folder import NONCE, SEGMENT, SharedFolder
from support.errors import raises

MAKER = """
import sys
from pathlib import Path
from podracer_platform.shared_folder import NONCE, SEGMENT, SharedFolder
folder = SharedFolder(Path(sys.argv[1]))
kept = [folder.create(kind, 4096) for kind in (NONCE, SEGMENT)]
print(*(file.name for file in kept), flush=True)
sys.stdin.read()
"""


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_is_there_for_this_user_alone_until_it_is_closed(tmp_path):
    file = SharedFolder(tmp_path).create(SEGMENT, 5000)
    path = tmp_path / file.name
    assert path.stat().st_size == 5000
    assert path.stat().st_blocks * 512 >= 5000, "its memory is set aside"
    assert path.stat().st_mode & 0o777 == 0o600
    file.close()
    file.close()
    assert not names(tmp_path)


def test_what_killed_processes_left_is_swept_and_what_living_ones_hold_is_not(tmp_path):
    (tmp_path / "podracer-notes").touch()
    (tmp_path / "somebody_elses").touch()
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", MAKER, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        made = []
        for maker in makers:
            assert maker.stdout is not None
            made.append(set(maker.stdout.readline().split()))
        makers[0].send_signal(signal.SIGKILL)
        makers[0].wait()
        assert names(tmp_path) >= made[0] | made[1], "nothing has looked yet"
        own = SharedFolder(tmp_path).create(NONCE, 16)
        assert names(tmp_path) == made[1] | {own.name, "podracer-notes", "somebody_elses"}
        own.close()
    finally:
        for maker in makers:
            maker.kill()
            maker.communicate()
    SharedFolder(tmp_path).sweep()
    assert names(tmp_path) == {"podracer-notes", "somebody_elses"}


def test_sweeping_never_takes_a_file_from_who_makes_it(tmp_path):
    """Sweeps run all the time while files are made: every file that was made keeps its name."""
    folder, over = SharedFolder(tmp_path), threading.Event()

    def sweep() -> None:
        while not over.is_set():
            folder.sweep()

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for _ in range(200):
            file = folder.create(NONCE, 16)
            assert (tmp_path / file.name).exists()
            file.close()
    finally:
        over.set()
        sweeper.join()
    assert not names(tmp_path)


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.ENOMEM, errno.EDQUOT], ids=errno.errorcode.get
)
def test_a_full_folder_is_an_error_and_nothing_stays(tmp_path, monkeypatch, code):
    def no_room(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with raises(Exhausted, "SHARED_MEMORY_FULL"):
        SharedFolder(tmp_path).create(SEGMENT, 4096)
    assert not names(tmp_path)


def test_a_folder_that_is_not_there(tmp_path):
    folder = SharedFolder(tmp_path / "nowhere")
    folder.sweep()
    with pytest.raises(PreconditionFailed, match="nowhere"):
        folder.create(SEGMENT, 4096)
    assert not folder.holds(f"podracer-nonce-{'0' * 32}", b"x")


def test_a_nonce_proves_that_a_folder_is_shared(tmp_path):
    here, beside, there = tmp_path / "pod/here", tmp_path / "pod/beside", tmp_path / "other/there"
    for folder in (here, beside, there):
        folder.mkdir(parents=True)
    file = SharedFolder(here).create(NONCE, 8)
    os.pwrite(file.descriptor, b"12345678", 0)
    assert SharedFolder(here).holds(file.name, b"12345678")
    assert not SharedFolder(here).holds(file.name, b"12345679")
    assert not SharedFolder(here).holds(file.name, b"1234567")
    assert SharedFolder(beside).holds(file.name, b"12345678"), (
        "a pod's containers have a folder each"
    )
    assert not SharedFolder(there).holds(file.name, b"12345678")
    file.close()
    assert not SharedFolder(here).holds(file.name, b"12345678")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../secret",
        "/etc/passwd",
        "podracer-nonce-xyz",
        f"podracer-key-{'0' * 32}",
        "a\0b",
    ],
)
def test_only_names_of_ours_are_looked_for(tmp_path, name):
    with raises(InvalidInput, "BAD_CARRIER"):
        SharedFolder(tmp_path).open(name)


def test_links_and_folders_are_not_followed(tmp_path):
    (tmp_path / "secret").write_text("secret")
    link, inner = f"podracer-nonce-{'0' * 32}", f"podracer-nonce-{'1' * 32}"
    (tmp_path / link).symlink_to(tmp_path / "secret")
    (tmp_path / inner).mkdir()
    folder = SharedFolder(tmp_path)
    for name in (link, inner):
        with pytest.raises(PreconditionFailed):
            folder.open(name)
    folder.sweep()
    assert (tmp_path / "secret").read_text() == "secret"


def test_a_cause_is_complained_about_once(tmp_path, caplog):
    folder = SharedFolder(tmp_path)
    for text in ("no room for 1 byte", "no room for 2 bytes"):
        folder.complain_once("room", text)
    folder.complain_once("other", "another cause")
    assert caplog.messages == ["no room for 1 byte", "another cause"]

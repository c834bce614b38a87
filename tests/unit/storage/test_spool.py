"""Objects on their way to a store that may be away."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from podracer_core.errors import (
    Exhausted,
    Fenced,
    InvalidInput,
    NotFound,
    PodracerError,
    Unavailable,
)
from podracer_core.storage import FolderStore
from podracer_platform.storage import Spool, SpoolFolder
from support.errors import raises


class AwayStore(FolderStore):
    """Takes nothing while `error` is set; remembers the order in which it has taken objects."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.error: PodracerError | None = None
        self.taken: list[str] = []
        self._lock = threading.Lock()

    def put(self, key: str, data: bytes | Path) -> None:
        if self.error is not None:
            raise self.error
        super().put(key, data)
        with self._lock:
            self.taken.append(key)


@pytest.fixture
def behind(tmp_path: Path) -> AwayStore:
    return AwayStore(tmp_path / "store")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[SpoolFolder]:
    folder = SpoolFolder(tmp_path / "spools", 1000)
    yield folder
    folder.close()


@pytest.fixture
def spool(behind: AwayStore, folder: SpoolFolder) -> Iterator[Spool]:
    spool = Spool(behind, folder)
    yield spool
    spool.close()


def files(folder: SpoolFolder) -> list[str]:
    return [path.name for path in folder.path.iterdir() if path.name != ".lock"]


def folders(parent: Path) -> set[str]:
    return {path.name for path in parent.iterdir() if path.is_dir()}


def test_everything_arrives_and_leaves_nothing_behind(spool, behind, folder):
    for number in range(50):
        spool.put(f"a/{number}", str(number).encode())
    assert spool.settle(10.0)
    assert {info.key: behind.get(info.key) for info in behind.list()} == {
        f"a/{n}": str(n).encode() for n in range(50)
    }
    assert files(folder) == []


def test_what_is_put_last_in_a_folder_arrives_last(spool, behind):
    behind.error = Unavailable("away")
    for name in ("one", "two"):
        for part in ("actor", "critic", "replay/0", "manifest"):
            spool.put(f"{name}/{part}", b"x")
    time.sleep(0.3)
    assert not spool.settle()
    behind.error = None
    assert spool.settle(30.0)
    for name in ("one", "two"):
        assert [key for key in behind.taken if key.startswith(name)][-1] == f"{name}/manifest"


def test_what_the_store_took_and_did_not_keep_is_brought_again(spool, behind, monkeypatch):
    def take_and_lose(key: str, data: bytes | Path) -> None:
        monkeypatch.undo()
        behind.taken.append(key)

    monkeypatch.setattr(behind, "put", take_and_lose)
    spool.put("a/1", b"x")
    assert spool.settle(10.0)
    assert behind.taken == ["a/1", "a/1"]
    assert behind.get("a/1") == b"x"


def test_who_reads_finds_what_has_not_arrived(spool, behind, tmp_path):
    behind.put("there", b"already")
    behind.error = Unavailable("away")
    source = tmp_path / "source"
    source.write_bytes(b"from a file")
    spool.put("b/1", b"first")
    spool.put("b/1", b"second")
    spool.put("b/2", source)
    assert spool.get("b/1") == b"second"
    assert spool.get("b/2") == b"from a file"
    assert spool.get("there") == b"already"
    assert spool.stat("b/1").size_bytes == 6
    with pytest.raises(NotFound):
        spool.get("absent")
    behind.error = None
    assert spool.settle(30.0)
    assert behind.get("b/1") == b"second"


def test_the_limit_holds_and_room_comes_back(spool, behind):
    behind.error = Unavailable("away")
    spool.put("c/1", b"x" * 900)
    with raises(Exhausted, "SPOOL_FULL"):
        spool.put("c/2", b"x" * 200)
    behind.error = None
    assert spool.settle(30.0)
    spool.put("c/2", b"x" * 2000)  # alone anything has room
    assert spool.settle(30.0)


def test_what_waiting_would_not_mend_is_told_and_ends_it(spool, behind, folder):
    behind.error = Fenced("the lease is not ours")
    spool.put("d/1", b"x")
    with pytest.raises(Fenced):
        spool.settle(10.0)
    with pytest.raises(Fenced):
        spool.put("d/2", b"x")
    assert files(folder) == []


def test_closing_gives_up_what_has_not_arrived(behind, folder):
    spool = Spool(behind, folder)
    behind.error = Unavailable("away")
    spool.put("e/1", b"x")
    spool.close()
    assert files(folder) == []
    behind.error = None
    time.sleep(0.3)
    assert not behind.exists("e/1")
    with pytest.raises(Unavailable):
        spool.put("e/2", b"x")


def test_an_unexpected_error_leaves_no_caller_waiting(spool, behind):
    behind.error = ValueError("a bug")  # type: ignore[assignment]
    spool.put("f/1", b"x")
    with pytest.raises(PodracerError, match=r"f/1.*a bug"):
        spool.settle(10.0)


def test_a_folder_that_others_may_change_is_refused(tmp_path):
    (tmp_path / "spools").mkdir()
    (tmp_path / "spools").chmod(0o777)
    with raises(InvalidInput, "FOLDER_UNWRITABLE"):
        SpoolFolder(tmp_path / "spools", 1000, only_ours=True)
    (tmp_path / "link").symlink_to(tmp_path)
    with raises(InvalidInput, "FOLDER_UNWRITABLE"):
        SpoolFolder(tmp_path / "link", 1000, only_ours=True)


def test_a_bad_key_is_refused_at_once(spool):
    with pytest.raises(InvalidInput):
        spool.put("../x", b"x")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="file"):
        SpoolFolder(tmp_path / "file" / "below", 1000)


def test_what_a_killed_process_has_left_is_swept_and_a_living_ones_is_not(tmp_path):
    living = SpoolFolder(tmp_path, 1000)
    (living.path / "1").write_bytes(b"x")
    code = (
        "import os, sys; from pathlib import Path; from podracer_platform.storage import "
        "SpoolFolder\nfolder = SpoolFolder(Path(sys.argv[1]), 1); (folder.path / "
        "'1').write_bytes(b'x'); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert len(folders(tmp_path)) == 2
    other = SpoolFolder(tmp_path, 1000)
    assert folders(tmp_path) == {living.path.name, other.path.name}
    assert files(living) == ["1"]
    living.close()
    living.close()
    other.close()
    assert folders(tmp_path) == set()

"""What only the folder store can show: drafts, durability, the file system's refusals."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from podracer_core.errors import (
    InvalidInput,
    NotFound,
    PermissionRefused,
    Unavailable,
)
from podracer_core.storage import DRAFTS, FolderStore
from podracer_platform.storage import open_store
from support.errors import raises


def test_an_interrupted_put_leaves_the_former_object_and_no_draft(tmp_path, monkeypatch):
    store = FolderStore(tmp_path)
    store.put("key", b"former")

    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.put("key", b"newer")
    assert store.get("key") == b"former"
    assert list((tmp_path / DRAFTS).iterdir()) == []


def test_flushes_file_and_folder_before_it_returns(tmp_path, monkeypatch):
    store = FolderStore(tmp_path)
    flushed: list[Path] = []
    flush = os.fsync

    def noted(descriptor: int) -> None:
        flush(descriptor)
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", noted)
    store.put("a/b", b"x")
    draft, above, folder = flushed
    assert draft.parent == tmp_path / DRAFTS
    assert (above, folder) == (tmp_path, tmp_path / "a")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, Unavailable),
        (errno.EIO, Unavailable),
        (errno.EACCES, PermissionRefused),
        (errno.EROFS, PermissionRefused),
        (errno.ENAMETOOLONG, InvalidInput),
    ],
)
def test_says_what_the_file_system_refuses(tmp_path, monkeypatch, number, kind):
    store = FolderStore(tmp_path)

    def refused(self: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "replace", refused)
    with pytest.raises(kind, match=os.strerror(number)) as caught:
        store.put("key", b"x")
    assert tmp_path.as_uri() in str(caught.value)


def test_an_object_cannot_be_a_folder_too(tmp_path):
    store = FolderStore(tmp_path)
    store.put("a", b"x")
    store.put("b/c", b"x")
    for key in ("a/below", "b"):
        with pytest.raises(InvalidInput):
            store.put(key, b"y")
    assert [info.key for info in store.list()] == ["a", "b/c"]


def test_empty_folders_go_with_their_last_object(tmp_path):
    store = FolderStore(tmp_path)
    store.put("a/b/c", b"x")
    store.delete("a/b/c")
    assert [path.name for path in tmp_path.iterdir()] == [DRAFTS]


def test_opening_removes_drafts_of_killed_writers_only(tmp_path):
    FolderStore(tmp_path)
    old, new = tmp_path / DRAFTS / "old", tmp_path / DRAFTS / "new"
    for draft in (old, new):
        draft.touch()
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    store = FolderStore(tmp_path)
    assert [path.name for path in (tmp_path / DRAFTS).iterdir()] == ["new"]
    assert list(store.list()) == []


def test_opens_by_url_with_blanks_in_it(tmp_path):
    folder = tmp_path / "with blank # and ü"
    store = open_store(folder.as_uri())
    store.put("key", b"x")
    assert (folder / "key").read_bytes() == b"x"
    assert open_store(store.url).get("key") == b"x"


def test_an_unusable_folder_is_told_with_its_url(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match=f"{tmp_path.as_uri()}/file/store: Not"):
        open_store((tmp_path / "file" / "store").as_uri())
    with pytest.raises(NotFound, match=f"{tmp_path.as_uri()}/absent"):
        open_store((tmp_path / "absent").as_uri(), create=False)
    assert not (tmp_path / "absent").exists()


def test_a_folder_that_may_not_be_written_is_told_with_its_url(tmp_path, monkeypatch):
    if os.geteuid() == 0:  # whom file modes do not bind

        def refused(self: Path, *arguments: object, **options: object) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

        monkeypatch.setattr(Path, "mkdir", refused)
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionRefused, match=f"{tmp_path.as_uri()}: Permission"):
        open_store(tmp_path.as_uri())


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/plain/path",
        "file://relative/path",
        "file:relative",
        "s3://",
        "s3:///prefix",
        "http://host/x",
    ],
)
def test_refuses_other_urls(url):
    with raises(InvalidInput, "INVALID_STORE_URL"):
        open_store(url)


def test_does_not_repeat_a_password_in_a_url():
    with pytest.raises(InvalidInput) as caught:
        open_store("s3://user:word@bucket")
    assert "word" not in str(caught.value)

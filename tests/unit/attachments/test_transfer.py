"""PutFile without gRPC: the caller's messages go straight into the receiver."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podracer.common.v1 import file_pb2
from podracer.worker.v1 import worker_service_pb2
from podracer_core.errors import DataCorrupted, Exhausted, InvalidInput
from podracer_platform.attachments import FileCache, FileReceiver, put_file, transfer
from support.code import stored
from support.errors import raises

DATA = bytes(range(256)) * 10_000  # 2.5 MB: three pieces
FILE = stored(DATA, "prices.csv")
Request = worker_service_pb2.PutFileRequest


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    return FileCache(tmp_path / "cache", 10 << 20)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "prices.csv").write_bytes(DATA)
    return tmp_path / "prices.csv"


def header(**changes: Any) -> Request:
    values = {"sha256": FILE.sha256, "size_bytes": FILE.size_bytes, "name": FILE.name}
    return Request(header=file_pb2.FileHeader(**{**values, **changes}))


@pytest.mark.parametrize(
    ("requests", "kind", "problem"),
    [
        ([], InvalidInput, "begins with its header"),
        ([Request(data=b"x")], InvalidInput, "begins with its header"),
        ([header(sha256="nonsense")], InvalidInput, "sha256: expected 64"),
        ([header(name="../../etc/passwd")], InvalidInput, "name: expected letters"),
        ([header(size_bytes=-1)], InvalidInput, "size_bytes: expected 0 or more"),
        ([header(size_bytes=(2 << 30) + 1)], InvalidInput, "are too many"),
        ([header(), header()], InvalidInput, "expected data of at most"),
        ([header(), Request(data=bytes((1 << 20) + 1))], InvalidInput, "expected data of at most"),
        ([header(), Request(data=DATA[:1000])], DataCorrupted, "expected 2560000 with"),
        ([header(), *[Request(data=bytes(1 << 20))] * 3], DataCorrupted, "expected 2560000 with"),
        ([header(size_bytes=1 << 30), Request(data=b"x")], Exhausted, "no room for 1024.0 MiB"),
    ],
)  # fmt: skip
def test_what_is_refused(cache, requests, kind, problem):
    with pytest.raises(kind, match=problem):
        FileReceiver(cache).receive(iter(requests))
    assert cache.hold(FILE) is None


def test_only_so_many_at_once_and_the_caller_tries_again(cache, source, monkeypatch):
    monkeypatch.setattr(transfer, "_RETRY_S", (0.01, 0.01))
    receiver = FileReceiver(cache)
    begun, go_on = threading.Semaphore(0), threading.Event()

    def slow(letter: bytes) -> Iterator[Request]:
        file = stored(letter)
        yield Request(header=file_pb2.FileHeader(sha256=file.sha256, size_bytes=1))
        begun.release()
        go_on.wait(10)
        yield Request(data=letter)

    threads = [
        threading.Thread(target=receiver.receive, args=(slow(letter),)) for letter in (b"a", b"b")
    ]
    for thread in threads:
        thread.start()
        assert begun.acquire(timeout=10)
    with raises(Exhausted, "TOO_MANY_FILES"):
        receiver.receive(iter([header(), Request(data=DATA)]))
    tries = []

    def put(requests: Iterator[Request], timeout: float) -> None:
        tries.append(timeout)
        if len(tries) == 3:
            go_on.set()
            for thread in threads:
                thread.join(10)
        receiver.receive(requests)

    put_file(put, Request, FILE, source)
    assert len(tries) == 3
    with cache.hold(FILE) as held:
        assert held.path.read_bytes() == DATA

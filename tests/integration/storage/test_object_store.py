"""What every object store promises, on a folder and on real S3 servers."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import random
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NoReturn

import pytest
from urllib3.exceptions import ProtocolError

from podracer_client.secrets import create_secrets
from podracer_core.config import Secret
from podracer_core.errors import (
    InvalidInput,
    NotFound,
    PermissionRefused,
    PreconditionFailed,
    Unavailable,
)
from podracer_core.storage import ObjectStore
from podracer_platform.storage import S3Settings, S3Store, open_store
from support.s3_server import PROGRAMS, S3Server, each_program


@pytest.fixture(params=["folder", *each_program(*PROGRAMS)])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, servers: Callable[[str], S3Server]
) -> Iterator[ObjectStore]:
    if request.param == "folder":
        opened = open_store((tmp_path / "store").as_uri())
    else:
        opened = open_store(
            f"s3://bucket-{uuid.uuid4().hex[:8]}/some/prefix", servers(request.param).settings
        )
    yield opened
    opened.close()


class TestEveryStore:
    @pytest.mark.parametrize("size", [0, 1, 1000, 3_000_000])
    def test_gives_back_what_was_put(self, store, size):
        data = random.Random(size).randbytes(size)
        store.put("a/b.bin", data)
        assert store.get("a/b.bin") == data
        assert b"".join(store.read_chunks("a/b.bin", 100_000)) == data
        assert all(len(chunk) <= 100_000 for chunk in store.read_chunks("a/b.bin", 100_000))
        info = store.stat("a/b.bin")
        assert (info.key, info.size_bytes) == ("a/b.bin", size)
        assert abs(datetime.now(UTC) - info.modified) < timedelta(minutes=1)

    def test_moves_files_of_several_parts(self, store, tmp_path):
        source = tmp_path / "source"
        # above the size of a part, not a multiple of it
        source.write_bytes(random.Random(0).randbytes(1 << 20) * 35)
        store.put("large", source)
        assert (
            hashlib.sha256(store.get("large")).digest()
            == hashlib.sha256(source.read_bytes()).digest()
        )

    def test_replaces(self, store):
        store.put("key", b"first, and longer")
        store.put("key", b"second")
        assert store.get("key") == b"second"
        assert store.stat("key").size_bytes == 6

    @pytest.mark.parametrize("call", ["get", "stat"])
    @pytest.mark.parametrize("key", ["absent", "folder", "folder/absent", "folder/object/below"])
    def test_reports_what_is_not_there(self, store, call, key):
        store.put("folder/object", b"x")
        with pytest.raises(NotFound, match=key):
            getattr(store, call)(key)
        assert not store.exists(key)
        assert store.exists("folder/object")

    def test_lists_by_prefix_in_order(self, store):
        keys = ["a/1/x", "a/1/y", "a/10/x", "a-b/x", "b", "ü/é"]
        for key in reversed(keys):
            store.put(key, key.encode())
        assert [info.key for info in store.list()] == sorted(keys, key=str.encode)
        assert [info.key for info in store.list("a/")] == ["a/1/x", "a/1/y", "a/10/x"]
        assert [info.key for info in store.list("a/1")] == ["a/1/x", "a/1/y", "a/10/x"]
        assert [(info.key, info.size_bytes) for info in store.list("a/1/")] == [
            ("a/1/x", 5),
            ("a/1/y", 5),
        ]
        assert list(store.list("none/")) == []

    def test_deletes(self, store):
        store.put("a/b/c", b"x")
        store.put("a/d", b"y")
        store.delete("a/b/c")
        store.delete("a/b/c")
        store.delete("a/never/was")
        assert [info.key for info in store.list()] == ["a/d"]

    def test_deletes_below_a_prefix_and_nothing_beside_it(self, store):
        for key in ("job/1/a", "job/1/b/c", "job/10/a"):
            store.put(key, b"x")
        assert store.delete_prefix("job/1/") == 2
        assert [info.key for info in store.list()] == ["job/10/a"]
        with pytest.raises(InvalidInput, match="end"):
            store.delete_prefix("job")

    @pytest.mark.parametrize(
        "key",
        ["", "/a", "a/", "a//b", "../a", "a/../b", "a/.b", ".drafts/x", "a\\b", "a\0", "a\nb"],
    )
    def test_refuses_bad_keys(self, store, key):
        for call in (
            lambda: store.put(key, b"x"),
            lambda: store.get(key),
            lambda: store.delete(key),
        ):
            with pytest.raises(InvalidInput):
                call()
        assert list(store.list()) == []

    def test_refuses_a_local_file_that_is_not_there(self, store, tmp_path):
        with pytest.raises(InvalidInput, match="nowhere"):
            store.put("key", tmp_path / "nowhere")
        assert not store.exists("key")

    def test_serves_threads(self, store):
        def work(number: int) -> None:
            for turn in range(5):
                key = f"shared/{number}/{turn}"
                store.put(key, key.encode() * 1000)
                assert store.get(key) == key.encode() * 1000
                store.delete(key)

        # servers on folders remove those that become empty, from under others' feet
        store.put("shared/kept", b"1")
        with ThreadPoolExecutor(6) as threads:
            list(threads.map(work, range(6)))
        assert [info.key for info in store.list()] == ["shared/kept"]


class TestS3:
    def test_keeps_stores_with_different_prefixes_apart(self, s3_server):
        first, second = (
            open_store(f"s3://shared/{prefix}", s3_server.settings) for prefix in ("one", "two")
        )
        first.put("key", b"1")
        second.put("key", b"2")
        assert (first.get("key"), [info.key for info in first.list()]) == (b"1", ["key"])
        assert [info.key for info in open_store("s3://shared", s3_server.settings).list()] == [
            "one/key",
            "two/key",
        ]

    def test_makes_a_missing_bucket_only_if_it_may(self, s3_server):
        settings = s3_server.settings
        for store_settings, create in (
            (dataclasses.replace(settings, create_bucket=False), True),
            (settings, False),
        ):
            with pytest.raises(NotFound, match="bucket 'absent'"):
                open_store("s3://absent/p", store_settings, create=create)

    def test_makes_no_bucket_in_the_place_of_one_that_has_gone(self, s3_server):
        store = S3Store("gone", "", s3_server.settings)
        store.check()
        store._client.remove_bucket("gone")
        with pytest.raises(NotFound, match="bucket 'gone'"):
            store.check()

    def test_reports_wrong_keys(self, s3_server):
        if not s3_server.program.checks:
            return
        wrong = dataclasses.replace(s3_server.settings, secret_key=Secret("guessed"))
        with pytest.raises(PermissionRefused, match="s3://bucket") as caught:
            open_store("s3://bucket", wrong)
        assert "guessed" not in str(caught.value)

    def test_opens_where_no_server_answers_and_says_so(self):
        with socket.socket() as bound:  # taken, without a listener
            bound.bind(("127.0.0.1", 0))
            endpoint = f"http://127.0.0.1:{bound.getsockname()[1]}"
            keys = {"access_key": Secret("a"), "secret_key": Secret("b")}
            store = open_store("s3://bucket", S3Settings(endpoint, **keys, attempts=2))
            with pytest.raises(Unavailable, match=f"^s3://bucket at {endpoint} "):
                store.check()
            with pytest.raises(Unavailable, match="s3://bucket"):
                store.put("key", b"x")

    @pytest.mark.parametrize(
        "settings",
        [
            S3Settings("127.0.0.1:9000"),
            S3Settings("ftp://host"),
            S3Settings("http://user:word@host"),
            S3Settings("http://host/path"),
            S3Settings("http://host", access_key=Secret("only")),
            S3Settings("http://host", session_token=Secret("only")),
        ],
    )
    def test_refuses_bad_settings(self, settings):
        with pytest.raises(InvalidInput) as caught:
            open_store("s3://bucket", settings)
        assert "word" not in str(caught.value)

    def test_says_that_the_clocks_differ(self):
        class Skewed(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response_only(403)
                self.send_header(
                    "Date", format_datetime(datetime.now(UTC) - timedelta(hours=2), usegmt=True)
                )
                self.send_header("Content-Type", "application/xml")
                self.end_headers()
                self.wfile.write(b"<Error><Code>AccessDenied</Code></Error>")

        with HTTPServer(("127.0.0.1", 0), Skewed) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            keys = {"access_key": Secret("a"), "secret_key": Secret("b")}
            with pytest.raises(PermissionRefused, match="behind ours"):
                open_store(
                    "s3://bucket",
                    S3Settings(f"http://127.0.0.1:{server.server_port}", **keys, attempts=1),
                )
            server.shutdown()

    @pytest.mark.parametrize(
        ("addressing", "url"),
        [("path", "http://host:9000/bucket"), ("virtual", "http://bucket.host:9000/")],
    )
    def test_addresses_buckets_as_it_is_told(self, addressing, url, monkeypatch):
        asked: list[str] = []

        def ask(_: Any, method: str, url: str, **more: Any) -> NoReturn:
            asked.append(url)
            assert more["headers"]["X-Amz-Security-Token"] == "temporary"
            raise ProtocolError("no server")

        monkeypatch.setattr("urllib3.PoolManager.urlopen", ask)
        keys = {name: Secret(value) for name, value in (("access_key", "a"), ("secret_key", "b"))}
        settings = S3Settings(
            "http://host:9000", **keys, session_token=Secret("temporary"), addressing=addressing
        )
        open_store("s3://bucket", settings)
        assert [one.split("?")[0] for one in asked] == [url]

    def test_refuses_an_impossible_bucket(self, s3_server):
        with pytest.raises(InvalidInput, match="s3://B_"):
            open_store("s3://B_", s3_server.settings)


class _Breaking(io.BytesIO):
    """A response of urllib3 as far as the store uses it, whose connection breaks after some
    bytes."""

    def __init__(self, data: bytes, breaks_after: int | None) -> None:
        super().__init__(data if breaks_after is None else data[:breaks_after])
        self.headers = {"ETag": "tag"}
        self._breaks = breaks_after is not None

    def read(self, size: int | None = -1) -> bytes:
        from urllib3.exceptions import ProtocolError

        chunk = super().read(size)
        if not chunk and self._breaks:
            raise ProtocolError("connection broken")
        return chunk

    def release_conn(self) -> None:
        pass


@pytest.mark.parametrize(("breaks", "succeeds"), [(1, True), (3, False)])
def test_s3_takes_up_a_broken_download(s3_server, monkeypatch, breaks, succeeds):
    store = S3Store("bucket", "", dataclasses.replace(s3_server.settings, attempts=3))
    data = bytes(range(100))
    asked: list[tuple[int, object]] = []

    def get_object(
        bucket: str, name: str, offset: int, request_headers: dict[str, str]
    ) -> _Breaking:
        asked.append((offset, request_headers.get("If-Match")))
        return _Breaking(data[offset:], 10 if len(asked) <= breaks else None)

    monkeypatch.setattr(store._client, "get_object", get_object)
    if succeeds:
        assert store.get("key") == data
        assert asked == [(0, None), (10, "tag")]
    else:
        with pytest.raises(Unavailable, match="connection broken"):
            store.get("key")
        assert [offset for offset, _ in asked] == [0, 10, 20]


def test_a_server_with_a_certificate_of_our_own_authority(tmp_path):
    create_secrets(tmp_path / "secrets", hosts=["127.0.0.1"])
    tls = tmp_path / "secrets" / "tls"
    server = S3Server(tmp_path / "buckets", tls=tls / "orchestrator")
    server.start()
    try:
        settings = dataclasses.replace(server.settings, ca_file=tls / "ca" / "ca.pem")
        store = open_store("s3://bucket/prefix", settings)
        store.put("a", b"over TLS")
        assert store.get("a") == b"over TLS"
        store.close()
        with pytest.raises(PreconditionFailed, match="PODRACER_S3_CA_FILE"):
            open_store("s3://bucket/prefix", server.settings).get("a")
    finally:
        server.stop()

"""Servers that start, fill up, are restarted and tell another time: what a store of S3 makes of
them."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from minio import Minio

from podracer_core.config import Secret
from podracer_core.errors import PermissionRefused, Unavailable
from podracer_core.storage import ObjectStore
from podracer_platform.storage import S3Settings, open_store
from support.s3_server import ACCESS_KEY, PROGRAMS, SECRET_KEY, S3Server, each_program

LASTING = each_program(*(name for name, program in PROGRAMS.items() if program.keeps))
DISK_BYTES = 64 << 20
URL = "s3://bucket/prefix"


@pytest.fixture(params=LASTING)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[S3Server]:
    """One of its own, not started."""
    server = S3Server(tmp_path / "buckets", program=request.param)
    yield server
    server.stop()


def once_it_answers(store: ObjectStore, ask: Callable[[], object] | None = None) -> set[str]:
    """What its check (or what is asked of it) says until then; nothing but Unavailable may come."""
    said, deadline = set(), time.monotonic() + 60.0
    while time.monotonic() < deadline:
        try:
            (ask or store.check)()
        except Unavailable as error:
            said.add(error.message)
            time.sleep(0.01)
        else:
            return said
    raise TimeoutError(str(said))


def test_a_store_is_opened_before_its_server_and_while_that_starts(server):
    settings = dataclasses.replace(server.settings, attempts=1)
    before = open_store(URL, settings)
    server.start(wait=False)
    meanwhile = open_store(URL, settings)
    said = once_it_answers(before) | once_it_answers(meanwhile)
    assert all(message.startswith(f"{URL} at {server.endpoint} is away: ") for message in said)
    before.put("key", b"x")
    assert meanwhile.get("key") == b"x"


def test_an_upload_of_several_parts_survives_a_restart_of_the_server(server, tmp_path, monkeypatch):
    data = random.Random(0).randbytes(1 << 20) * 35
    source = tmp_path / "source"
    source.write_bytes(data)
    server.start()
    store = open_store(URL, server.settings)
    upload, parts = Minio._upload_part, []

    def upload_and_restart(self: Minio, *arguments: Any, **named: Any) -> Any:
        parts.append(arguments)
        if len(parts) == 2:
            server.stop()
            server.start()
        return upload(self, *arguments, **named)

    monkeypatch.setattr(Minio, "_upload_part", upload_and_restart)
    try:
        store.put("large", source)
    except Unavailable:  # it has forgotten the first part; the spool puts again
        assert not store.exists("large")
        store.put("large", source)
    assert store.get("large") == data
    assert [info.key for info in store.list()] == ["large"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small disk: run it as root")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize("program", LASTING)
def test_a_full_disk_is_an_outage_that_ends(program, disk):
    server = S3Server(disk / "buckets", program=program)
    server.start()
    try:
        store = open_store(URL, server.settings)
        store.put("small", b"x")
        filler = disk / "filler"
        with filler.open("wb") as file:
            file.write(bytes(DISK_BYTES * 3 // 4))
        with pytest.raises(Unavailable, match="'large'"):
            store.put("large", bytes(DISK_BYTES // 2))
        assert store.get("small") == b"x"
        filler.unlink()
        # it knows its disk for a while
        once_it_answers(store, lambda: store.put("large", bytes(DISK_BYTES // 4)))
        assert [info.key for info in store.list()] == ["large", "small"]
    finally:
        server.stop()


def test_a_clock_that_is_wrong(s3_server, monkeypatch):
    if not s3_server.program.checks:
        return
    monkeypatch.setattr("minio.time.utcnow", lambda: datetime.now(UTC) - timedelta(hours=2))
    with pytest.raises(PermissionRefused, match=URL):
        open_store(URL, s3_server.settings)


@pytest.fixture
def answering() -> Iterator[Callable[[int, str], str]]:
    """Start a server that always answers the same: its address."""
    servers = []

    def answer(status: int, body: str, kind: str = "application/xml") -> str:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response_only(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

        servers.append(HTTPServer(("127.0.0.1", 0), Answer))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield answer
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("code", ["XMinioServerNotInitialized", "SlowDown", "InternalError"])
def test_says_why_a_server_that_is_there_does_not_serve(code, answering):
    endpoint = answering(503, f"<Error><Code>{code}</Code><Message>Come again.</Message></Error>")
    settings = S3Settings(endpoint, access_key=Secret("a"), secret_key=Secret("b"), attempts=1)
    with pytest.raises(Unavailable, match=rf"\(HTTP 503, {code}\)$"):
        open_store(URL, settings).check()


@pytest.mark.parametrize("place", ["variables", "file", "container"])
def test_takes_the_first_keys_that_aws_gives(place, s3_server, answering, monkeypatch, tmp_path):
    """Those of the places after it are wrong."""
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_ACCESS_KEY",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_PROFILE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    if place == "variables":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    if place != "container":
        secret = SECRET_KEY if place == "file" else "wrong"
        lines = f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {secret}\n"
        (tmp_path / "credentials").write_text(lines)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    secret = SECRET_KEY if place == "container" else "wrong"
    keys = {"AccessKeyId": ACCESS_KEY, "SecretAccessKey": secret, "Token": "", "Expiration": later}
    endpoint = answering(200, json.dumps(keys), "application/json")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{endpoint}/v1/credentials")
    store = open_store(URL, S3Settings(s3_server.endpoint, attempts=1))
    store.put("key", b"x")
    assert store.get("key") == b"x"


def test_says_that_there_are_no_keys(monkeypatch, answering):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", answering(404, ""))
    with pytest.raises(Unavailable, match="status code 404"):
        open_store(URL, S3Settings("http://127.0.0.1:9", attempts=1)).check()

"""TLS on both sides: who is let in, who is believed, and certificates that are renewed while a
server runs."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from podracer_client.secrets import HOSTS, ROLES, create_secrets
from podracer_core.errors import InvalidInput, PodracerError, Unavailable
from podracer_platform.rpc import (
    CA,
    CERTIFICATE,
    KEY,
    ChannelOptions,
    RpcServer,
    ServerOptions,
    TlsFolder,
    create_aio_server,
    create_server,
    limits,
    open_aio_channel,
    open_channel,
)
from support.errors import raises


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    create_secrets(folder)
    return folder


@pytest.fixture
def server(world: Any, secrets: Path) -> Iterator[RpcServer]:
    options = ServerOptions(tls=TlsFolder(secrets / "tls" / "learner"))
    with create_server("127.0.0.1:0", [world.register_sync], world.authorizer, options) as server:
        yield server


Call = Callable[..., bytes]


@pytest.fixture
def call(server: RpcServer, world: Any, secrets: Path) -> Call:
    def call(folder: Path | None = None, expected: str = "learner") -> bytes:
        tls = TlsFolder(folder or secrets / "tls" / "client")
        with open_channel(
            server.address, "pod-token", ChannelOptions(tls=tls, server=expected)
        ) as channel:
            answer: bytes = world.Stub(channel).unary(b"hello", timeout=5.0)
            return answer

    return call


def test_both_sides_prove_who_they_are(call):
    assert call() == b"pod  0"


async def test_asyncio_too(world, secrets):
    options = ServerOptions(tls=TlsFolder(secrets / "tls" / "orchestrator"))
    server = await create_aio_server("127.0.0.1:0", [world.register_aio], world.authorizer, options)
    async with server:
        to_it = ChannelOptions(tls=TlsFolder(secrets / "tls" / "learner"), server="orchestrator")
        async with open_aio_channel(server.address, "pod-token", to_it) as channel:
            assert await world.Stub(channel).unary(b"hello") == b"pod  0"
        elsewhere = ChannelOptions(tls=TlsFolder(secrets / "tls" / "learner"), server="leaderboard")
        async with open_aio_channel(server.address, "pod-token", elsewhere) as channel:
            with pytest.raises(Unavailable):
                await world.Stub(channel).unary(b"hello", timeout=5.0)


def test_another_role_is_not_believed(call):
    with pytest.raises(Unavailable):
        call(expected="orchestrator")


def test_who_has_a_certificate_of_another_authority_is_let_in_nowhere(call, tmp_path):
    create_secrets(tmp_path / "others")
    with pytest.raises(Unavailable):
        call(tmp_path / "others" / "tls" / "client")


def test_who_has_none_is_not_let_in(server, world, secrets):
    authority = grpc.ssl_channel_credentials((secrets / "tls" / "client" / CA).read_bytes())
    options = [("grpc.ssl_target_name_override", "learner.podracer")]
    with grpc.secure_channel(server.address, authority, options) as channel:
        metadata = (("authorization", "Bearer pod-token"),)
        with pytest.raises(grpc.RpcError) as caught:
            world.Stub(channel).unary(b"hello", metadata=metadata, timeout=5.0)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert not world.sync_echo.requests


def test_plain_text_gets_no_answer(server, world):
    with open_channel(server.address, "pod-token") as channel, pytest.raises(PodracerError):
        world.Stub(channel).unary(b"hello", timeout=5.0)
    assert not world.sync_echo.requests


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01\x00"])
def test_a_handshake_that_does_not_end_is_dropped(world, secrets, monkeypatch, said):
    """Of a connection that says nothing, and of one that has begun."""
    monkeypatch.setattr(limits, "HANDSHAKE_S", 0.1)
    tls = TlsFolder(secrets / "tls" / "learner")
    with create_server(
        "127.0.0.1:0", [world.register_sync], world.authorizer, ServerOptions(tls=tls)
    ) as server:
        host, _, port = server.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60.0) as connection:
            connection.sendall(said)
            assert connection.recv(1) == b""


def test_certificates_are_renewed_without_a_restart(call, secrets):
    before = (secrets / "tls" / "learner" / CERTIFICATE).read_bytes()
    assert call() == b"pod  0"
    create_secrets(secrets, renew=True)
    assert (secrets / "tls" / "learner" / CERTIFICATE).read_bytes() != before
    assert call() == b"pod  0"


def test_another_authority_takes_over(call, secrets, tmp_path):
    former = tmp_path / "former"
    (secrets / "tls" / "client").rename(former)
    for file in (secrets / "tls").rglob("*.pem"):
        file.unlink()
    create_secrets(secrets)
    assert call() == b"pod  0"
    with pytest.raises(Unavailable):
        call(former)


def test_bad_files_leave_the_former_ones_in_place(call, secrets, caplog):
    (secrets / "tls" / "learner" / KEY).write_text("not a key")
    with caplog.at_level(logging.ERROR):
        assert call() == b"pod  0"
    assert "certificates were not renewed" in caplog.text
    assert "not a key" not in caplog.text


def test_a_unix_socket_needs_none(world, secrets, tmp_path):
    tls = TlsFolder(secrets / "tls" / "learner")
    address = f"unix://{tmp_path}/s"
    with (
        create_server(
            address, [world.register_sync], world.authorizer, ServerOptions(tls=tls)
        ) as server,
        open_channel(
            server.address, "pod-token", ChannelOptions(tls=tls, server="learner")
        ) as channel,
    ):
        assert world.Stub(channel).unary(b"hello") == b"pod  0"


def test_with_tls_a_server_may_leave_this_machine(world, secrets):
    options = ServerOptions(tls=TlsFolder(secrets / "tls" / "learner"))
    with create_server("0.0.0.0:0", [world.register_sync], world.authorizer, options) as server:
        assert server.address.startswith("0.0.0.0:")
    with pytest.raises(InvalidInput, match="PODRACER_TLS"):
        create_server("0.0.0.0:0", [world.register_sync], world.authorizer)


@pytest.mark.parametrize("file", [CA, CERTIFICATE, KEY])
@pytest.mark.parametrize("content", [None, "nonsense"])
def test_a_bad_folder_is_refused_by_name(secrets, file, content):
    path = secrets / "tls" / "worker" / file
    path.unlink() if content is None else path.write_text(content)
    with raises(InvalidInput, "BAD_TLS", match=file):
        TlsFolder(path.parent)


class TestSecrets:
    def test_everything_is_there_and_private(self, secrets):
        expected = {
            f"tls/{role}/{file}" for role in (*ROLES, *HOSTS) for file in (CA, CERTIFICATE, KEY)
        }
        expected |= {f"tls/ca/{CA}", f"tls/ca/{KEY}"} | {
            f"tokens/{role}" for role in ("client", "pod", "control")
        }
        files = {
            path.relative_to(secrets).as_posix(): path
            for path in secrets.rglob("*")
            if path.is_file()
        }
        expected |= {
            f"store/{name}" for name in ("access_key", "secret_key", "root_user", "root_password")
        }
        expected |= {"database/password", "database/pgpass"}
        assert {name for name in files if not name.startswith("roles/")} == expected
        assert {oct(path.stat().st_mode & 0o777) for path in files.values()} == {"0o600"}

    def test_a_second_call_changes_nothing(self, secrets):
        before = {path: path.read_bytes() for path in secrets.rglob("*") if path.is_file()}
        assert create_secrets(secrets) == []
        assert {path: path.read_bytes() for path in secrets.rglob("*") if path.is_file()} == before

    def test_what_is_missing_is_made(self, secrets):
        (secrets / "tls" / "worker" / CERTIFICATE).unlink()
        (secrets / "tokens" / "pod").unlink()
        paths = (path.relative_to(secrets).as_posix() for path in create_secrets(secrets))
        written = {path for path in paths if not path.startswith("roles/")}
        assert written == {"tokens/pod", *(f"tls/worker/{file}" for file in (CA, CERTIFICATE, KEY))}

    def test_hosts_stand_beside_the_role(self, tmp_path, world):
        create_secrets(tmp_path / "s", ["localhost", "127.0.0.1"])
        options = ServerOptions(tls=TlsFolder(tmp_path / "s" / "tls" / "orchestrator"))
        with create_server(
            "127.0.0.1:0", [world.register_sync], world.authorizer, options
        ) as server:
            # by its address
            to_it = ChannelOptions(tls=TlsFolder(tmp_path / "s" / "tls" / "client"))
            with open_channel(server.address, "pod-token", to_it) as channel:
                assert world.Stub(channel).unary(b"hello", timeout=5.0) == b"pod  0"

    def test_bad_input_is_refused(self, tmp_path):
        with pytest.raises(InvalidInput, match="a day"):
            create_secrets(tmp_path / "s", days=0)
        with pytest.raises(InvalidInput, match="ünter"):
            create_secrets(tmp_path / "s", ["ünter"])
        (tmp_path / "file").touch()
        with pytest.raises(InvalidInput, match="file"):
            create_secrets(tmp_path / "file")

"""Where servers can listen: ports, unix sockets, and clear refusals."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podracer_core.errors import InvalidInput
from podracer_platform.rpc import (
    RpcServer,
    ServerOptions,
    create_aio_server,
    create_server,
    open_aio_channel,
    open_channel,
)
from support.errors import raises


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: pytest's own are too long for a unix socket on some machines."""
    folder = Path(tempfile.mkdtemp(prefix="rpc"))
    yield folder
    shutil.rmtree(folder)


def create(world: Any, address: str, *, aio: bool, options: ServerOptions | None = None) -> str:
    """Start and stop a server of either kind, and give its address."""
    if aio:

        async def create_and_stop() -> str:
            server = await create_aio_server(
                address, [world.register_aio], world.authorizer, options
            )
            await server.start()
            await server.drain(0)
            return server.address

        return asyncio.run(create_and_stop())
    server = create_server(address, [world.register_sync], world.authorizer, options)
    server.start()
    server.drain(0)
    return server.address


both = pytest.mark.parametrize("aio", [False, True], ids=["sync", "aio"])


@both
def test_taken_port(world, aio):
    with (
        create_server("127.0.0.1:0", [world.register_sync], world.authorizer) as first,
        raises(InvalidInput, "ADDRESS_IN_USE", field="address", match=first.address),
    ):
        create(world, first.address, aio=aio)


@both
def test_foreign_address(world, aio):
    with raises(InvalidInput, "ADDRESS_UNUSABLE") as caught:
        create(world, "192.0.2.1:8080", aio=aio, options=ServerOptions(allow_insecure=True))
    assert "192.0.2.1:8080" in caught.value.message


@both
def test_a_port_is_free_again_after_its_server(world, aio):
    address = create(world, "127.0.0.1:0", aio=aio)
    assert create(world, address, aio=aio) == address


@both
def test_leaving_the_machine_needs_the_flag(world, aio, caplog):
    with raises(InvalidInput, "INSECURE_ADDRESS"):
        create(world, "0.0.0.0:0", aio=aio)
    with caplog.at_level(logging.WARNING):
        assert create(
            world, "0.0.0.0:0", aio=aio, options=ServerOptions(allow_insecure=True)
        ).startswith("0.0.0.0:")
    assert "without TLS" in caplog.text


def test_localhost(world):
    with create_server("localhost:0", [world.register_sync], world.authorizer) as server:
        assert _hello(server, world) == b"pod  0"


def test_unix_socket(world, folder):
    address = f"unix://{folder}/run/worker.sock"
    with create_server(address, [world.register_sync], world.authorizer) as server:
        assert server.address == address
        assert (folder / "run").stat().st_mode & 0o777 == 0o700
        assert (folder / "run" / "worker.sock").stat().st_mode & 0o777 == 0o600
        assert _hello(server, world) == b"pod  0"
        with raises(InvalidInput, "ADDRESS_IN_USE"):
            create_server(address, [world.register_sync], world.authorizer)
        assert _hello(server, world) == b"pod  0"


async def test_unix_socket_aio(world, folder):
    address = f"unix://{folder}/leaderboard.sock"
    server = await create_aio_server(address, [world.register_aio], world.authorizer)
    async with server, open_aio_channel(server.address, "pod-token") as channel:
        assert await world.Stub(channel).unary(b"hello") == b"pod  0"


def test_stale_socket_is_replaced_and_a_file_is_not(world, folder):
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stale.bind(str(folder / "worker.sock"))
    stale.close()  # as after a kill: the file stays without a listener
    with create_server(
        f"unix://{folder}/worker.sock", [world.register_sync], world.authorizer
    ) as server:
        assert _hello(server, world) == b"pod  0"
    (folder / "notes.txt").write_text("keep me")
    with pytest.raises(InvalidInput, match="not a socket"):
        create_server(f"unix://{folder}/notes.txt", [world.register_sync], world.authorizer)
    assert (folder / "notes.txt").read_text() == "keep me"
    with raises(InvalidInput, "ADDRESS_UNUSABLE"):
        create_server(
            f"unix://{folder}/notes.txt/worker.sock", [world.register_sync], world.authorizer
        )


def _hello(server: RpcServer, world: Any) -> Any:
    with open_channel(server.address, "pod-token") as channel:
        return world.Stub(channel).unary(b"hello")

"""The port for health alone: what it tells, to whom, and that it tells nothing else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from podracer_client.secrets import create_secrets
from podracer_core.errors import InvalidInput, Unavailable
from podracer_platform.rpc import (
    LIVENESS,
    Authorizer,
    Readiness,
    Role,
    ServerOptions,
    TlsFolder,
    TokenFiles,
    create_aio_server,
    create_server,
    health_of,
    main,
)
from podracer_platform.rpc import server as server_module

SERVICE = "podracer.test.Quiet"


@pytest.fixture
def authorizer(tmp_path: Path) -> Authorizer:
    (tmp_path / "pod").write_text("pod-token\n")
    return Authorizer({f"/{SERVICE}/Nothing": {Role.POD}}, TokenFiles(tmp_path))


OPTIONS = ServerOptions(health="127.0.0.1:0")


async def ask(address: str, service: str = "") -> str:
    return await asyncio.to_thread(health_of, address, service)


def test_it_is_ready_while_the_server_serves_and_alive_before_and_afterwards(authorizer):
    server = create_server("127.0.0.1:0", [], authorizer, OPTIONS)
    address = server.health_address
    assert (health_of(address), health_of(address, LIVENESS)) == ("NOT_SERVING", "SERVING")
    server.start()
    assert [health_of(address), health_of(address, SERVICE), health_of(address, LIVENESS)] == [
        "SERVING"
    ] * 3
    seen: list[str] = []
    server.on_drain(lambda: seen.extend((health_of(address), health_of(address, LIVENESS))))
    server.drain(0.0)
    assert seen == ["NOT_SERVING", "SERVING"]
    assert health_of(address).startswith("UNAVAILABLE: ")


async def test_an_asyncio_server_does_the_same_and_can_be_not_ready(authorizer):
    server = await create_aio_server("127.0.0.1:0", [], authorizer, OPTIONS)
    address = server.health_address
    assert (await ask(address), await ask(address, LIVENESS)) == ("NOT_SERVING", "SERVING")
    await server.start()
    assert await ask(address) == "SERVING"
    await server.set_ready(False)
    assert [await ask(address), await ask(address, SERVICE), await ask(address, LIVENESS)] == [
        "NOT_SERVING", "NOT_SERVING", "SERVING"
    ]  # fmt: skip
    seen: list[str] = []

    async def drained() -> None:
        await server.set_ready(True)  # too late
        seen.extend((await ask(address), await ask(address, LIVENESS)))

    server.on_drain(drained)
    await server.drain(0.0)
    assert seen == ["NOT_SERVING", "SERVING"]


def test_beside_tls_it_is_plain_and_serves_nothing_else(authorizer, tmp_path, caplog):
    create_secrets(tmp_path / "secrets")
    tls = TlsFolder(tmp_path / "secrets" / "tls" / "worker")
    with create_server(
        "127.0.0.1:0", [], authorizer, ServerOptions(tls=tls, health="0.0.0.0:0")
    ) as server:
        assert "plain text" not in caplog.text
        port = server.health_address.rpartition(":")[2]
        assert health_of(f"127.0.0.1:{port}") == "SERVING"
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            for method in (
                f"/{SERVICE}/Nothing",
                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            ):
                with pytest.raises(grpc.RpcError) as refusal:
                    channel.unary_unary(method)(b"", timeout=10)
                assert refusal.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert health_of(server.address) != "SERVING"  # there health speaks TLS, as everything does


def test_an_address_that_is_taken_is_told(authorizer):
    with create_server("127.0.0.1:0", [], authorizer, OPTIONS) as server:
        taken = ServerOptions(health=server.health_address)
        with pytest.raises(InvalidInput, match=server.health_address):
            create_server("127.0.0.1:0", [], authorizer, taken)


async def test_readiness_follows_what_is_needed(authorizer, caplog, monkeypatch):
    monkeypatch.setattr(server_module, "ANSWER_S", 0.2)
    is_away, hangs, calls = False, asyncio.Event(), 0
    hangs.set()

    async def check() -> None:
        nonlocal calls
        calls += 1
        await hangs.wait()
        if is_away:
            raise Unavailable("it has gone fishing")

    async with await create_aio_server("127.0.0.1:0", [], authorizer, OPTIONS) as server:
        watch = Readiness(server, {"the store": check})
        await watch.check()
        assert await ask(server.health_address) == "SERVING"
        is_away = True
        await watch.check()
        await watch.check()
        assert await ask(server.health_address) == "NOT_SERVING"
        assert caplog.text.count("not ready: the store: it has gone fishing") == 1
        is_away = False
        hangs.clear()
        before = calls
        await watch.check()
        await watch.check()
        assert calls == before + 1  # one that hangs is not asked again
        assert "the store has not answered within 0.2 s" in caplog.text
        assert await ask(server.health_address, LIVENESS) == "SERVING"
        hangs.set()
        await watch.check()
        assert await ask(server.health_address) == "SERVING"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "usage"),
        (["nonsense"], "expected unix:///absolute/path, host:port"),
        (["127.0.0.1:1"], "UNAVAILABLE"),
    ],
)
def test_the_probe_says_in_one_line_what_is_wrong(arguments, expected, capsys):
    assert main(arguments) == 1
    output = capsys.readouterr()
    assert expected in output.out + output.err
    assert (output.out + output.err).count("\n") == 1


def test_the_probe_is_a_command(authorizer):
    with create_server("127.0.0.1:0", [], authorizer, OPTIONS) as server:
        command = [sys.executable, "-m", "podracer_platform.rpc.probe", server.health_address]
        found = subprocess.run(
            [*command, "liveness"], capture_output=True, text=True, timeout=60, check=False
        )
        assert (found.returncode, found.stdout) == (0, f"{server.health_address}: SERVING\n")
        found = subprocess.run(
            [*command, "other"], capture_output=True, text=True, timeout=60, check=False
        )
        assert found.returncode == 1
        assert "expected liveness" in found.stdout

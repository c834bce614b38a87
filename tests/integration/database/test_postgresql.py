"""The control plane's state in a real PostgreSQL server that is killed and comes back."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, select, text
from sqlalchemy.orm import Session

from podracer_core.database import Database, open_database
from podracer_core.database.tenure import TABLE
from podracer_core.errors import InvalidInput, PreconditionFailed, Unavailable
from podracer_leaderboard.tables import Tables
from podracer_orchestrator.tables import Base, SettingRow
from support.postgresql import PostgresServer

ORCHESTRATOR, LEADERBOARD = "podracer_orchestrator.migrations", "podracer_leaderboard.migrations"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        Path(folder).chmod(0o755)
        server = PostgresServer(Path(folder) / "server")
        server.start()
        yield server
        server.kill()


@pytest.fixture
def url(server: PostgresServer, request: pytest.FixtureRequest) -> str:
    return server.create_database(f"d{abs(hash(request.node.name))}")


async def put(database: Database, name: str, value: bytes) -> None:
    await database.write(lambda session: session.merge(SettingRow(name=name, value=value)))


async def get(database: Database, name: str) -> bytes | None:
    query = select(SettingRow.value).where(SettingRow.name == name)
    return await database.read(lambda session: session.scalar(query))


@pytest.mark.parametrize(("package", "metadata"), [(ORCHESTRATOR, Base.metadata), (LEADERBOARD, Tables.metadata)])
async def test_the_migrations_make_the_tables(url: str, package: str, metadata: object) -> None:
    async with open_database(url, package):
        pass
    async with open_database(url, package):  # nothing is left to do
        pass
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        connection.execute(text(f"DROP TABLE {TABLE}"))
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


async def test_what_was_written_is_there(url: str) -> None:
    def fail(session: Session) -> None:
        session.merge(SettingRow(name="a", value=b"2"))
        raise RuntimeError

    async with open_database(url, ORCHESTRATOR) as database:
        await put(database, "a", b"1")
        with pytest.raises(RuntimeError):
            await database.write(fail)
        assert await get(database, "a") == b"1"
    async with open_database(url, ORCHESTRATOR) as database:
        assert await get(database, "a") == b"1"


async def test_a_second_process_is_refused(server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podracer_core.database.tenure.PATIENCE_S", 0.0)
    async with open_database(url, ORCHESTRATOR):
        with pytest.raises(InvalidInput, match="in use"):
            open_database(url, ORCHESTRATOR)
        async with open_database(server.create_database("leaderboard"), LEADERBOARD):
            pass  # another service has a database of its own


async def test_a_former_process_whose_session_ends_late_is_waited_for(url: str) -> None:
    """Its connection is closed while the next process asks for the lock: as after a kill -9 on a busy server."""
    former = open_database(url, ORCHESTRATOR)
    ending = threading.Timer(0.3, lambda: asyncio.run(former.close()))
    ending.start()
    async with open_database(url, ORCHESTRATOR) as database:
        await put(database, "a", b"1")
    ending.join()


@pytest.mark.thorough
async def test_a_server_that_was_killed_comes_back_with_everything_that_was_acknowledged(
    server: PostgresServer, url: str
) -> None:
    async with open_database(url, ORCHESTRATOR) as database:
        await put(database, "a", b"1")
        server.kill()
        for attempt in (put(database, "a", b"2"), get(database, "a")):
            with pytest.raises(Unavailable, match="cannot be used now"):
                await attempt
        server.start()
        assert await get(database, "a") == b"1"
        await put(database, "a", b"3")
        assert await get(database, "a") == b"3"


async def test_writers_wait_for_one_another(url: str) -> None:
    def add(session: Session) -> None:
        row = session.get_one(SettingRow, "count")
        value = int(row.value)
        time.sleep(0.001)
        row.value = str(value + 1).encode()

    async with open_database(url, ORCHESTRATOR) as database:
        await put(database, "count", b"0")
        await asyncio.gather(*(database.write(add) for _ in range(50)))
        assert await get(database, "count") == b"50"


async def test_who_was_taken_over_from_writes_no_more_and_ends(
    server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr("os.kill", lambda _, number: ended.append(number))
    async with open_database(url, ORCHESTRATOR) as former:
        await put(former, "a", b"1")
        monkeypatch.undo()
        server.kill()  # and with it the lock
        server.start()
        monkeypatch.setattr("os.kill", lambda _, number: ended.append(number))
        async with open_database(url, ORCHESTRATOR) as newer:
            await put(newer, "a", b"2")
            with pytest.raises(PreconditionFailed, match="taken over"):
                await put(former, "a", b"3")
            assert await get(newer, "a") == b"2"
    assert ended == [signal.SIGTERM]

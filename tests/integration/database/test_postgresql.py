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

from podracer_client.secrets import create_secrets
from podracer_core.errors import Unavailable
from podracer_leaderboard.tables import Tables
from podracer_orchestrator.tables import Base, SettingRow
from podracer_platform.database import NOT_ACTIVE, TABLE, Database, open_database, wait_for_database
from support.errors import raises
from support.postgresql import PostgresServer

ORCHESTRATOR, LEADERBOARD = "podracer_orchestrator.migrations", "podracer_leaderboard.migrations"
MIGRATION = """
'''one'''
import sqlalchemy as sa
from alembic import op
revision, down_revision = "r000{number}", {former!r}
def upgrade():
    op.create_table("table{number}", sa.Column("id", sa.Integer, primary_key=True))
"""


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgresServer]:
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        Path(folder).chmod(0o755)
        create_secrets(Path(folder) / "secrets", ["127.0.0.1"])
        create_secrets(Path(folder) / "others")
        server = PostgresServer(
            Path(folder) / "server", Path(folder) / "secrets" / "tls" / "database"
        )
        server.start()
        yield server
        server.kill()


@pytest.fixture
def url(postgresql: PostgresServer, request: pytest.FixtureRequest) -> str:
    return postgresql.create_database(f"d{abs(hash(request.node.name))}")


async def put(database: Database, name: str, value: bytes) -> None:
    await database.write(lambda session: session.merge(SettingRow(name=name, value=value)))


async def get(database: Database, name: str) -> bytes | None:
    query = select(SettingRow.value).where(SettingRow.name == name)
    return await database.read(lambda session: session.scalar(query))


@pytest.mark.parametrize(
    ("package", "metadata"), [(ORCHESTRATOR, Base.metadata), (LEADERBOARD, Tables.metadata)]
)
async def test_the_migrations_make_the_tables(url, package, metadata):
    async with open_database(url, package):
        pass
    async with open_database(url, package):  # nothing is left to do
        pass
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        connection.execute(text(f"DROP TABLE {TABLE}"))
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


async def test_a_certificate_of_another_authority_is_refused(postgresql, url):
    ours, others = (
        f"{url}?sslmode=verify-full&sslrootcert={postgresql.folder.parent}/{place}/tls/ca/ca.pem"
        for place in ("secrets", "others")
    )
    with raises(Unavailable, "DATABASE_UNAVAILABLE", match="certificate verify"):
        open_database(others, ORCHESTRATOR)
    async with open_database(ours, ORCHESTRATOR) as database:
        query = text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        assert await database.read(lambda session: session.scalar(query)) is True


async def test_what_was_written_is_there(url):
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


def change(url: str, statement: str) -> None:
    """As another process would."""
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Signals that this process would have been given."""
    signals: list[int] = []
    monkeypatch.setattr(
        "podracer_platform.database.os.kill", lambda _, number: signals.append(number)
    )
    return signals


async def test_a_second_process_waits_for_the_end_of_the_first(postgresql, url):
    former = open_database(url, ORCHESTRATOR)
    with raises(Unavailable, NOT_ACTIVE):
        open_database(url, ORCHESTRATOR)
    async with open_database(postgresql.create_database("leaderboard"), LEADERBOARD):
        pass  # another service has a database of its own
    waiting = asyncio.create_task(wait_for_database(url, ORCHESTRATOR))
    await put(former, "a", b"1")
    await former.close()
    async with await waiting as database:
        assert await get(database, "a") == b"1"


async def test_a_process_of_the_same_name_takes_over_at_once(url, ended):
    former = open_database(url, ORCHESTRATOR, holder="orchestrator-0")
    async with open_database(url, ORCHESTRATOR, holder="orchestrator-0"):
        with pytest.raises(Unavailable, match="taken over"):
            await former.check()
        await former.close()
        # that close ended nothing
        with raises(Unavailable, "NOT_ACTIVE"):
            open_database(url, ORCHESTRATOR)
    assert set(ended) == {signal.SIGTERM}


async def test_only_the_active_process_migrates(url, tmp_path, monkeypatch):
    package = tmp_path / "own_migrations"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "r0001_one.py").write_text(MIGRATION.format(number=1, former=None))
    monkeypatch.syspath_prepend(str(tmp_path))
    former = open_database(url, package.name)
    (package / "r0002_two.py").write_text(MIGRATION.format(number=2, former="r0001"))
    with pytest.raises(Unavailable):
        open_database(url, package.name)
    revision = text("SELECT version_num FROM alembic_version")
    assert await former.read(lambda session: session.scalar(revision)) == "r0001"
    await former.close()
    async with open_database(url, package.name) as newer:
        assert await newer.read(lambda session: session.scalar(revision)) == "r0002"


async def test_what_a_paused_process_has_locked_keeps_none_from_taking_over(url, ended):
    """It stops in the middle of a transaction, and wakes up after another has taken over: it writes
    nothing."""
    await open_database(url, ORCHESTRATOR).close()
    former, awake = open_database(url, ORCHESTRATOR, term_s=2.0), threading.Event()

    def sleep(session: Session) -> None:
        session.add(SettingRow(name="a", value=b"1"))
        session.flush()
        awake.wait()

    writing = asyncio.create_task(former.write(sleep))
    async with await wait_for_database(url, ORCHESTRATOR) as newer:
        awake.set()
        for attempt in (writing, put(former, "a", b"2")):
            with pytest.raises(Unavailable):
                await attempt
        await put(newer, "b", b"3")
        assert await get(newer, "a") is None
        await former.close()
    assert set(ended) == {signal.SIGTERM}


async def test_a_process_that_has_nothing_to_write_shows_life(url):
    expiry = text(f"SELECT expiry FROM {TABLE}")
    async with open_database(url, ORCHESTRATOR, term_s=2.0) as database:
        seen = {await database.read(lambda session: session.scalar(expiry))}
        while len(seen) < 3:
            seen.add(await database.read(lambda session: session.scalar(expiry)))


@pytest.mark.thorough
async def test_a_server_that_was_killed_comes_back_with_everything_that_was_acknowledged(
    postgresql, url
):
    async with open_database(url, ORCHESTRATOR) as database:
        await put(database, "a", b"1")
        postgresql.kill()
        for attempt in (put(database, "a", b"2"), get(database, "a")):
            with raises(Unavailable, "DATABASE_UNAVAILABLE", match="used now"):
                await attempt
        postgresql.start()
        assert await get(database, "a") == b"1"
        await put(database, "a", b"3")
        assert await get(database, "a") == b"3"


async def test_writers_wait_for_one_another(url):
    def add(session: Session) -> None:
        row = session.get_one(SettingRow, "count")
        value = int(row.value)
        time.sleep(0.001)
        row.value = str(value + 1).encode()

    async with open_database(url, ORCHESTRATOR) as database:
        await put(database, "count", b"0")
        await asyncio.gather(*(database.write(add) for _ in range(50)))
        assert await get(database, "count") == b"50"


async def test_who_was_taken_over_from_writes_no_more_and_ends(url, ended):
    async with open_database(url, ORCHESTRATOR) as former:
        await put(former, "a", b"1")
        change(url, f"UPDATE {TABLE} SET expiry = clock_timestamp() - interval '1 second'")
        async with open_database(url, ORCHESTRATOR) as newer:
            await put(newer, "a", b"2")
            with raises(Unavailable, NOT_ACTIVE, match="taken over"):
                await put(former, "a", b"3")
            assert await get(newer, "a") == b"2"
    assert set(ended) == {signal.SIGTERM}

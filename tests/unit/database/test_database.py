"""podracer_platform.database on real SQLite files: durable, one writer, one process, migrated."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from podracer_core.errors import DataCorrupted, InvalidInput
from podracer_platform.database import Database, UtcTime, open_database, parse_url
from support.errors import raises

FIRST = """
'''first'''
import sqlalchemy as sa
from alembic import op
revision, down_revision = "r0001", None
def upgrade():
    op.create_table("notes", sa.Column("id", sa.Integer, primary_key=True), sa.Column("note", sa.String))
"""
SECOND = """
'''second'''
import sqlalchemy as sa
from alembic import op
revision, down_revision = "r0002", "r0001"
def upgrade():
    op.add_column("notes", sa.Column("colour", sa.String))
    FAIL
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "packages" / "some_migrations"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "r0001_first.py").write_text(FIRST)
    monkeypatch.syspath_prepend(str(folder.parent))
    yield folder
    sys.modules.pop("some_migrations", None)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state/a.sqlite"


def open_it(url: str) -> Database:
    return open_database(url, "some_migrations")


async def notes(database: Database) -> list[str]:
    query = text("SELECT note FROM notes ORDER BY id")
    return await database.read(lambda session: list(session.execute(query).scalars()))


async def add(database: Database, note: str) -> None:
    statement = text("INSERT INTO notes (note) VALUES (:note)")
    await database.write(lambda session: session.execute(statement, {"note": note}))


async def test_what_was_written_is_there_after_a_restart(package, url):
    async with open_it(url) as database:
        await add(database, "one")
    async with open_it(url) as database:
        assert await notes(database) == ["one"]


async def test_commits_reach_the_disk_and_foreign_keys_hold(package, url):
    names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
    async with open_it(url) as database:
        pragmas = await database.read(
            lambda session: {n: session.scalar(text(f"PRAGMA {n}")) for n in names}
        )
    assert pragmas == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": 10_000,
    }


async def test_an_exception_takes_the_whole_write_back(package, url):
    def fail(session: Session) -> None:
        session.execute(text("INSERT INTO notes (note) VALUES ('lost')"))
        raise KeyError

    async with open_it(url) as database:
        with pytest.raises(KeyError):
            await database.write(fail)
        assert await notes(database) == []


async def test_a_read_sees_one_snapshot(package, url):
    async with open_it(url) as database:
        await add(database, "one")
        has_looked, has_changed = threading.Event(), threading.Event()

        def look_twice(session: Session) -> tuple[int, int]:
            count = text("SELECT count(*) FROM notes")
            first = session.scalar(count)
            has_looked.set()
            assert has_changed.wait(60.0)
            return first, session.scalar(count)

        looks = asyncio.create_task(database.read(look_twice))
        assert await asyncio.to_thread(has_looked.wait, 5.0)
        await add(database, "two")
        has_changed.set()
        assert await looks == (1, 1)


async def test_read_and_change_is_atomic_among_writers(package, url):
    def append_count(session: Session) -> None:
        count = session.scalar(text("SELECT count(*) FROM notes"))
        time.sleep(0.001)
        session.execute(text("INSERT INTO notes (note) VALUES (:note)"), {"note": str(count)})

    async with open_it(url) as database:
        await asyncio.gather(*(database.write(append_count) for _ in range(20)))
        assert await notes(database) == [str(number) for number in range(20)]


async def test_cancelled_writers_leave_a_working_database(package, url):
    async with open_it(url) as database:
        for step in range(60):
            task = asyncio.create_task(add(database, f"cancelled {step}"))
            await asyncio.sleep(step * 0.00005)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.wait_for(add(database, "kept"), 5)
        assert (await notes(database))[-1] == "kept"


async def test_an_acknowledged_write_survives_kill_9(package, url):
    script = f"""
        import asyncio, sys
        sys.path.insert(0, {str(package.parent)!r})
        from sqlalchemy import text
        from podracer_platform.database import open_database
        async def main():
            database = open_database({url!r}, "some_migrations")
            for number in range(10**6):
                statement = text("INSERT INTO notes (note) VALUES (:n)")
                await database.write(lambda session: session.execute(statement, {{"n": str(number)}}))
                print(number, flush=True)
        asyncio.run(main())
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 20:
            break
    os.kill(process.pid, signal.SIGKILL)
    acknowledged = [int(line), *(int(rest) for rest in process.stdout.read().split())][-1]
    process.wait()
    async with open_it(url) as database:
        stored = [int(note) for note in await notes(database)]
    assert stored == list(range(len(stored)))
    assert len(stored) in (acknowledged + 1, acknowledged + 2)


async def test_a_second_process_is_refused_until_the_first_ends(package, url):
    async with open_it(url):
        with raises(InvalidInput, "DATABASE_IN_USE", match=f"process {os.getpid()}"):
            open_it(url)
    await open_it(url).close()


async def test_a_newer_version_migrates_and_keeps_the_rows(package, url):
    async with open_it(url) as database:
        await add(database, "old")
    (package / "r0002_second.py").write_text(SECOND.replace("FAIL", ""))
    async with open_it(url) as database:
        row = await database.read(
            lambda session: session.execute(text("SELECT note, colour FROM notes")).one()
        )
    assert row == ("old", None)


async def test_a_migration_that_fails_half_way_has_not_happened(package, url):
    await open_it(url).close()
    (package / "r0002_second.py").write_text(SECOND.replace("FAIL", "raise SystemExit"))
    with pytest.raises(SystemExit):
        open_it(url)
    (package / "r0002_second.py").write_text(SECOND.replace("FAIL", ""))
    await open_it(url).close()


async def test_a_database_of_a_newer_version_is_refused(package, url):
    (package / "r0002_second.py").write_text(SECOND.replace("FAIL", ""))
    await open_it(url).close()
    (package / "r0002_second.py").unlink()
    with raises(InvalidInput, "DATABASE_TOO_NEW"):
        open_it(url)


async def test_a_start_at_the_newest_revision_does_without_alembic(package, url):
    await open_it(url).close()
    script = f"""
        import sys
        sys.path.insert(0, {str(package.parent)!r})
        from podracer_platform.database import open_database
        open_database({url!r}, "some_migrations")
        print("alembic" in sys.modules, "torch" in sys.modules)
    """
    output = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "False False"


def test_an_unwritable_folder_is_named(package, tmp_path):
    (tmp_path / "file").write_text("")
    with raises(InvalidInput, "DATABASE_UNWRITABLE"):
        open_it(f"sqlite:///{tmp_path}/file/a.sqlite")


def test_a_file_that_is_no_database_is_refused(package, tmp_path):
    (tmp_path / "a.sqlite").write_text(
        "this is text, and long enough to be no header of a database\n" * 20
    )
    with pytest.raises(DataCorrupted, match="not a database"):
        open_it(f"sqlite:///{tmp_path}/a.sqlite")


def test_the_file_is_private(package, url, tmp_path):
    open_it(url)
    assert (tmp_path / "state" / "a.sqlite").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "bad", ["", "nonsense", "sqlite://", "sqlite:///:memory:", "mysql://u:secret@h/d"]
)
def test_other_urls_are_refused_without_repeating_secrets(bad):
    with raises(InvalidInput, "INVALID_DATABASE_URL") as caught:
        parse_url(bad)
    assert "secret" not in caught.value.message


def test_a_postgresql_url_is_understood(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.delenv("PGSSLMODE", raising=False)
    here = (
        "user:pw@127.0.0.1:5432/base",
        "localhost/base",
        "[::1]/base",
        "/base",
        "/base?host=/run/postgresql",
    )
    chosen = (
        "user:pw@host/base?sslmode=verify-full&sslrootcert=/ca.pem",
        "host/base?sslmode=prefer",
    )
    for each in (*here, *chosen):
        assert parse_url(f"postgresql://{each}").drivername == "postgresql+psycopg"
    for each in (
        "user:secret@host/base",
        "10.0.0.1/base",
        "/base?host=host",
        "/base?host=/run/x&host=host",
    ):
        with pytest.raises(InvalidInput, match="sslmode=verify-full") as caught:
            parse_url(f"postgresql://{each}")
        assert "secret" not in caught.value.message
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    parse_url("postgresql://host/base")


def test_times_are_exact_and_aware():
    column = UtcTime()
    moment = datetime(2026, 3, 1, 12, 30, 5, 123457, tzinfo=timezone(timedelta(hours=2)))
    stored = column.process_bind_param(moment, None)  # type: ignore[arg-type]
    assert column.process_result_value(stored, None) == moment.astimezone(UTC)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="time zone"):
        column.process_bind_param(datetime(2026, 3, 1), None)  # type: ignore[arg-type]

"""A database of the orchestrator as an older version has left it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Boolean, Connection, LargeBinary, String, create_engine, inspect, text

import podracer_orchestrator.migrations


def revisions() -> dict[str, Script]:
    """The migrations by number, the first one first."""
    folder = str(Path(podracer_orchestrator.migrations.__path__[0]))
    scripts = ScriptDirectory(folder, version_locations=[folder])
    return {each.revision: each for each in reversed(list(scripts.walk_revisions()))}


@contextmanager
def at_revision(url: str, newest: str) -> Iterator[Connection]:
    """A connection to a new database whose migrations went up to `newest`; it is closed, with all
    that was written."""
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        for number, script in revisions().items():
            if number <= newest:
                script.module.upgrade()
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
        connection.execute(text(f"INSERT INTO alembic_version VALUES ('{newest}')"))
        yield connection
    engine.dispose()


def insert(connection: Connection, table: str, **row: object) -> None:
    """A row; what has to be there and is not said is empty, or 1."""
    for column in inspect(connection).get_columns(table):
        if not column["nullable"] and column["default"] is None and column["name"] not in row:
            empty = {Boolean: False, String: "", LargeBinary: b""}
            kind = next((each for each in empty if isinstance(column["type"], each)), None)
            row[column["name"]] = 1 if kind is None else empty[kind]
    names = ", ".join(f":{name}" for name in row)
    connection.execute(text(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({names})"), row)

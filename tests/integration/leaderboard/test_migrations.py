"""The migrations give exactly the tables that the service uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

import podracer_leaderboard.migrations
from podracer_core.database import open_database
from podracer_core.database.migration import newest_revision
from podracer_leaderboard.server import MIGRATIONS
from podracer_leaderboard.tables import Tables

FOLDER = Path(podracer_leaderboard.migrations.__path__[0])


async def test_an_upgraded_database_has_the_tables_of_the_code(tmp_path: Path) -> None:
    await open_database(f"sqlite:///{tmp_path}/a.sqlite", MIGRATIONS).close()
    engine = create_engine(f"sqlite:///{tmp_path}/a.sqlite")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Tables.metadata) == []
    engine.dispose()


def test_the_last_file_is_the_newest_revision() -> None:
    scripts = ScriptDirectory(str(FOLDER), version_locations=[str(FOLDER)])
    assert scripts.get_current_head() == newest_revision(FOLDER)
    for script in scripts.walk_revisions():
        assert Path(script.path).stem.startswith(f"{script.revision}_"), "the start goes by the files' names"


def test_deleting_a_board_needs_no_list_of_tables() -> None:
    for table in Tables.metadata.tables.values():
        if table.name != "boards":
            (key,) = table.foreign_key_constraints
            assert key.ondelete == "CASCADE", table.name


@pytest.mark.parametrize("table", sorted(Tables.metadata.tables))
def test_every_table_can_be_made_on_postgresql(table: str) -> None:
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.schema import CreateTable

    assert str(CreateTable(Tables.metadata.tables[table]).compile(dialect=postgresql.dialect()))

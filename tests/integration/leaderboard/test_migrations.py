"""The migrations give exactly the tables that the service uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text

import podracer_leaderboard.migrations
from podracer_leaderboard.server import MIGRATIONS
from podracer_leaderboard.tables import Tables
from podracer_platform.database import newest_revision, open_database

FOLDER = Path(podracer_leaderboard.migrations.__path__[0])


async def test_an_upgraded_database_has_the_tables_of_the_code(tmp_path):
    await open_database(f"sqlite:///{tmp_path}/a.sqlite", MIGRATIONS).close()
    engine = create_engine(f"sqlite:///{tmp_path}/a.sqlite")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Tables.metadata) == []
    engine.dispose()


async def test_rounds_of_an_older_database_learn_what_their_lines_had_had(tmp_path):
    """Agent a1 had 30 s and 3,000 steps over three rounds; a2 began from 10 s and 1,000 of them."""
    engine = create_engine(f"sqlite:///{tmp_path}/a.sqlite")
    with engine.begin() as connection:
        script = ScriptDirectory(str(FOLDER), version_locations=[str(FOLDER)]).get_revision("r0001")
        assert script is not None
        with Operations.context(MigrationContext.configure(connection)):
            script.module.upgrade()
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('r0001')"))
        connection.execute(text("INSERT INTO boards VALUES ('b', 'j', x'', 0, 1, 0, 2, 0)"))
        for number, steps, cost_s, rung in ((1, 3000, 30.0, 3), (2, 2000, 18.0, 2)):
            connection.execute(
                text(
                    "INSERT INTO agents (board, number, name, algorithm, spec, origin, state, "
                    "reason, lineage, create_time, waiting_since, env_steps, cost_s, rung, "
                    "started, replaced, failure, best_rung, best_env_steps, best_cost_s) VALUES "
                    "('b', :number, :name, 'ppo', x'', 'fresh', 'waiting', '', 'a1', 0, 0, :steps, "
                    ":cost_s, :rung, 1, '', '', 0, 0, 0.0)"
                ),
                {
                    "number": number,
                    "name": f"a{number}",
                    "steps": steps,
                    "cost_s": cost_s,
                    "rung": rung,
                },
            )
        for request, agent, rung, cost_s in (
            ("1", "a1", 1, 9.0),
            ("2", "a1", 2, 11.0),
            ("3", "a1", 3, 10.0),
            ("4", "a2", 2, 8.0),
        ):
            connection.execute(
                text(
                    "INSERT INTO rounds VALUES ('b', :request, :agent, 'a1', :rung, 1.0, :cost_s, "
                    "x'')"
                ),
                {"request": request, "agent": agent, "rung": rung, "cost_s": cost_s},
            )
    engine.dispose()
    await open_database(f"sqlite:///{tmp_path}/a.sqlite", MIGRATIONS).close()
    with create_engine(f"sqlite:///{tmp_path}/a.sqlite").connect() as connection:
        columns = "line_cost_s, line_env_steps, env_steps"
        rows = connection.execute(text(f"SELECT {columns} FROM rounds ORDER BY request_id")).all()
        acts = connection.execute(text("SELECT fork_request, pinned, stopping FROM agents")).all()
    assert acts == [("", 0, 0)] * 2, "no user has acted on them"
    assert rows == [(9.0, 1000, 1000), (20.0, 2000, 1000), (30.0, 3000, 1000), (18.0, 2000, 1000)]


def test_the_last_file_is_the_newest_revision():
    scripts = ScriptDirectory(str(FOLDER), version_locations=[str(FOLDER)])
    assert scripts.get_current_head() == newest_revision(FOLDER)
    for script in scripts.walk_revisions():
        assert Path(script.path).stem.startswith(f"{script.revision}_"), (
            "the start goes by the files' names"
        )


def test_deleting_a_board_needs_no_list_of_tables():
    for table in Tables.metadata.tables.values():
        if table.name != "boards":
            (key,) = table.foreign_key_constraints
            assert key.ondelete == "CASCADE", table.name


@pytest.mark.parametrize("table", sorted(Tables.metadata.tables))
def test_every_table_can_be_made_on_postgresql(table):
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.schema import CreateTable

    assert str(CreateTable(Tables.metadata.tables[table]).compile(dialect=postgresql.dialect()))

"""Brings a database's schema to the newest revision of a service's packaged Alembic migrations."""

from __future__ import annotations

import importlib.resources
import logging
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from podracer_core.errors import InvalidInput

logger = logging.getLogger(__name__)

VERSION_TABLE = "alembic_version"


def upgrade(engine: Engine, migrations_package: str) -> None:
    """Run what is missing, all in one transaction: killed half-way, it has not happened.

    `migrations_package` holds one file a revision, `<revision>_<what it does>.py` with revisions that sort
    (`r0001`, `r0002`). A database that is at the last one already costs one query, and Alembic is not imported.
    Raises InvalidInput for a database that a newer version of the service has written.
    """
    with (
        importlib.resources.as_file(importlib.resources.files(migrations_package)) as folder,
        engine.begin() as connection,
    ):
        current = current_revision(connection)
        if current != newest_revision(folder):
            _run(connection, folder, current)


def newest_revision(folder: Path) -> str:
    """The last revision of a folder of migrations, by its file's name."""
    return max(path.stem.split("_", 1)[0] for path in folder.glob("[!_]*.py"))


def current_revision(connection: Connection) -> str | None:
    """The revision that a database is at; None for an empty one."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608 - a constant


def _run(connection: Connection, folder: Path, current: str | None) -> None:
    # Late: a tenth of a second that only the first start after an update needs.
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory
    from alembic.script.revision import RevisionError

    scripts = ScriptDirectory(str(folder), version_locations=[str(folder)])
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    try:
        revisions = list(scripts.iterate_revisions("head", current or "base"))
    except RevisionError as error:
        raise InvalidInput(
            f"the database is at revision {current}, which this version does not know: use the version that wrote it",
            reason="DATABASE_TOO_NEW",
            revision=current,
        ) from error
    with Operations.context(context):
        for script in reversed(revisions):
            logger.info("migrating the database to %s: %s", script.revision, script.doc)
            script.module.upgrade()
            context.stamp(scripts, script.revision)

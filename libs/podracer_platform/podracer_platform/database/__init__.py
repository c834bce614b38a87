"""The durable state of a control service: SQLAlchemy over SQLite or PostgreSQL, Alembic migrations;
no torch.

database  `Database`: read operations, and write operations one at a time, on the newest revision of
          the schema
location  checks the URL, and reports why a database cannot be used
tenure    one active process for a database: a lock on a file, or a row with a term
standby   waits for the end of another process's tenure

Needs the extra `podracer-platform[database]`.
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_platform.database.database import (
        Database, PlainText, UtcTime, newest_revision, open_database,
    )
    from podracer_platform.database.location import make_engine, parse_url
    from podracer_platform.database.standby import wait_for_database
    from podracer_platform.database.tenure import NOT_ACTIVE, TABLE
else:
    __all__, __getattr__ = exports(__name__)

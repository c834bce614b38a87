"""The durable state of a control service: SQLAlchemy over SQLite or PostgreSQL, Alembic migrations; no torch.

database       Database: read and write sessions, one writer at a time
location       the URL, checked, and what is said when it cannot be used
migration      brings the schema to the newest revision at the start
instance_lock  one active process for a database
tenure         who may write to a PostgreSQL database after that lock was lost
columns        column types that SQLite lacks

Needs the extra `podracer-core[database]`.
"""

from podracer_core.database.columns import UtcTime
from podracer_core.database.database import Database, open_database

__all__ = ["Database", "UtcTime", "open_database"]

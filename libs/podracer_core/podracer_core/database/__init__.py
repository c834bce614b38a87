"""The durable state of a control service: SQLAlchemy over SQLite or PostgreSQL, Alembic migrations; no torch.

database  Database: read and write sessions, one writer at a time, at the newest revision of its schema; column types
location  the URL, checked, and what is said when it cannot be used
tenure    one active process for a database, and who may write to PostgreSQL after that lock was lost

Needs the extra `podracer-core[database]`.
"""

from podracer_core.database.database import Database, UtcTime, open_database

__all__ = ["Database", "UtcTime", "open_database"]

"""Alembic migrations of the orchestrator's database, one file a revision; a released one is never
edited."""

"""Alembic migrations of the leaderboard's database, one file a revision; a released one is never
edited."""

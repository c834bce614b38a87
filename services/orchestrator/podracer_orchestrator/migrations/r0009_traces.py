"""Jobs and what the leaderboard is told of them know the trace that they belong to."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, String

revision, down_revision = "r0009", "r0008"


def upgrade() -> None:
    """No trace is recorded yet."""
    for table in ("jobs", "outbox"):
        op.add_column(table, Column("traceparent", String(), nullable=False, server_default=""))

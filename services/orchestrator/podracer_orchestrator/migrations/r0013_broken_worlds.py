"""The lowest return of a job's intact episodes, the agents that cannot be first, and the speeds of
its algorithms."""

from __future__ import annotations

from alembic import op
from sqlalchemy import JSON, Column, Double

revision, down_revision = "r0013", "r0012"


def upgrade() -> None:
    """Nothing is known of earlier evaluations and rounds."""
    op.add_column("jobs", Column("lowest_return", Double(), nullable=True))
    op.add_column("jobs", Column("excluded", JSON(), nullable=True))
    op.add_column("jobs", Column("speeds", JSON(), nullable=True))

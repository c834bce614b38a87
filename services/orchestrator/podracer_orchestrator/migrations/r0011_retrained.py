"""The best candidate of a job, trained once more."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, LargeBinary

revision, down_revision = "r0011", "r0010"


def upgrade() -> None:
    """No job has asked for it so far."""
    op.add_column("jobs", Column("retrained", LargeBinary(), nullable=True))

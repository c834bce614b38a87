"""Checkpoints that turned out not to be what was committed."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Boolean, Column, false

revision, down_revision = "r0007", "r0006"


def upgrade() -> None:
    """None has been refused so far."""
    op.add_column(
        "checkpoints", Column("refused", Boolean(), nullable=False, server_default=false())
    )

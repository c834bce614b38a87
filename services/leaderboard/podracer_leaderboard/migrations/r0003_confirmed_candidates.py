"""Whether a candidate was confirmed, by which evaluations, and which one gave way to an unconfirmed
one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision, down_revision = "r0003", "r0002"


def upgrade() -> None:
    """No candidate is confirmed yet: no evaluation was a challenge."""
    op.add_column(
        "candidates",
        sa.Column("confirmed", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.add_column("candidates", sa.Column("former", sa.String(), nullable=False, server_default=""))
    op.add_column(
        "evaluations", sa.Column("challenged", sa.String(), nullable=False, server_default="")
    )

"""Whether the evaluation of a candidate is the final of its job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision, down_revision = "r0007", "r0006"


def upgrade() -> None:
    """No job has had a final so far."""
    with op.batch_alter_table("candidates") as candidates:
        candidates.add_column(
            sa.Column("final", sa.Boolean(), nullable=False, server_default=sa.false())
        )
    with op.batch_alter_table("candidates") as candidates:
        candidates.alter_column("final", server_default=None)

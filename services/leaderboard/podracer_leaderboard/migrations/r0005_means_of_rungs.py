"""What agents of a rung are compared by: a mean, of how many episodes, and how far these are from one another"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0005"
down_revision = "r0004"


def upgrade() -> None:
    """Of rounds before this nothing but the score is known: that stands for the mean, as if it were exact."""
    with op.batch_alter_table("rounds") as rounds:
        rounds.add_column(sa.Column("rung_score", sa.Double(), nullable=True))
    for table, prefix in (("rounds", ""), ("agents", "latest_")):
        with op.batch_alter_table(table) as rows:
            rows.add_column(sa.Column(f"{prefix}episodes", sa.BigInteger(), nullable=False, server_default="1"))
            rows.add_column(sa.Column(f"{prefix}variance", sa.Double(), nullable=False, server_default="0"))
        with op.batch_alter_table(table) as rows:
            rows.alter_column(f"{prefix}episodes", server_default=None)
            rows.alter_column(f"{prefix}variance", server_default=None)
    op.execute("UPDATE rounds SET rung_score = score")

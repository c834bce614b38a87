"""The mean by which agents of a rung are compared, the number of its episodes, and their
variance"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision, down_revision = "r0005", "r0004"


def upgrade() -> None:
    """Take the score of earlier rounds, of which nothing else is known, as the mean, as if it were
    exact."""
    with op.batch_alter_table("rounds") as rounds:
        rounds.add_column(sa.Column("rung_score", sa.Double(), nullable=True))
        rounds.add_column(
            sa.Column("episodes", sa.BigInteger(), nullable=False, server_default="1")
        )
        rounds.add_column(sa.Column("variance", sa.Double(), nullable=False, server_default="0"))
    with op.batch_alter_table("rounds") as rounds:
        rounds.alter_column("episodes", server_default=None)
        rounds.alter_column("variance", server_default=None)
    op.execute("UPDATE rounds SET rung_score = score")

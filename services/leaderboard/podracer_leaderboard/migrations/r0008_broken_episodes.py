"""Episodes of all evaluations, those that broke, and the lowest return of an intact one"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision, down_revision = "r0008", "r0007"
COUNTS = {
    "boards": ("episodes", "broken_episodes"),
    "agents": ("episodes", "broken_numbers", "broken_code"),
}


def upgrade() -> None:
    """Nothing was counted so far: count from now on. A batch would make `boards` anew, and delete
    what refers to it."""
    op.add_column("boards", sa.Column("lowest_return", sa.Double(), nullable=True))
    for table, columns in COUNTS.items():
        for column in columns:
            op.add_column(
                table, sa.Column(column, sa.BigInteger(), nullable=False, server_default="0")
            )

"""how many rounds have ended in an agent's place, which a generation's barrier counts by"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0004"
down_revision = "r0003"


def upgrade() -> None:
    """Agents of boards that are older than barriers have none to wait at."""
    with op.batch_alter_table("agents") as agents:
        agents.add_column(
            sa.Column("generation", sa.BigInteger(), nullable=False, server_default="0")
        )
    with op.batch_alter_table("agents") as agents:
        agents.alter_column("generation", server_default=None)

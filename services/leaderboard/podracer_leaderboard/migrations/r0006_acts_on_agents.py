"""What users do to agents: fork them, pin them, stop them"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision, down_revision = "r0006", "r0005"


def upgrade() -> None:
    """Before this no user could."""
    with op.batch_alter_table("agents") as agents:
        agents.add_column(sa.Column("fork_request", sa.String(), nullable=False, server_default=""))
        agents.add_column(sa.Column("pinned", sa.Boolean(), nullable=False, server_default=sa.false()))
        agents.add_column(sa.Column("stopping", sa.Boolean(), nullable=False, server_default=sa.false()))
    with op.batch_alter_table("agents") as agents:
        for column in ("fork_request", "pinned", "stopping"):
            agents.alter_column(column, server_default=None)
        agents.create_index("ix_agents_board_fork_request", ["board", "fork_request"])

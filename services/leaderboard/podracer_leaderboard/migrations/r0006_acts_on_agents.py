"""Acts of users on agents: they fork, pin and stop them"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision, down_revision = "r0006", "r0005"


def upgrade() -> None:
    """No agent has been forked, pinned or stopped by a user so far."""
    with op.batch_alter_table("agents") as agents:
        agents.add_column(sa.Column("fork_request", sa.String(), nullable=False, server_default=""))
        agents.add_column(
            sa.Column("pinned", sa.Boolean(), nullable=False, server_default=sa.false())
        )
        agents.add_column(
            sa.Column("stopping", sa.Boolean(), nullable=False, server_default=sa.false())
        )
    with op.batch_alter_table("agents") as agents:
        for column in ("fork_request", "pinned", "stopping"):
            agents.alter_column(column, server_default=None)
        agents.create_index("ix_agents_board_fork_request", ["board", "fork_request"])

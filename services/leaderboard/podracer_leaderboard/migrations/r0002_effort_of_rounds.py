"""Steps and cost of a line at the end of each round; the throughput of cohorts by size."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0002"
down_revision = "r0001"


def upgrade() -> None:
    """Costs of old rounds are exact: the agent's own less its later rounds'. Their steps are an
    estimate by rung."""
    with op.batch_alter_table("rounds") as rounds:
        rounds.add_column(
            sa.Column("env_steps", sa.BigInteger(), nullable=False, server_default="0")
        )
        rounds.add_column(
            sa.Column("line_env_steps", sa.BigInteger(), nullable=False, server_default="0")
        )
        rounds.add_column(sa.Column("line_cost_s", sa.Double(), nullable=False, server_default="0"))
    # The update finds each agent's later rounds by the new index; by the old one it would take
    # hours.
    op.drop_index("ix_rounds_board_rung", "rounds")
    op.create_index(
        "ix_rounds_board_agent_line_cost_s", "rounds", ["board", "agent", "line_cost_s"]
    )
    op.execute(
        """
        UPDATE rounds SET
            line_cost_s = (SELECT cost_s FROM agents WHERE agents.name = rounds.agent) - COALESCE(
                (SELECT SUM(later.cost_s) FROM rounds AS later WHERE later.board = rounds.board
                    AND later.agent = rounds.agent AND later.rung > rounds.rung), 0),
            line_env_steps = COALESCE(
                (SELECT env_steps * rounds.rung / NULLIF(rung, 0) FROM agents
                 WHERE agents.name = rounds.agent), 0),
            env_steps = COALESCE(
                (SELECT env_steps / NULLIF(rung, 0) FROM agents
                 WHERE agents.name = rounds.agent), 0)
        """
    )
    with op.batch_alter_table("rounds") as rounds:
        for column in ("env_steps", "line_env_steps", "line_cost_s"):
            rounds.alter_column(column, server_default=None)
    op.create_index(
        "ix_rounds_board_line_cost_s_agent_score",
        "rounds",
        ["board", "line_cost_s", "agent", "score"],
    )
    op.create_index(
        "ix_rounds_board_line_env_steps_agent_score",
        "rounds",
        ["board", "line_env_steps", "agent", "score"],
    )
    op.create_table(
        "throughputs",
        sa.Column("board", sa.String(), nullable=False),
        sa.Column("shape", sa.String(), nullable=False),
        sa.Column("member_count", sa.BigInteger(), nullable=False),
        sa.Column("env_steps", sa.Double(), nullable=False),
        sa.Column("cost_s", sa.Double(), nullable=False),
        sa.Column("rounds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("board", "shape", "member_count", name="pk_throughputs"),
        sa.ForeignKeyConstraint(
            ["board"], ["boards.name"], name="fk_throughputs_board", ondelete="CASCADE"
        ),
    )

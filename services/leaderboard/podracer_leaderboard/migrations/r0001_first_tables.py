"""the first tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "boards",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("spec", sa.LargeBinary(), nullable=False),
        sa.Column("update_time", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("clock", sa.BigInteger(), nullable=False),
        sa.Column("agent_count", sa.BigInteger(), nullable=False),
        sa.Column("proposal_count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_boards"),
        sa.UniqueConstraint("job", name="uq_boards_job"),
    )
    op.create_table(
        "agents",
        sa.Column("board", sa.String(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("algorithm", sa.String(), nullable=False),
        sa.Column("spec", sa.LargeBinary(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("lineage", sa.String(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.Column("waiting_since", sa.BigInteger(), nullable=False),
        sa.Column("env_steps", sa.BigInteger(), nullable=False),
        sa.Column("cost_s", sa.Double(), nullable=False),
        sa.Column("rung", sa.BigInteger(), nullable=False),
        sa.Column("started", sa.Boolean(), nullable=False),
        sa.Column("replaced", sa.String(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=False),
        sa.Column("latest_checkpoint", sa.LargeBinary(), nullable=True),
        sa.Column("latest_evaluation", sa.LargeBinary(), nullable=True),
        sa.Column("latest_score", sa.Double(), nullable=True),
        sa.Column("best_evaluation", sa.LargeBinary(), nullable=True),
        sa.Column("best_score", sa.Double(), nullable=True),
        sa.Column("best_rung", sa.BigInteger(), nullable=False),
        sa.Column("best_env_steps", sa.BigInteger(), nullable=False),
        sa.Column("best_cost_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("board", "number", name="pk_agents"),
        sa.ForeignKeyConstraint(
            ["board"], ["boards.name"], name="fk_agents_board", ondelete="CASCADE"
        ),
        sa.UniqueConstraint("name", name="uq_agents_name"),
    )
    op.create_index("ix_agents_board_lineage", "agents", ["board", "lineage"])
    op.create_index("ix_agents_board_state", "agents", ["board", "state"])
    op.create_table(
        "alias_changes",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("board", sa.String(), nullable=False),
        sa.Column("alias", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("checkpoint", sa.LargeBinary(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_alias_changes"),
        sa.ForeignKeyConstraint(
            ["board"], ["boards.name"], name="fk_alias_changes_board", ondelete="CASCADE"
        ),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_alias_changes_board_alias_number", "alias_changes", ["board", "alias", "number"]
    )
    op.create_index("ix_alias_changes_board_request_id", "alias_changes", ["board", "request_id"])
    op.create_table(
        "candidates",
        sa.Column("board", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("lineage", sa.String(), nullable=False),
        sa.Column("score", sa.Double(), nullable=False),
        sa.Column("mean", sa.Double(), nullable=False),
        sa.Column("entry_order", sa.BigInteger(), nullable=False),
        sa.Column("admit_time", sa.BigInteger(), nullable=False),
        sa.Column("evaluation", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("board", "agent", name="pk_candidates"),
        sa.ForeignKeyConstraint(
            ["board"], ["boards.name"], name="fk_candidates_board", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "evaluations",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("board", sa.String(), nullable=False),
        sa.Column("evaluation_id", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("has_checkpoint", sa.Boolean(), nullable=False),
        sa.Column("evaluation", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_evaluations"),
        sa.ForeignKeyConstraint(
            ["board"], ["boards.name"], name="fk_evaluations_board", ondelete="CASCADE"
        ),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_evaluations_board_agent_number", "evaluations", ["board", "agent", "number"]
    )
    op.create_index(
        "ix_evaluations_board_evaluation_id", "evaluations", ["board", "evaluation_id"], unique=True
    )
    op.create_table(
        "parents",
        sa.Column("board", sa.String(), nullable=False),
        sa.Column("child", sa.String(), nullable=False),
        sa.Column("place", sa.BigInteger(), nullable=False),
        sa.Column("parent", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("board", "child", "place", name="pk_parents"),
        sa.ForeignKeyConstraint(
            ["board"], ["boards.name"], name="fk_parents_board", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_parents_parent", "parents", ["parent"])
    op.create_table(
        "proposals",
        sa.Column("board", sa.String(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("response", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("board", "request_id", name="pk_proposals"),
        sa.ForeignKeyConstraint(
            ["board"], ["boards.name"], name="fk_proposals_board", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "rounds",
        sa.Column("board", sa.String(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("lineage", sa.String(), nullable=False),
        sa.Column("rung", sa.BigInteger(), nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("cost_s", sa.Double(), nullable=False),
        sa.Column("response", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("board", "request_id", name="pk_rounds"),
        sa.ForeignKeyConstraint(
            ["board"], ["boards.name"], name="fk_rounds_board", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_rounds_board_lineage", "rounds", ["board", "lineage"])
    op.create_index("ix_rounds_board_rung", "rounds", ["board", "rung"])

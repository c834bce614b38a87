"""Works that evaluate: challenges of candidates, and the ensemble at the end of a job."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Boolean, Column, Double, LargeBinary, String, false

revision, down_revision = "r0003", "r0002"


def upgrade() -> None:
    """Whatever is known so far was not confirmed."""
    op.add_column(
        "jobs", Column("best_is_confirmed", Boolean(), nullable=False, server_default=false())
    )
    op.add_column("jobs", Column("ensemble", LargeBinary(), nullable=True))
    op.add_column("works", Column("evaluation", LargeBinary(), nullable=True))
    op.add_column("works", Column("checkpoint", String(), nullable=True))
    op.add_column("works", Column("claimed_score", Double(), nullable=True))
    op.add_column(
        "works", Column("claims_target", Boolean(), nullable=False, server_default=false())
    )
    op.add_column("works", Column("expected_cost_s", Double(), nullable=False, server_default="0"))
    op.create_index("ix_works_checkpoint", "works", ["checkpoint"])

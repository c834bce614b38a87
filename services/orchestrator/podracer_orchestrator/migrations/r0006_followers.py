"""Leases that follow another one: whom, at which rank, what they have cost, and why they were
handed back."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, String

revision, down_revision = "r0006", "r0005"


def upgrade() -> None:
    """No lease follows another so far."""
    op.add_column("leases", Column("lead_fence", BigInteger(), nullable=True))
    op.add_column("leases", Column("rank", BigInteger(), nullable=True))
    op.add_column("leases", Column("cost_s", Double(), nullable=False, server_default="0"))
    op.add_column("leases", Column("cost_since", BigInteger(), nullable=True))
    op.add_column("leases", Column("left_for", String(), nullable=False, server_default=""))
    op.create_index("ix_leases_lead_fence", "leases", ["lead_fence"])

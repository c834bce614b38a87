"""Pods belong to the pool: what kind of pod they are, and no job of their own."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, String

revision, down_revision = "r0004", "r0003"


def upgrade() -> None:
    """Change the table of pods."""
    with op.batch_alter_table("pods") as pods:
        pods.drop_index("ix_pods_job_uid")
        pods.drop_constraint("fk_pods_job_uid", type_="foreignkey")
        pods.drop_column("job_uid")
        pods.add_column(Column("kind", String(), nullable=False, server_default=""))

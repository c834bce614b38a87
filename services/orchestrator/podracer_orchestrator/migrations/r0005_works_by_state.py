"""A job's works are looked up by their state, at every ask of a pod: also where it has tens of
thousands of them."""

from __future__ import annotations

from alembic import op

revision, down_revision = "r0005", "r0004"


def upgrade() -> None:
    """One index takes the place of another that it begins with."""
    op.create_index("ix_works_job_uid_state", "works", ["job_uid", "state"])
    op.drop_index("ix_works_job_uid", "works")

"""What a job's request was, so that its request_id is not used for another one."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, String

revision, down_revision = "r0014", "r0013"


def upgrade() -> None:
    """The requests of present jobs are not known."""
    op.add_column("jobs", Column("request_digest", String(), nullable=False, server_default=""))

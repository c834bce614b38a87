"""The held leases of a job, and of a pod, are looked up at every call: also where there have been
many thousands."""

from __future__ import annotations

from alembic import op

revision, down_revision = "r0008", "r0007"


def upgrade() -> None:
    """Indexes take the places of others that they begin with."""
    for column in ("job_uid", "pod"):
        op.create_index(f"ix_leases_{column}_state", "leases", [column, "state"])
        op.drop_index(f"ix_leases_{column}", "leases")

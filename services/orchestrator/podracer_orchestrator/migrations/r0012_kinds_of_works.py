"""A kind for each thing that is evaluated, in place of EVALUATE."""

from __future__ import annotations

from alembic import op

revision, down_revision = "r0012", "r0011"


def upgrade() -> None:
    """Fill in the kinds of works, which until now followed from other columns."""
    op.execute(
        "UPDATE works SET kind = CASE WHEN checkpoint IS NOT NULL THEN 'CHALLENGE'"
        " WHEN contest <> '' THEN 'CONTEST' ELSE 'ENSEMBLE' END WHERE kind = 'EVALUATE'"
    )
    op.execute(
        "UPDATE leases SET kind = (SELECT works.kind FROM works WHERE works.id = leases.work_id)"
        " WHERE kind = 'EVALUATE'"
    )

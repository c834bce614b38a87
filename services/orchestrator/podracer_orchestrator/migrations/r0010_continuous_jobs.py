"""Jobs that make others, what was promoted, and the evaluations by which that was decided."""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    UniqueConstraint,
    false,
)

revision, down_revision = "r0010", "r0009"


def upgrade() -> None:
    """No job is a continuous one so far, and nothing was promoted."""
    op.add_column(
        "jobs", Column("is_continuous", Boolean(), nullable=False, server_default=false())
    )
    op.add_column("jobs", Column("parent_uid", String(), nullable=True))
    op.add_column("jobs", Column("generation", BigInteger(), nullable=False, server_default="0"))
    op.create_index("ix_jobs_parent_uid", "jobs", ["parent_uid"])
    op.add_column("works", Column("contest", String(), nullable=False, server_default=""))
    op.add_column("works", Column("result", LargeBinary(), nullable=True))
    op.create_table(
        "continuations",
        Column("job_uid", String(), nullable=False),
        Column("generation", BigInteger(), nullable=False),
        Column("child_uid", String(), nullable=True),
        Column("data_sha256", String(), nullable=False),
        Column("next_time", BigInteger(), nullable=True),
        ForeignKeyConstraint(["job_uid"], ["jobs.uid"], name="fk_continuations_job_uid"),
        PrimaryKeyConstraint("job_uid", name="pk_continuations"),
    )
    op.create_table(
        "promotions",
        Column(
            "id", BigInteger().with_variant(Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        Column("job_uid", String(), nullable=False),
        Column("position", BigInteger(), nullable=False),
        Column("alias", String(), nullable=False),
        Column("decision", String(), nullable=False),
        Column("agent", String(), nullable=False),
        Column("checkpoint", LargeBinary(), nullable=True),
        Column("prefix", String(), nullable=False),
        Column("generation", BigInteger(), nullable=False),
        Column("child", String(), nullable=False),
        Column("data_sha256", String(), nullable=False),
        Column("champion", LargeBinary(), nullable=True),
        Column("challenger", LargeBinary(), nullable=True),
        Column("reason", String(), nullable=False),
        Column("request_id", String(), nullable=True),
        Column("create_time", BigInteger(), nullable=False),
        ForeignKeyConstraint(["job_uid"], ["jobs.uid"], name="fk_promotions_job_uid"),
        PrimaryKeyConstraint("id", name="pk_promotions"),
        UniqueConstraint("job_uid", "position", name="uq_promotions_job_uid_position"),
        UniqueConstraint("job_uid", "request_id", name="uq_promotions_job_uid_request_id"),
        sqlite_autoincrement=True,
    )

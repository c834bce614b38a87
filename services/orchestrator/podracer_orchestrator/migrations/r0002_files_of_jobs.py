"""The uploaded files that a job needs."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, ForeignKeyConstraint, PrimaryKeyConstraint, String

revision, down_revision = "r0002", "r0001"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "job_files",
        Column("job_uid", String(), nullable=False),
        Column("project", String(), nullable=False),
        Column("artifact_id", String(), nullable=False),
        ForeignKeyConstraint(["job_uid"], ["jobs.uid"], name="fk_job_files_job_uid"),
        ForeignKeyConstraint(
            ["project", "artifact_id"],
            ["artifacts.project", "artifacts.artifact_id"],
            name="fk_job_files_project_artifact_id",
        ),
        PrimaryKeyConstraint("job_uid", "project", "artifact_id", name="pk_job_files"),
    )
    op.create_index("ix_job_files_project_artifact_id", "job_files", ["project", "artifact_id"])

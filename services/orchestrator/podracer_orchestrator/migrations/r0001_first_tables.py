"""The first tables."""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    UniqueConstraint,
)

revision, down_revision = "r0001", None


def upgrade() -> None:
    """Make all tables."""
    op.create_table(
        "artifacts",
        Column("project", String(), nullable=False),
        Column("artifact_id", String(), nullable=False),
        Column("request_id", String(), nullable=True),
        Column("kind", String(), nullable=False),
        Column("key", String(), nullable=False),
        Column("size_bytes", BigInteger(), nullable=False),
        Column("sha256", String(), nullable=False),
        Column("create_time", BigInteger(), nullable=False),
        PrimaryKeyConstraint("project", "artifact_id", name="pk_artifacts"),
        UniqueConstraint("project", "request_id", name="uq_artifacts_project_request_id"),
    )
    op.create_table(
        "jobs",
        Column("uid", String(), nullable=False),
        Column("project", String(), nullable=False),
        Column("job_id", String(), nullable=False),
        Column("request_id", String(), nullable=True),
        Column("spec", LargeBinary(), nullable=False),
        Column("description", LargeBinary(), nullable=True),
        Column("state", String(), nullable=False),
        Column("outcome", String(), nullable=False),
        Column("problem", LargeBinary(), nullable=True),
        Column("revision", BigInteger(), nullable=False),
        Column("event_position", BigInteger(), nullable=False),
        Column("env_steps", BigInteger(), nullable=False),
        Column("cost_s", Double(), nullable=False),
        Column("evaluation_cost_s", Double(), nullable=False),
        Column("active_time_s", Double(), nullable=False),
        Column("active_since", BigInteger(), nullable=True),
        Column("time_to_target_s", Double(), nullable=True),
        Column("best", LargeBinary(), nullable=True),
        Column("best_score", Double(), nullable=True),
        Column("best_is_full", Boolean(), nullable=False),
        Column("agent_count", BigInteger(), nullable=False),
        Column("completed_rounds", BigInteger(), nullable=False),
        Column("failed_works", BigInteger(), nullable=False),
        Column("rounds_over", Boolean(), nullable=False),
        Column("create_time", BigInteger(), nullable=False),
        Column("start_time", BigInteger(), nullable=True),
        Column("end_time", BigInteger(), nullable=True),
        PrimaryKeyConstraint("uid", name="pk_jobs"),
        UniqueConstraint("project", "job_id", name="uq_jobs_project_job_id"),
        UniqueConstraint("project", "request_id", name="uq_jobs_project_request_id"),
    )
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_table(
        "outbox",
        Column(
            "id", BigInteger().with_variant(Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        Column("board", String(), nullable=False),
        Column("job_uid", String(), nullable=False),
        Column("method", String(), nullable=False),
        Column("request", LargeBinary(), nullable=False),
        PrimaryKeyConstraint("id", name="pk_outbox"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_outbox_board", "outbox", ["board"])
    op.create_table(
        "settings",
        Column("name", String(), nullable=False),
        Column("value", LargeBinary(), nullable=False),
        PrimaryKeyConstraint("name", name="pk_settings"),
    )
    op.create_table(
        "checkpoints",
        Column("prefix", String(), nullable=False),
        Column("job_uid", String(), nullable=False),
        Column("agent", String(), nullable=False),
        Column("checkpoint_id", String(), nullable=False),
        Column("manifest_sha256", String(), nullable=False),
        Column("size_bytes", BigInteger(), nullable=False),
        Column("env_steps", BigInteger(), nullable=False),
        Column("fence", BigInteger(), nullable=False),
        Column("create_time", BigInteger(), nullable=False),
        ForeignKeyConstraint(["job_uid"], ["jobs.uid"], name="fk_checkpoints_job_uid"),
        PrimaryKeyConstraint("prefix", name="pk_checkpoints"),
    )
    op.create_index(
        "ix_checkpoints_job_uid_agent_env_steps", "checkpoints", ["job_uid", "agent", "env_steps"]
    )
    op.create_table(
        "events",
        Column("job_uid", String(), nullable=False),
        Column("position", BigInteger(), nullable=False),
        Column("kind", String(), nullable=False),
        Column("message", String(), nullable=False),
        Column("subject", String(), nullable=False),
        Column("time", BigInteger(), nullable=False),
        Column("details", JSON(), nullable=False),
        ForeignKeyConstraint(["job_uid"], ["jobs.uid"], name="fk_events_job_uid"),
        PrimaryKeyConstraint("job_uid", "position", name="pk_events"),
    )
    op.create_table(
        "pods",
        Column("name", String(), nullable=False),
        Column("project", String(), nullable=False),
        Column("job_uid", String(), nullable=True),
        Column("backend", String(), nullable=False),
        Column("state", String(), nullable=False),
        Column("layout", String(), nullable=False),
        Column("address", String(), nullable=False),
        Column("instance_id", String(), nullable=False),
        Column("build", LargeBinary(), nullable=True),
        Column("restart_count", BigInteger(), nullable=False),
        Column("message", String(), nullable=False),
        Column("create_time", BigInteger(), nullable=False),
        Column("last_seen_time", BigInteger(), nullable=False),
        ForeignKeyConstraint(["job_uid"], ["jobs.uid"], name="fk_pods_job_uid"),
        PrimaryKeyConstraint("name", name="pk_pods"),
    )
    op.create_index("ix_pods_job_uid", "pods", ["job_uid"])
    op.create_table(
        "works",
        Column("id", String(), nullable=False),
        Column("job_uid", String(), nullable=False),
        Column("kind", String(), nullable=False),
        Column("state", String(), nullable=False),
        Column("places", BigInteger(), nullable=False),
        Column("proposal", LargeBinary(), nullable=True),
        Column("attempts", BigInteger(), nullable=False),
        Column("problem", LargeBinary(), nullable=True),
        Column("create_time", BigInteger(), nullable=False),
        Column("end_time", BigInteger(), nullable=True),
        ForeignKeyConstraint(["job_uid"], ["jobs.uid"], name="fk_works_job_uid"),
        PrimaryKeyConstraint("id", name="pk_works"),
    )
    op.create_index("ix_works_job_uid", "works", ["job_uid"])
    op.create_index("ix_works_state", "works", ["state"])
    op.create_table(
        "leases",
        Column(
            "fence",
            BigInteger().with_variant(Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        Column("id", String(), nullable=False),
        Column("work_id", String(), nullable=False),
        Column("job_uid", String(), nullable=False),
        Column("kind", String(), nullable=False),
        Column("pod", String(), nullable=False),
        Column("instance_id", String(), nullable=False),
        Column("request_id", String(), nullable=False),
        Column("state", String(), nullable=False),
        Column("member_env_steps", BigInteger(), nullable=False),
        Column("time_s", Double(), nullable=True),
        Column("is_cut", Boolean(), nullable=False),
        Column("reserved_env_steps", BigInteger(), nullable=False),
        Column("reserved_cost_s", Double(), nullable=False),
        Column("active_time_s", Double(), nullable=False),
        Column("grant_time", BigInteger(), nullable=False),
        Column("end_time", BigInteger(), nullable=True),
        ForeignKeyConstraint(["job_uid"], ["jobs.uid"], name="fk_leases_job_uid"),
        ForeignKeyConstraint(["work_id"], ["works.id"], name="fk_leases_work_id"),
        PrimaryKeyConstraint("fence", name="pk_leases"),
        UniqueConstraint("id", name="uq_leases_id"),
        UniqueConstraint("request_id", name="uq_leases_request_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_leases_job_uid", "leases", ["job_uid"])
    op.create_index("ix_leases_pod", "leases", ["pod"])
    op.create_index("ix_leases_state", "leases", ["state"])
    op.create_index("ix_leases_work_id", "leases", ["work_id"])
    op.create_table(
        "work_members",
        Column("work_id", String(), nullable=False),
        Column("position", BigInteger(), nullable=False),
        Column("agent", String(), nullable=False),
        Column("env_steps", BigInteger(), nullable=False),
        Column("cost_s", Double(), nullable=False),
        Column("evaluation_cost_s", Double(), nullable=False),
        Column("base_env_steps", BigInteger(), nullable=False),
        Column("base_cost_s", Double(), nullable=False),
        Column("base_evaluation_cost_s", Double(), nullable=False),
        Column("checkpoint", String(), nullable=True),
        ForeignKeyConstraint(
            ["checkpoint"], ["checkpoints.prefix"], name="fk_work_members_checkpoint"
        ),
        ForeignKeyConstraint(["work_id"], ["works.id"], name="fk_work_members_work_id"),
        PrimaryKeyConstraint("work_id", "position", name="pk_work_members"),
    )

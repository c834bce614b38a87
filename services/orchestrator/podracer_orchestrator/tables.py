"""The orchestrator's tables. Messages are stored in protobuf's wire form.

jobs ──< works ──< work_members        requests, pieces of work, members of a cohort
  │        └──< leases                 the pod that holds a piece; the fence is the primary key and
                                       only grows
  ├──< checkpoints, events, outbox     committed checkpoints, events, calls to the leaderboard still
                                       to be made
  │                                    pods, settings: without relations
  ├──< job_files >── artifacts         the uploaded files that a job needs
  └──< continuations, promotions       the state of a continuous job; the history of aliases with
                                       reasons
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from podracer_platform.database import PlainText, UtcTime

BigKey = BigInteger().with_variant(Integer, "sqlite")
"""SQLite assigns increasing keys only in a column of type INTEGER, which has 64 bits there, too."""


class WorkKind(StrEnum):
    INSPECT = "INSPECT"
    TRAIN = "TRAIN"
    CHALLENGE = "CHALLENGE"
    """A candidate that claims the target or the first place is evaluated again (`challenges`)."""
    FINAL = "FINAL"
    """Evaluate one of the best candidates, or the chosen one of them, at the end of a job
    (`finals`)."""
    ENSEMBLE = "ENSEMBLE"
    """Evaluate an ensemble of the best candidates, at the end of a job (`ensembles`)."""
    RETRAIN = "RETRAIN"
    """Train the best candidate again, at the end of a job (`retraining`)."""
    CONTEST = "CONTEST"
    """Evaluate champion or challenger, at the end of a generation (`contests`)."""
    FOLLOW = "FOLLOW"
    """Leases only: a lease on the work that another lease, the lead's, trains (`followers`)."""


class WorkState(StrEnum):
    PROPOSING = "PROPOSING"
    """Its id is, or will be, that of a request to the leaderboard whose answer is not stored
    yet."""
    READY = "READY"
    LEASED = "LEASED"
    DONE = "DONE"
    FAILED = "FAILED"
    DROPPED = "DROPPED"
    """Its job ended before it was done."""


class LeaseState(StrEnum):
    HELD = "HELD"
    COMPLETED = "COMPLETED"
    RELEASED = "RELEASED"
    EXPIRED = "EXPIRED"


class PodState(StrEnum):
    STARTING = "STARTING"
    IDLE = "IDLE"
    WORKING = "WORKING"
    DRAINING = "DRAINING"
    LOST = "LOST"
    STOPPED = "STOPPED"


class Base(DeclarativeBase):
    """Constraints have names, so that a later migration can refer to them."""

    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's own form
        bytes: LargeBinary,
        datetime: UtcTime,
        dict[str, Any]: JSON,
        int: BigInteger,
        str: PlainText,
    }


class JobRow(Base):
    """A job. `env_steps`, `cost_s` and `evaluation_cost_s` are those of committed checkpoints."""

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("project", "job_id"),
        UniqueConstraint("project", "request_id"),
    )

    uid: Mapped[str] = mapped_column(primary_key=True)
    project: Mapped[str]
    job_id: Mapped[str]
    request_id: Mapped[str | None]
    request_digest: Mapped[str] = mapped_column(default="")
    """SHA-256 of its CreateJobRequest; empty for a job of an earlier version."""
    spec: Mapped[bytes]
    description: Mapped[bytes | None]
    state: Mapped[str] = mapped_column(index=True)
    outcome: Mapped[str] = mapped_column(default="")
    problem: Mapped[bytes | None]
    revision: Mapped[int] = mapped_column(default=1)
    event_position: Mapped[int] = mapped_column(default=0)

    env_steps: Mapped[int] = mapped_column(default=0)
    cost_s: Mapped[float] = mapped_column(default=0.0)
    evaluation_cost_s: Mapped[float] = mapped_column(default=0.0)
    active_time_s: Mapped[float] = mapped_column(default=0.0)
    active_since: Mapped[datetime | None]
    """The start of the time that is not in `active_time_s` yet; set while a lease is held that
    trains or evaluates."""
    time_to_target_s: Mapped[float | None]
    best: Mapped[bytes | None]
    best_score: Mapped[float | None]
    best_is_full: Mapped[bool] = mapped_column(default=False)
    best_is_confirmed: Mapped[bool] = mapped_column(default=False)
    """Whether the best evaluation is a challenge: one with fresh seeds."""
    lowest_return: Mapped[float | None]
    """The lowest return of an intact evaluated episode, which broken ones count with."""
    excluded: Mapped[dict[str, Any] | None]
    """The agents that can be neither the best nor reach the target: the leaderboard's last word,
    and why."""
    speeds: Mapped[dict[str, Any] | None]
    """Environment steps per second of each algorithm's last round."""
    ensemble: Mapped[bytes | None]
    retrained: Mapped[bytes | None]
    """The best candidate, trained again (`retraining`)."""
    agent_count: Mapped[int] = mapped_column(default=0)
    completed_rounds: Mapped[int] = mapped_column(default=0)
    failed_works: Mapped[int] = mapped_column(default=0)
    """The number of works that failed in succession, without a commit between them."""
    is_continuous: Mapped[bool] = mapped_column(default=False)
    """Whether it trains nothing itself but creates jobs that do, one per generation
    (`generations`)."""
    parent_uid: Mapped[str | None] = mapped_column(index=True)
    """The continuous job that created this one."""
    generation: Mapped[int] = mapped_column(default=0)
    """Its number among those of its parent, from 1."""
    rounds_over: Mapped[bool] = mapped_column(default=False)
    """No further round will begin: the leaderboard answered so, or the rest of the budget is too
    small for one."""

    create_time: Mapped[datetime]
    start_time: Mapped[datetime | None]
    end_time: Mapped[datetime | None]
    traceparent: Mapped[str] = mapped_column(default="")
    """The span of its CreateJob: all operations for the job belong to that trace. Empty without a
    recorded trace."""


class WorkRow(Base):
    """A piece of work: `proposal` has the agents to train (ProposeCohortResponse), `evaluation` the
    evaluation (EvaluateWork, without its environment if that is the job's)."""

    __tablename__ = "works"
    __table_args__ = (Index(None, "job_uid", "state"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    job_uid: Mapped[str] = mapped_column(ForeignKey("jobs.uid"))
    kind: Mapped[str]
    state: Mapped[str] = mapped_column(index=True)
    places: Mapped[int] = mapped_column(default=0)
    """Agents of its cohort; for RETRAIN, of the one in which the candidate was trained."""
    proposal: Mapped[bytes | None]
    attempts: Mapped[int] = mapped_column(default=0)
    """The number of leases lost since the last commit."""
    problem: Mapped[bytes | None]
    evaluation: Mapped[bytes | None]
    checkpoint: Mapped[str | None] = mapped_column(index=True)
    """For CHALLENGE works: the checkpoint's prefix. No checkpoint is challenged twice."""
    contest: Mapped[str] = mapped_column(default="")
    """For CONTEST works: the evaluated side, `champion` or `challenger` (`contests`)."""
    result: Mapped[bytes | None]
    """For FINAL and CONTEST works: the Evaluation."""
    claimed_score: Mapped[float | None]
    claims_target: Mapped[bool] = mapped_column(default=False)
    expected_cost_s: Mapped[float] = mapped_column(default=0.0)
    create_time: Mapped[datetime]
    end_time: Mapped[datetime | None]
    members: Mapped[list[MemberRow]] = relationship(
        order_by="MemberRow.position", passive_deletes="all"
    )
    """Members of TRAIN and RETRAIN works, once the agents are known, in the order of the cohort."""


class MemberRow(Base):
    """A member of a TRAIN work: the progress committed over all its leases, and at the start of the
    current one."""

    __tablename__ = "work_members"

    work_id: Mapped[str] = mapped_column(ForeignKey("works.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    agent: Mapped[str]
    env_steps: Mapped[int] = mapped_column(default=0)
    cost_s: Mapped[float] = mapped_column(default=0.0)
    evaluation_cost_s: Mapped[float] = mapped_column(default=0.0)
    base_env_steps: Mapped[int] = mapped_column(default=0)
    base_cost_s: Mapped[float] = mapped_column(default=0.0)
    base_evaluation_cost_s: Mapped[float] = mapped_column(default=0.0)
    checkpoint: Mapped[str | None] = mapped_column(ForeignKey("checkpoints.prefix"))


class LeaseRow(Base):
    """A lease. Its deadline is not stored: it is in memory (leases/leases.py)."""

    __tablename__ = "leases"
    __table_args__ = (
        Index(None, "job_uid", "state"),
        Index(None, "pod", "state"),
        {"sqlite_autoincrement": True},
    )

    fence: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(unique=True)
    work_id: Mapped[str] = mapped_column(ForeignKey("works.id"), index=True)
    job_uid: Mapped[str] = mapped_column(ForeignKey("jobs.uid"))
    kind: Mapped[str]
    pod: Mapped[str]
    instance_id: Mapped[str]
    request_id: Mapped[str] = mapped_column(unique=True)
    state: Mapped[str] = mapped_column(index=True)
    member_env_steps: Mapped[int] = mapped_column(default=0)
    """The limit of environment steps of each member in this lease; 0 for none."""
    time_s: Mapped[float | None]
    """Limit in seconds of training; none for none."""
    is_cut: Mapped[bool] = mapped_column(default=False)
    """Whether the budget shortened the round."""
    reserved_env_steps: Mapped[int] = mapped_column(default=0)
    reserved_cost_s: Mapped[float] = mapped_column(default=0.0)
    active_time_s: Mapped[float] = mapped_column(default=0.0)
    """Active time of the job when the lease was granted."""
    lead_fence: Mapped[int | None] = mapped_column(index=True)
    """For FOLLOW leases: the fence of the lease that it follows."""
    rank: Mapped[int | None]
    """For FOLLOW leases: its place in the team, 1 or more."""
    cost_s: Mapped[float] = mapped_column(default=0.0)
    """For FOLLOW leases: device seconds, counted in the job's cost too."""
    cost_since: Mapped[datetime | None]
    """The start of the time that is not in `cost_s` yet; set while a FOLLOW lease is held."""
    left_for: Mapped[str] = mapped_column(default="")
    """For FOLLOW leases: the error for which its pod returned it, if there was one."""
    grant_time: Mapped[datetime]
    end_time: Mapped[datetime | None]


class CheckpointRow(Base):
    """A committed checkpoint; `refused` once a pod has found that its content is not what was
    committed."""

    __tablename__ = "checkpoints"
    __table_args__ = (Index(None, "job_uid", "agent", "env_steps"),)

    prefix: Mapped[str] = mapped_column(primary_key=True)
    job_uid: Mapped[str] = mapped_column(ForeignKey("jobs.uid"))
    agent: Mapped[str]
    checkpoint_id: Mapped[str]
    manifest_sha256: Mapped[str]
    size_bytes: Mapped[int]
    env_steps: Mapped[int]
    fence: Mapped[int]
    create_time: Mapped[datetime]
    refused: Mapped[bool] = mapped_column(default=False)


class PodRow(Base):
    """A pod, even after it has left. Its lease refers to its work."""

    __tablename__ = "pods"

    name: Mapped[str] = mapped_column(primary_key=True)
    project: Mapped[str]
    backend: Mapped[str]
    kind: Mapped[str] = mapped_column(default="")
    """PodKind.name of a pod that the pool has started; empty for one that was started elsewhere."""
    state: Mapped[str]
    layout: Mapped[str] = mapped_column(default="")
    address: Mapped[str] = mapped_column(default="")
    instance_id: Mapped[str] = mapped_column(default="")
    build: Mapped[bytes | None]
    restart_count: Mapped[int] = mapped_column(default=0)
    message: Mapped[str] = mapped_column(default="")
    create_time: Mapped[datetime]
    last_seen_time: Mapped[datetime]


class EventRow(Base):
    """An event of a job; positions count from 1 without gaps."""

    __tablename__ = "events"

    job_uid: Mapped[str] = mapped_column(ForeignKey("jobs.uid"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    message: Mapped[str]
    subject: Mapped[str] = mapped_column(default="")
    time: Mapped[datetime]
    details: Mapped[dict[str, Any]] = mapped_column(default=dict)


class OutboxRow(Base):
    """A call to the leaderboard that is still to be made; `job_uid` may belong to a job deleted
    since.

    Order is kept for each `board`, by name: a new job may have the name of a deleted one.
    """

    __tablename__ = "outbox"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    board: Mapped[str] = mapped_column(index=True)
    job_uid: Mapped[str]
    method: Mapped[str]
    request: Mapped[bytes]
    traceparent: Mapped[str] = mapped_column(default="")
    """The span that caused the call; empty without a recorded trace."""


class ArtifactRow(Base):
    """An uploaded file."""

    __tablename__ = "artifacts"
    __table_args__ = (UniqueConstraint("project", "request_id"),)

    project: Mapped[str] = mapped_column(primary_key=True)
    artifact_id: Mapped[str] = mapped_column(primary_key=True)
    request_id: Mapped[str | None]
    kind: Mapped[str]
    key: Mapped[str]
    size_bytes: Mapped[int]
    sha256: Mapped[str]
    create_time: Mapped[datetime]


class JobFileRow(Base):
    """An uploaded file that a job needs: it is kept as long as the job."""

    __tablename__ = "job_files"
    __table_args__ = (
        ForeignKeyConstraint(
            ["project", "artifact_id"], ["artifacts.project", "artifacts.artifact_id"]
        ),
        Index(None, "project", "artifact_id"),
    )

    job_uid: Mapped[str] = mapped_column(ForeignKey("jobs.uid"), primary_key=True)
    project: Mapped[str] = mapped_column(primary_key=True)
    artifact_id: Mapped[str] = mapped_column(primary_key=True)


class ContinuationRow(Base):
    """The state of a continuous job: the newest generation, and its inputs."""

    __tablename__ = "continuations"

    job_uid: Mapped[str] = mapped_column(ForeignKey("jobs.uid"), primary_key=True)
    generation: Mapped[int] = mapped_column(default=0)
    child_uid: Mapped[str | None]
    """The job of the newest generation, until the decision about its result."""
    data_sha256: Mapped[str] = mapped_column(default="")
    next_time: Mapped[datetime | None]


class Decision(StrEnum):
    PROMOTED = "PROMOTED"
    KEPT = "KEPT"
    FAILED = "FAILED"
    ROLLED_BACK = "ROLLED_BACK"


class PromotionRow(Base):
    """A decision about an alias; positions count from 1 without gaps. `prefix` is that of
    `checkpoint`."""

    __tablename__ = "promotions"
    __table_args__ = (
        UniqueConstraint("job_uid", "position"),
        UniqueConstraint("job_uid", "request_id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    job_uid: Mapped[str] = mapped_column(ForeignKey("jobs.uid"))
    position: Mapped[int]
    alias: Mapped[str]
    decision: Mapped[str]
    agent: Mapped[str] = mapped_column(default="")
    """The new target of the alias: the agent, and its checkpoint (CheckpointReference)."""
    checkpoint: Mapped[bytes | None]
    prefix: Mapped[str] = mapped_column(default="")
    generation: Mapped[int] = mapped_column(default=0)
    child: Mapped[str] = mapped_column(default="")
    """Name of the generation's job."""
    data_sha256: Mapped[str] = mapped_column(default="")
    champion: Mapped[bytes | None]
    challenger: Mapped[bytes | None]
    """The results of both in the contest (Evaluation)."""
    reason: Mapped[str]
    request_id: Mapped[str | None]
    create_time: Mapped[datetime]


class SettingRow(Base):
    """Values that must survive a restart and belong to no job."""

    __tablename__ = "settings"

    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[bytes]

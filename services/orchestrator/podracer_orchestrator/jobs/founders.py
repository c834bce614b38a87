"""Founders, the agents of other jobs that a job's first agents start from: lookup, checks,
retention."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, environment_pb2, evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.catalogue.spaces import Space, form_of
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_orchestrator.jobs.job_files import is_uploaded
from podracer_orchestrator.jobs.state import LIVE_STATES
from podracer_orchestrator.stored_messages import (
    checkpoint_reference,
    description_of,
    proposal_of,
    spec_of,
)
from podracer_orchestrator.tables import ArtifactRow, CheckpointRow, JobRow, MemberRow, WorkRow
from podracer_platform.messages.catalogue import space_from_message


def resolved(session: Session, project: str, spec: job_pb2.JobSpec) -> job_pb2.JobSpec:
    """The spec with the whole reference of each founder's checkpoint.

    Raises InvalidInput for a checkpoint that was not committed like this in the project.
    """
    violations = []
    result = job_pb2.JobSpec()
    result.CopyFrom(spec)
    for place, founder in enumerate(result.founders):
        if is_uploaded(founder):
            key = founder.checkpoint.prefix
            query = select(ArtifactRow.size_bytes).where(
                ArtifactRow.project == project, ArtifactRow.key == key
            )
            founder.checkpoint.size_bytes = session.scalar(query) or 0
            continue  # `job_files` requires it
        row = session.get(CheckpointRow, founder.checkpoint.prefix)
        owner = None if row is None else session.get(JobRow, row.job_uid)
        known = (founder.agent, founder.checkpoint.manifest_sha256)
        if (
            row is None
            or owner is None
            or owner.project != project
            or (row.agent, row.manifest_sha256) != known
        ):
            message = (
                f"projects/{project} has no such checkpoint of {founder.agent!r}, with this "
                "manifest"
            )
            violations.append(FieldViolation(f"founders[{place}]", message))
        else:
            founder.checkpoint.CopyFrom(checkpoint_reference(row))
    if violations:
        raise InvalidInput(
            "; ".join(map(str, violations)), violations=violations, reason="INVALID_FOUNDER"
        )
    return result


def fitting(session: Session, job: JobRow) -> list[evolution_pb2.Founder]:
    """The founders of a job that can act in its environment, which is known; of uploaded ones a
    learner finds out."""
    found = spec_of(job).founders
    return [
        each for each in found if is_uploaded(each) or fits(session, job, each.checkpoint.prefix)
    ]


def fits(session: Session, job: JobRow, prefix: str) -> bool:
    """Whether a checkpoint's agent was trained with the spaces of the job's environment; False if
    it is gone."""
    trained, own = trained_in(session, prefix), description_of(job)
    if trained is None:
        return False
    is_same = (trained.observation_space, trained.action_space) == (
        own.observation_space,
        own.action_space,
    )
    return is_same or _forms(trained) == _forms(own)


def trained_in(session: Session, prefix: str) -> environment_pb2.EnvironmentDescription | None:
    """The environment of the job of a checkpoint; None if it is gone."""
    row = session.get(CheckpointRow, prefix)
    owner = None if row is None else session.get(JobRow, row.job_uid)
    return None if owner is None or owner.description is None else description_of(owner)


def _forms(description: environment_pb2.EnvironmentDescription) -> list[Space]:
    spaces = (description.observation_space, False), (description.action_space, True)
    return [form_of(space_from_message(space), bounds=bounds) for space, bounds in spaces]


def of_checkpoint(session: Session, agent: str, prefix: str) -> evolution_pb2.Founder | None:
    """An agent as a founder; None if its checkpoint is gone or damaged, or its specification is
    unknown."""
    row = session.get(CheckpointRow, prefix)
    if row is None or row.refused:
        return None
    spec = next((spec for spec in cohort_of(session, row) if spec.name == agent), None)
    if spec is None:
        return None
    return evolution_pb2.Founder(
        agent=agent,
        checkpoint=checkpoint_reference(row),
        algorithm=spec.algorithm,
        hyperparameters=dict(spec.hyperparameters),
    )


def cohort_of(session: Session, row: CheckpointRow) -> list[agent_pb2.AgentSpec]:
    """The cohort in which the agent of a checkpoint was last trained; empty if unknown."""
    query = (
        select(WorkRow)
        .join(MemberRow, MemberRow.work_id == WorkRow.id)
        .where(WorkRow.job_uid == row.job_uid, MemberRow.agent == row.agent)
    )
    work = session.scalar(query.order_by(WorkRow.create_time.desc()).limit(1))
    return [] if work is None else [each.agent for each in proposal_of(work).proposals]


def needed(session: Session) -> dict[str, JobRow]:
    """The checkpoints that live jobs start from: the job that needs each, by prefix."""
    live = select(JobRow).where(JobRow.state.in_([state.value for state in LIVE_STATES]))
    found: dict[str, JobRow] = {}
    for job in session.scalars(live):
        found |= dict.fromkeys((each.checkpoint.prefix for each in spec_of(job).founders), job)
    return found

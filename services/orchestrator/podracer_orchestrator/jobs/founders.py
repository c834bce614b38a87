"""The start of a job: its code and data; and founders, the agents of other jobs that a job's first
agents start from: lookup, checks, retention."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, environment_pb2, evolution_pb2, tensor_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.catalogue import Space, form_of
from podracer_core.errors import FieldViolation, InvalidInput, PreconditionFailed
from podracer_orchestrator.jobs.state import LIVE_STATES
from podracer_orchestrator.stored_messages import (
    checkpoint_reference,
    description_of,
    proposal_of,
    spec_of,
)
from podracer_orchestrator.tables import (
    ArtifactRow,
    CheckpointRow,
    JobFileRow,
    JobRow,
    MemberRow,
    WorkRow,
)
from podracer_platform.messages import space_from_message
from podracer_platform.rpc import artifact_name, job_name

CODE, DATA_SET, POLICY = "CODE", "DATA_SET", "POLICY"


def find(session: Session, project: str, spec: job_pb2.JobSpec) -> list[ArtifactRow]:
    """The files of a spec. Raises InvalidInput that names each file which was not uploaded like
    this."""
    found, violations = [], []
    for field, reference, kind in _references(spec):
        query = select(ArtifactRow).where(
            ArtifactRow.project == project, ArtifactRow.key == reference.key
        )
        row = session.scalar(query)
        if row is None or (row.sha256, row.size_bytes, row.kind) != (
            reference.sha256,
            reference.size_bytes,
            kind,
        ):
            message = (
                f"no {kind} artifact of projects/{project} has this key, SHA-256 and size: "
                "upload it first"
            )
            violations.append(FieldViolation(field, message))
        else:
            found.append(row)
    if violations:
        raise InvalidInput(
            "; ".join(map(str, violations)), violations=violations, reason="NOT_UPLOADED"
        )
    return found


def named(session: Session, project: str, spec: job_pb2.JobSpec) -> dict[str, ArtifactRow]:
    """The current contents of a spec's named data sets, by argument; without missing ones."""
    found = {
        name: session.get(ArtifactRow, (project, data_set))
        for name, data_set in spec.data_sets.items()
    }
    return {name: row for name, row in found.items() if row is not None and row.kind == DATA_SET}


def with_files(session: Session, project: str, spec: job_pb2.JobSpec) -> job_pb2.JobSpec:
    """The spec with the newest versions of its data sets by name; a continuous one keeps the names
    only.

    Raises InvalidInput that names each missing one.
    """
    rows, violations = named(session, project, spec), []
    result = job_pb2.JobSpec()
    result.CopyFrom(spec)
    for name, data_set in sorted(spec.data_sets.items()):
        result.data.pop(name, None)
        row = rows.get(name)
        if row is None:
            ways = f"upload it under this name, or name a file: data: {{{name}: FILE}}"
            violations.append(
                FieldViolation(
                    f"data.{name}", f"projects/{project} has no data set {data_set!r}: {ways}"
                )
            )
        elif not spec.HasField("continuous"):
            reference = tensor_pb2.ObjectReference(
                key=row.key, sha256=row.sha256, size_bytes=row.size_bytes, name=row.artifact_id
            )
            result.data[name].CopyFrom(reference)
    if violations:
        raise InvalidInput(
            "; ".join(map(str, violations)), violations=violations, reason="NOT_UPLOADED"
        )
    return result


def keep(session: Session, job: JobRow, spec: job_pb2.JobSpec) -> None:
    """Protect a new job's files from deletion. Raises as `find` does."""
    rows = [*find(session, job.project, spec), *named(session, job.project, spec).values()]
    for artifact_id in sorted({row.artifact_id for row in rows}):
        session.add(JobFileRow(job_uid=job.uid, project=job.project, artifact_id=artifact_id))


def keys(spec: job_pb2.JobSpec) -> set[str]:
    """The objects of the files that a spec names."""
    return {reference.key for _, reference, _ in _references(spec)}


def require_unused(session: Session, row: ArtifactRow) -> None:
    """Raise PreconditionFailed (ARTIFACT_IN_USE) while there is a job that names this file."""
    query = (
        select(JobRow)
        .join(JobFileRow, JobFileRow.job_uid == JobRow.uid)
        .where(JobFileRow.project == row.project, JobFileRow.artifact_id == row.artifact_id)
        .limit(1)
    )
    job = session.scalar(query)
    if job is not None:
        name = artifact_name(row.project, row.artifact_id)
        user = job_name(job.project, job.job_id)
        raise PreconditionFailed(
            f"{name} is needed by {user}: delete the job first", reason="ARTIFACT_IN_USE", job=user
        )


def environment_of(job: JobRow) -> environment_pb2.EnvironmentSpec:
    """The environment for a pod: with the job's data sets, where evaluation cuts episodes, the
    origin of observations, and the isolation of worlds that share state or whose steps wait."""
    spec, environment = spec_of(job), environment_pb2.EnvironmentSpec()
    environment.CopyFrom(spec.environment)
    description = description_of(job)
    if description.shares_state or description.waits:
        environment.isolation = "process"
    for name, reference in spec.data.items():
        environment.data[name].CopyFrom(reference)
    environment.evaluation_steps = description.evaluation_steps
    environment.observation_origin[:] = (
        description.observation_origin or environment.observation_origin
    )
    return environment


def _references(spec: job_pb2.JobSpec) -> Iterator[tuple[str, tensor_pb2.ObjectReference, str]]:
    if spec.environment.HasField("code"):
        yield "environment.code", spec.environment.code, CODE
    for name, reference in sorted(spec.data.items()):
        yield f"data.{name}", reference, DATA_SET
    for place, founder in enumerate(spec.founders):
        if is_uploaded(founder):
            stored = founder.checkpoint
            reference = tensor_pb2.ObjectReference(key=stored.prefix, sha256=stored.manifest_sha256)
            reference.size_bytes = stored.size_bytes
            yield f"founders[{place}]", reference, POLICY


def is_uploaded(founder: evolution_pb2.Founder) -> bool:
    """Whether it is the checkpoint of a user's folder, stored as one artifact, whose key has no `/`
    at its end."""
    return bool(founder.checkpoint.prefix) and not founder.checkpoint.prefix.endswith("/")


def with_founders(session: Session, project: str, spec: job_pb2.JobSpec) -> job_pb2.JobSpec:
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

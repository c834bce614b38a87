"""A job's uploaded files (code and data sets): found when it is created, kept while it exists."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.common.v1 import environment_pb2, evolution_pb2, tensor_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.errors import FieldViolation, InvalidInput, PreconditionFailed
from podracer_orchestrator.stored_messages import description_of, spec_of
from podracer_orchestrator.tables import ArtifactRow, JobFileRow, JobRow
from podracer_platform.rpc.resource_names import artifact_name, job_name

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


def resolved(session: Session, project: str, spec: job_pb2.JobSpec) -> job_pb2.JobSpec:
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

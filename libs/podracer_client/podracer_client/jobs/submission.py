"""Submitting jobs: what one starts from, the candidates of another job's leaderboard or a
checkpoint in a folder; the jobs of one file with a matrix, all checked before the first is
created."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import artifact_service_pb2, job_service_pb2
from podracer_client.artifacts import upload_bytes, upload_files
from podracer_client.jobs.job import Job, find_job
from podracer_client.names import DEFAULT_PROJECT, refused
from podracer_client.servers import Servers
from podracer_core.errors import InvalidInput, NotFound
from podracer_core.storage import REPLAY_FOLDER, FolderStore, read_file, read_manifest
from podracer_platform.jobs import DataSets, Founder, JobSpec, WarmStart
from podracer_platform.messages import hyperparameters_from_message

if TYPE_CHECKING:
    from podracer_core.catalogue import StoredFile


def look_up_founders(servers: Servers, spec: JobSpec) -> JobSpec:
    """`spec` with the best candidates of the job in its warm start: an id, or the name in a file if
    only one has it.

    Or with the checkpoint of a folder, which is uploaded. Raises InvalidInput if the job does not
    exist, or has no candidate, and DataCorrupted if the folder's bytes have changed."""
    wanted = spec.warm_start
    if not isinstance(wanted, WarmStart):
        return spec
    if wanted.checkpoint is not None:
        trained = read_manifest(FolderStore(wanted.checkpoint, create=False), "").metadata.get(
            "environment", {}
        )
        own = replace(
            spec.environment, observation_origin=tuple(trained.get("observation_origin", ()))
        )
        return replace(spec, environment=own, warm_start=(_uploaded(servers, wanted.checkpoint),))
    try:
        job = find_job(servers, wanted.job)
    except (NotFound, InvalidInput) as error:
        raise refused("warm_start.job", error.message) from error
    board = (
        servers.leaderboard(job.leaderboard)
        if job.leaderboard
        else leaderboard_service_pb2.Leaderboard()
    )
    if not board.candidates:
        raise refused("warm_start.job", f"the job {wanted.job} has no candidate on its leaderboard")
    founders = tuple(map(_founder, board.candidates[: wanted.candidates]))
    return replace(spec, warm_start=founders)


def _founder(candidate: leaderboard_service_pb2.Candidate) -> Founder:
    agent, checkpoint = candidate.agent, candidate.evaluation.checkpoint
    return Founder(
        agent.name,
        checkpoint.prefix,
        checkpoint.manifest_sha256,
        agent.spec.algorithm,
        hyperparameters_from_message(agent.spec.hyperparameters),
    )


def _uploaded(servers: Servers, folder: Path) -> Founder:
    """The checkpoint of a folder as one artifact: an archive of its tensors, without environments
    and transitions."""
    store = FolderStore(folder, create=False)
    manifest = read_manifest(store, "")
    if "algorithm" not in manifest.metadata:
        raise refused("warm_start.checkpoint", f"{folder} is not the checkpoint of one agent")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for file in manifest.files:
            if not file.path.startswith(("environment.", REPLAY_FOLDER)):
                archive.writestr(zipfile.ZipInfo(file.path), read_file(store, "", file))
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    name = f"{re.sub('[^a-z0-9]+', '-', folder.name.lower())[:40].strip('-')}-{digest[:12]}".lstrip(
        "-"
    )
    header = artifact_service_pb2.UploadHeader(
        kind=artifact_service_pb2.ARTIFACT_KIND_POLICY, artifact_id=name
    )
    stored = upload_bytes(servers.artifact_service, header, f"{name}.zip", packed.getvalue())
    values = manifest.metadata["hyperparameters"].items()
    hyperparameters = {
        key: tuple(value) if isinstance(value, list) else value for key, value in values
    }
    agent = f"{DEFAULT_PROJECT}/artifacts/{name}"
    return Founder(
        agent, stored.key, stored.sha256, manifest.metadata["algorithm"], hyperparameters
    )


def check_jobs(servers: Servers, specs: Sequence[JobSpec]) -> Sequence[JobSpec]:
    """Upload the files of all specs and have the server validate them; creates no job. Returns the
    uploaded specs.

    Raises InvalidInput that names the first job which the server refuses.
    """
    stored: dict[object, tuple[StoredFile | None, DataSets]] = {}
    ready = []
    for spec in specs:
        environment = spec.environment
        files = (
            environment.code_path,
            environment.entry_point,
            tuple(sorted(spec.data.items(), key=str)),
        )
        if files not in stored:
            uploaded = upload_files(servers.artifact_service, spec)
            stored[files] = uploaded.environment.code, uploaded.data
        code, data = stored[files]
        spec = replace(spec, environment=replace(environment, code_path="", code=code), data=data)
        ready.append(look_up_founders(servers, spec))
    for spec in ready:
        try:
            request = job_service_pb2.CreateJobRequest(spec=spec.to_message(), validate_only=True)
            servers.job_service.CreateJob(request)
        except InvalidInput as error:
            message = f"{spec.name}: {error.message}; nothing was submitted"
            raise InvalidInput(message, violations=error.violations, reason=error.reason) from error
    return ready


def create_jobs(
    servers: Servers, specs: Sequence[JobSpec], submission: str, *, job_id: str = ""
) -> Iterator[Job]:
    """Create the jobs one by one. A repeated `submission` finds the jobs that it has created
    before.

    `submission` is random and has at most 58 characters. With a `job_id` the ids are `job_id` and a
    number."""
    for number, spec in enumerate(specs, 1):
        request = job_service_pb2.CreateJobRequest(
            job_id=f"{job_id}-{number}" if job_id else "",
            spec=spec.to_message(),
            request_id=f"{submission}-{number}",
        )
        yield Job(servers, servers.job_service.CreateJob(request).job)

"""The keys of the object store (DESIGN §9).

projects/<p>/jobs/<uid>/agents/<a>/checkpoints/<step>-<fence>/{actor,critic,…}.safetensors,
manifest.json
projects/<p>/jobs/<uid>/agents/<a>/checkpoints/<step>-<fence>/replay/{tail,<part>}.safetensors:
later ones may name it projects/<p>/artifacts/<x>/<file>"""

from __future__ import annotations

import re
from dataclasses import dataclass

from podracer_core.errors import InvalidInput
from podracer_core.storage.manifest import ManifestFile
from podracer_core.storage.object_store import check_key

REPLAY_FOLDER = "replay/"
"""Folder in a checkpoint: parts of a replay buffer, which later ones of the agent may name in place
of writing them."""

UPLOADS_FOLDER = "artifacts/"
"""Folder in a project: uploaded files."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_CHECKPOINT = re.compile(
    r"projects/(?P<project>[^/]+)/jobs/(?P<job>[^/]+)/agents/(?P<agent>[^/]+)/checkpoints/(?P<step>\d+)-(?P<fence>\d+)/"
)


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A written checkpoint: its prefix, and the hash of its manifest's bytes.

    prefix            key prefix in the store, with a `/` at its end
    manifest_sha256   64 lower-case hexadecimal digits
    size_bytes        of all its files, the manifest included
    files             its files, in the form in which a checkpoint beside it may name them
    """

    prefix: str
    manifest_sha256: str
    size_bytes: int
    files: tuple[ManifestFile, ...]


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """The parts of a checkpoint's prefix: ids (no resource names), lineage steps, fence of the
    writing lease."""

    project: str
    job_uid: str
    agent: str
    env_steps: int
    fence: int

    @property
    def prefix(self) -> str:
        """The key prefix, with a `/` at its end. Raises InvalidInput for an id that is invalid in a
        key."""
        if self.env_steps < 0 or self.fence < 0:
            raise InvalidInput(
                f"a checkpoint has env_steps and fence of 0 or more, not {self.env_steps}, "
                f"{self.fence}"
            )
        agent = agent_prefix(self.project, self.job_uid, self.agent)
        return f"{agent}checkpoints/{self.env_steps}-{self.fence}/"

    @classmethod
    def parse(cls, prefix: str) -> CheckpointPlace:
        """The inverse of `prefix`; InvalidInput for anything else."""
        found = _CHECKPOINT.fullmatch(prefix)
        if found is None:
            raise InvalidInput(
                f"{prefix!r} is not the prefix of a checkpoint", reason="INVALID_CHECKPOINT_PREFIX"
            )
        place = cls(
            found["project"], found["job"], found["agent"], int(found["step"]), int(found["fence"])
        )
        if place.prefix != prefix:  # 007 for 7
            raise InvalidInput(
                f"{prefix!r} is not the prefix of a checkpoint", reason="INVALID_CHECKPOINT_PREFIX"
            )
        return place

    @classmethod
    def of_object(cls, key: str) -> CheckpointPlace | None:
        """The checkpoint that an object belongs to; None if it belongs to none."""
        found = _CHECKPOINT.match(key)
        try:
            return None if found is None else cls.parse(found[0])
        except InvalidInput:
            return None


def job_prefix(project: str, job_uid: str) -> str:
    """The prefix of a job's objects. Raises InvalidInput for an id that is invalid in a key."""
    return f"projects/{_checked(project)}/jobs/{_checked(job_uid)}/"


def agent_prefix(project: str, job_uid: str, agent: str) -> str:
    """The prefix of an agent's objects. Raises InvalidInput for an id that is invalid in a key."""
    return f"{job_prefix(project, job_uid)}agents/{_checked(agent)}/"


def written_pattern(project: str, job_uid: str, fence: int) -> str:
    """The objects that the holder of a lease writes; `*` is any text."""
    return f"{job_prefix(project, job_uid)}agents/*/checkpoints/*-{fence}/*"


def checkpoint_prefix(project: str, job_uid: str, agent: str, env_steps: int, fence: int) -> str:
    """The prefix of a checkpoint: no two leases, and no two moments of a lease, share one."""
    return CheckpointPlace(project, job_uid, agent, env_steps, fence).prefix


def of_project(key: str, project: str) -> bool:
    """Whether an object belongs to a project."""
    return key.startswith(f"projects/{_checked(project)}/")


def artifact_key(project: str, artifact: str, file: str) -> str:
    """Key of a file of an uploaded artifact."""
    return check_key(f"projects/{_checked(project)}/{UPLOADS_FOLDER}{_checked(artifact)}/{file}")


def _checked(part: str) -> str:
    if not _ID.fullmatch(part):
        raise InvalidInput(
            f"{part[:200]!r} cannot be an id in the object store: letters, digits, - and _, at "
            "most 128",
            reason="INVALID_ID",
        )
    return part

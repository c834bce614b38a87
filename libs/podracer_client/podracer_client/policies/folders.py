"""Finds the policies that a user names: local folders, checkpoints on a server, a job's best
candidates, or a repository of Hugging Face (`hf://OWNER/REPO[@REVISION]`).

Of a repository only the manifest and the safetensors files that it names are downloaded, at one
commit, within limits, and checked against the manifest's digests. No pickle is read, and
environments that would run the repository's code are refused."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import artifact_service_pb2
from podracer_client.files import write_whole
from podracer_client.jobs import Client, Job
from podracer_client.local import Connect, StateFolder, running_or_resting
from podracer_client.names import (
    best_checkpoint_name,
    is_checkpoint_name,
    is_job_name,
    job_of_best_checkpoint,
    leaderboard_name,
    refused,
)
from podracer_client.outside import require, within
from podracer_client.policies.environment import trained_environment
from podracer_client.servers import DEFAULT_FOLDER
from podracer_core.errors import DataCorrupted, InvalidInput, NotFound
from podracer_core.storage import FILE_NAME, Manifest, ManifestFile
from podracer_platform.jobs import CONFIRMING

PREFIX = "hf://"
ACTING = ("actor.safetensors", "normalizer.safetensors")
"""The files of a checkpoint that acting needs."""

_NAME = re.compile(r"hf://([\w.-]{1,96}/[\w.-]{1,96})(?:@([\w./-]{1,100}))?")
_MAX_BYTES = {FILE_NAME: 16 << 20}
_MAX_FILE_BYTES = 2 << 30
_ASK_S, _FETCH_S = 60.0, 900.0


def parse_hub_name(text: str) -> tuple[str, str | None]:
    """`OWNER/REPO`, and the revision if one is named. Raises InvalidInput."""
    match = _NAME.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{text[:200]!r}: expected hf://OWNER/REPO or hf://OWNER/REPO@REVISION")
    return match[1], match[2]


def hub_client() -> Any:
    """A client with the user's own token, as `hf auth login` or HF_TOKEN has it, of the hub that
    HF_ENDPOINT names."""
    hub = require("huggingface_hub", "huggingface")
    # the command prints no control characters
    require("huggingface_hub.utils", "huggingface").disable_progress_bars()
    return hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))


@contextmanager
def fetched_policy(text: str) -> Iterator[Path]:
    """The folder of the policy of that name; removed at the end.

    Raises NotFound, InvalidInput if it is not a Podracer policy or too large, DataCorrupted for an
    altered file."""
    repository, revision = parse_hub_name(text)
    hub = hub_client()
    found = within(
        _ASK_S, text, lambda: hub.model_info(repository, revision=revision, files_metadata=True)
    )
    sizes = {each.rfilename: each.size for each in found.siblings or ()}
    with tempfile.TemporaryDirectory(prefix="podracer-policy-") as folder:

        def fetch(name: str) -> bytes:
            size, limit = sizes.get(name), _MAX_BYTES.get(name, _MAX_FILE_BYTES)
            if size is None:
                raise NotFound(
                    f"{text} has no {name}; was it made by `podracer push`?", reason="NO_CHECKPOINT"
                )
            if size > limit:
                raise InvalidInput(
                    f"{text}: {name} has {size:,} bytes; at most {limit:,} are fetched"
                )
            place = {"revision": found.sha, "local_dir": f"{folder}/fetched"}
            path = within(_FETCH_S, text, lambda: hub.hf_hub_download(repository, name, **place))
            return Path(path).read_bytes()

        policy = Path(folder, "policy")
        policy.mkdir()
        _write_checked(policy, fetch(FILE_NAME), sizes, fetch)
        yield policy


def _write_checked(
    policy: Path, manifest_bytes: bytes, sizes: Mapping[str, int | None], fetch: Any
) -> None:
    manifest = Manifest.from_json(manifest_bytes)
    files = acting_files(manifest)
    write_whole(policy / FILE_NAME, replace(manifest, files=files).to_json())
    require_harmless(policy, "the repository", "download it and name the folder")
    for file in files:
        if sizes.get(file.path, file.size_bytes) != file.size_bytes:
            raise DataCorrupted(
                f"{file.path} has {sizes[file.path]} bytes; its manifest says {file.size_bytes}"
            )
        data = fetch(file.path)
        file.verify(data)
        write_whole(policy / file.path, data)


def acting_files(manifest: Manifest) -> tuple[ManifestFile, ...]:
    """The files that acting needs, all in the manifest's own folder. Raises InvalidInput without an
    actor."""
    files = tuple(replace(file, folder="") for file in manifest.files if file.path in ACTING)
    if ACTING[0] not in {file.path for file in files}:
        raise InvalidInput(
            f"this is no policy's checkpoint: it has no {ACTING[0]}", reason="NOT_A_POLICY"
        )
    return files


def require_harmless(policy: Path, author: str, instead: str) -> None:
    """Raises InvalidInput if acting would import code, or read a file, that `author` has named."""
    environment = trained_environment(policy)
    local = [name for name, file in environment.data.items() if isinstance(file, str)]
    if environment.entry_point or environment.code_path or ":" in environment.id or local:
        raise InvalidInput(
            f"its environment {environment.name} would run code or read files that {author} chose; "
            f"if you trust it, {instead}",
            reason="UNTRUSTED_ENVIRONMENT",
        )


MANIFEST = "manifest.json"
_CHAMPION = "champion"
_MOST_COMPETING = 8


@dataclass(frozen=True, slots=True)
class Competition:
    """The folders of a job's best candidates, best first, and how many of its snapshots have a
    score."""

    folders: Sequence[Path]
    snapshots: int


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """The folder of a checkpoint, and the fresh evaluation that its job reports for it; None
    without one."""

    folder: Path
    confirmed: agent_pb2.Evaluation | None = None


@contextmanager
def policy_folders(
    names: Sequence[str], ensemble: int, connect: Connect, state_folder: Path | None = None
) -> Iterator[list[Path]]:
    """The folders of `stored_policies`."""
    with stored_policies(names, ensemble, connect, state_folder) as policies:
        yield [policy.folder for policy in policies]


@contextmanager
def stored_policies(
    names: Sequence[str], ensemble: int, connect: Connect, state_folder: Path | None = None
) -> Iterator[list[StoredPolicy]]:
    """The policies' checkpoints, best first; the folders of downloaded ones are removed at the end.

    names         checkpoints (see `checkpoint_folder`) in order of their rank, or one job: its
                  final policy
    ensemble      that many of the one job's best candidates; 0: the policies in `names`
    connect       connects to a running server; raises NotFound if there is none
    state_folder  read (its leaderboard and objects) if no server runs; None: ./runs

    Raises NotFound and InvalidInput for missing policies, or too few candidates.
    """
    if ensemble and len(names) != 1:
        raise refused("--ensemble", "expects exactly one job, whose best candidates it takes")
    with ExitStack() as held:
        shelf = _Shelf(connect, state_folder or DEFAULT_FOLDER, held)
        if ensemble:
            yield shelf.candidates(names[0], ensemble)
        else:
            yield [shelf.policy(name) for name in names]


@contextmanager
def competing_folders(
    names: Sequence[str], ensemble: int, connect: Connect, state_folder: Path | None = None
) -> Iterator[tuple[list[Path], Competition | str]]:
    """As `policy_folders`; for a single job's final policy also the candidates that competed, if it
    keeps any, or the reason why they are not known."""
    if ensemble or len(names) != 1:
        with policy_folders(names, ensemble, connect, state_folder) as folders:
            yield folders, ""
        return
    with ExitStack() as held:
        shelf = _Shelf(connect, state_folder or DEFAULT_FOLDER, held, competing=True)
        yield [shelf.policy(names[0]).folder], shelf.competition


@contextmanager
def checkpoint_folder(text: str, connect: Connect) -> Iterator[Path]:
    """The folder of a checkpoint; a downloaded one is removed at the end.

    Raises NotFound if it is neither here nor on the server, InvalidInput for a folder without a
    checkpoint."""
    path = Path(text)
    if is_there(path) or not is_checkpoint_name(text):
        yield _local(path)
        return
    with tempfile.TemporaryDirectory(prefix="podracer-checkpoint-") as folder, connect() as client:
        target = Path(folder) / "checkpoint"
        client.download(text, target)
        yield target


class _Shelf:
    """Checkpoints of a server, or of a state folder without one; `held` collects the folders to
    remove."""

    def __init__(
        self, connect: Connect, state_folder: Path, held: ExitStack, *, competing: bool = False
    ) -> None:
        """`competing`: `policy` also finds a job's `competition`, while it is connected."""
        self._connect = connect
        self._state_folder = state_folder
        self._held = held
        self._competing = competing
        self.competition: Competition | str = ""

    def policy(self, text: str) -> StoredPolicy:
        """A checkpoint here, on a server or at Hugging Face, or a job's final policy."""
        if text.startswith(PREFIX):
            return StoredPolicy(self._held.enter_context(fetched_policy(text)))
        if is_there(text) or not (is_job_name(text) or job_of_best_checkpoint(text)):
            return StoredPolicy(self._held.enter_context(checkpoint_folder(text, self._connect)))
        job = job_of_best_checkpoint(text) or text
        try:
            with running_or_resting(self._connect, self._state_folder) as client:
                if client.connection.orchestrator:
                    found = client.job(job)
                    if self._competing:
                        self.competition = self._competition(leaderboard_name(found.name), client)
                    return self._final(found, client)
            return self.candidates(job, 1)[0]
        except NotFound as error:
            raise NotFound(
                f"there is no checkpoint {text} here; expected a folder, a name such as "
                f"projects/default/jobs/JOB/checkpoints/best, or a job: {error.message}",
                reason=error.reason,
            ) from error

    def _final(self, job: Job, client: Client) -> StoredPolicy:
        """A job's final policy; of a continuous job its champion."""
        request = artifact_service_pb2.GetArtifactRequest(name=best_checkpoint_name(job.name))
        artifact = client.artifact_service.GetArtifact(request).artifact
        agent = artifact.name.partition("/checkpoints/")[0]
        return self._checkpoint(agent, artifact.uri, client, job.progress.best)

    def _competition(self, name: str, client: Client) -> Competition | str:
        try:
            found = client.leaderboard(name).candidates[:_MOST_COMPETING]
            snapshots = (
                {(each.agent, each.env_steps) for each in client.evaluations(name)} if found else ()
            )
            folders = [policy.folder for policy in self._checkpoints(found, client)]
        except NotFound as error:  # the leaderboard, or a candidate's checkpoint, is deleted
            return f"not known: {error.message}"
        return Competition(folders, len(snapshots)) if found else ""

    def candidates(self, job: str, count: int) -> list[StoredPolicy]:
        """A job's best `count` candidates, best first; of a job without any its champion."""
        try:
            return self._candidates(leaderboard_name(job), job, count)
        except NotFound as error:
            # no id, but maybe the name in a job's file, which only the orchestrator knows
            if error.reason != "LEADERBOARD_NOT_FOUND":
                raise
        with running_or_resting(self._connect, self._state_folder) as client:
            name = leaderboard_name(client.full_name(job))
        return self._candidates(name, job, count)

    def _candidates(self, name: str, job: str, count: int) -> list[StoredPolicy]:
        with running_or_resting(self._connect, self._state_folder, only_leaderboard=True) as client:
            board = client.leaderboard(name)
            found = board.candidates
            if not found and board.aliases and count == 1:
                return [self._promoted(board, client)]
            if not found:
                raise NotFound(f"{job} has no candidate yet")
            if len(found) < count:
                only = "only one candidate" if len(found) == 1 else f"{len(found)} candidates"
                raise refused("--ensemble", f"{job} has {only} on its leaderboard, not {count}")
            return self._checkpoints(found[:count], client)

    def _promoted(self, board: leaderboard_service_pb2.Leaderboard, client: Client) -> StoredPolicy:
        """The policy of the alias `champion`, or of the first other alias."""
        alias = _CHAMPION if _CHAMPION in board.aliases else min(board.aliases)
        request = leaderboard_service_pb2.ListAliasHistoryRequest(
            leaderboard=board.name, alias=alias, page_size=1
        )
        changes = client.leaderboard_service.ListAliasHistory(request).changes
        if not changes:
            raise NotFound(f"the alias {alias} points at nothing")
        return self._checkpoint(changes[0].agent, changes[0].checkpoint.prefix, client)

    def _checkpoints(
        self, found: Sequence[leaderboard_service_pb2.Candidate], client: Client
    ) -> list[StoredPolicy]:
        return [
            self._checkpoint(
                each.agent.name, each.evaluation.checkpoint.prefix, client, each.evaluation
            )
            for each in found
        ]

    def _checkpoint(
        self,
        agent: str,
        prefix: str,
        client: Client,
        evaluation: agent_pb2.Evaluation | None = None,
    ) -> StoredPolicy:
        if evaluation and (
            evaluation.purpose not in CONFIRMING or evaluation.checkpoint.prefix != prefix
        ):
            evaluation = None
        # prefixes have the job's uid: it is the same one
        here = StateFolder.objects_of(self._state_folder) / prefix
        if is_there(here / MANIFEST):
            return StoredPolicy(here.absolute(), evaluation)
        name = f"{agent}/checkpoints/{prefix.rstrip('/').rpartition('/')[2]}"
        if not client.connection.orchestrator:
            message = (
                f"{name} is not in the state folder {self._state_folder}, and no "
                "orchestrator is set"
            )
            raise NotFound(message, reason="NO_CHECKPOINT")
        folder = self._held.enter_context(
            tempfile.TemporaryDirectory(prefix="podracer-checkpoint-")
        )
        target = Path(folder) / "checkpoint"
        client.download(name, target)
        return StoredPolicy(target, evaluation)


def _local(path: Path) -> Path:
    if not is_there(path):
        raise NotFound(
            f"there is no checkpoint {path}; expected a folder, or a name such as "
            "projects/default/jobs/JOB/checkpoints/best",
            reason="NO_CHECKPOINT",
            path=path,
        )
    if path.is_file() and path.name == MANIFEST:
        path = path.parent
    if not path.is_dir():
        raise InvalidInput(
            f"{path} is no checkpoint: expected a folder with a {MANIFEST}", path=path
        )
    if not (path / MANIFEST).is_file():
        raise InvalidInput(f"{path} is no checkpoint: it has no {MANIFEST}", path=path)
    return path.absolute()


def is_there(path: str | Path) -> bool:
    """Whether a file or folder of that name exists; False for an impossible name."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False

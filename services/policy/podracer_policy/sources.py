"""The sources of served policies: folders and aliases in PODRACER_POLICIES, and LoadPolicy."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from podracer.common.v1 import file_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2, leaderboard_service_pb2_grpc
from podracer.orchestrator.v1 import artifact_service_pb2, artifact_service_pb2_grpc
from podracer.policy.v1 import policy_service_pb2 as pb
from podracer_core.checkpoint import (
    POLICY_GROUPS,
    Checkpoint,
    open_checkpoint_folder,
    open_packed_policy,
)
from podracer_core.errors import DataCorrupted, InvalidInput, NotFound, PodracerError
from podracer_platform.attachments import receive_artifact
from podracer_platform.rpc import LABEL
from podracer_platform.telemetry import POLICY_LOADS
from podracer_policy.policies import MAX_POLICIES, ServedPolicies, ServedPolicy, require_word

logger = logging.getLogger(__name__)

_ALIAS = re.compile(rf"(projects/{LABEL})/jobs/({LABEL})@({LABEL})")
_UNWORDLY = re.compile(r"[^A-Za-z0-9._-]")

_DOWNLOAD_S = 300.0


_MAX_BYTES = 512 << 20
_MAX_SOURCE = 1000


@dataclass(frozen=True, slots=True)
class Alias:
    """A followed alias of a job's leaderboard, under a name."""

    name: str
    leaderboard: str
    alias: str
    source: str


@dataclass(frozen=True, slots=True)
class Folders:
    """Checkpoints that act under a name, the best first."""

    name: str
    paths: tuple[Path, ...]

    def load(self, rule: str = "") -> ServedPolicy:
        """Load the policies. Raises InvalidInput if a folder holds none, or they cannot act
        together; DataCorrupted."""
        checkpoints = [open_checkpoint_folder(path, POLICY_GROUPS) for path in self.paths]
        source = ", ".join(map(str, self.paths))
        one = rule if len(checkpoints) > 1 else ""
        return ServedPolicy(self.name, default_version(checkpoints), checkpoints, one, source)


def parse_sources(entries: Sequence[str]) -> tuple[list[Folders], list[Alias]]:
    """NAME=SOURCE each. Raises InvalidInput, naming the entry."""
    folders: dict[str, list[Path]] = {}
    aliases: dict[str, Alias] = {}
    for entry in entries:
        name, separator, source = entry.partition("=")
        if not separator or not source:
            raise _refused(
                f"expected NAME=FOLDER or NAME=projects/p/jobs/j@alias, got {entry[:200]!r}"
            )
        require_word("PODRACER_POLICIES", name)
        if match := _ALIAS.fullmatch(source):
            if name in aliases or name in folders:
                raise _refused(f"{name} is there twice; an alias is followed alone")
            aliases[name] = Alias(name, f"{match[1]}/leaderboards/{match[2]}", match[3], source)
        elif name in aliases:
            raise _refused(f"{name} is there twice; an alias is followed alone")
        else:
            folders.setdefault(name, []).append(Path(source))
    return [Folders(name, tuple(paths)) for name, paths in folders.items()], list(aliases.values())


def default_version(checkpoints: Sequence[Checkpoint]) -> str:
    """The version by the first policy's agent and steps, `a0003-204800`, and the number of further
    ones."""
    metadata = checkpoints[0].metadata
    agent = str(metadata.get("agent", "")).rpartition("/")[2] or "policy"
    more = f"-and-{len(checkpoints) - 1}" if len(checkpoints) > 1 else ""
    return _UNWORDLY.sub("-", f"{agent[:60]}-{metadata.get('env_steps', 0)}{more}")[:100]


def _refused(problem: str) -> InvalidInput:
    field = "PODRACER_POLICIES"
    return InvalidInput.of(field, problem, reason="INVALID_SETTING")


class Follower:
    """Follows an alias. The served policy stays while the servers are unreachable, or if the new
    one is unusable."""

    def __init__(
        self,
        alias: Alias,
        policies: ServedPolicies,
        leaderboard: grpc.Channel,
        orchestrator: grpc.Channel,
    ) -> None:
        self._alias, self._policies = alias, policies
        self._leaderboard = leaderboard_service_pb2_grpc.LeaderboardServiceStub(leaderboard)
        self._artifacts = artifact_service_pb2_grpc.ArtifactServiceStub(orchestrator)
        self._served = ""
        self._problem = ""

    async def run(self, interval_s: float) -> None:
        """Check the alias periodically, forever."""
        while True:
            await asyncio.sleep(interval_s)
            await self.check()

    async def check(self) -> bool:
        """Check the alias; returns whether its policy is served now."""
        try:
            await asyncio.to_thread(self._update)
        except PodracerError as error:
            if error.message != self._problem:
                self._problem = error.message
                logger.warning("%s is not up to date: %s", self._alias.source, error.message)
                POLICY_LOADS.add(result="failed")
            return False
        self._problem = ""
        return True

    def _update(self) -> None:
        """Raises NotFound if the alias points at nothing, and the errors of the two servers and of
        loading."""
        request = leaderboard_service_pb2.ListAliasHistoryRequest(
            leaderboard=self._alias.leaderboard, alias=self._alias.alias, page_size=1
        )
        changes = self._leaderboard.ListAliasHistory(request).changes
        if not changes or not changes[0].agent:
            raise NotFound(f"the alias {self._alias.source} points at nothing", reason="NO_ALIAS")
        change = changes[0]
        artifact = (
            f"{change.agent}/checkpoints/{change.checkpoint.prefix.rstrip('/').rpartition('/')[2]}"
        )
        if artifact == self._served:
            return
        policy = self._policies.put(self._fetched(artifact))
        self._served = artifact
        POLICY_LOADS.add(result="done")
        logger.info("%s acts as %s from now on: %s", policy.name, policy.version, artifact)

    def _fetched(self, artifact: str) -> ServedPolicy:
        with tempfile.TemporaryDirectory(prefix="podracer-policy-") as folder:
            target = Path(folder, "checkpoint")
            request = artifact_service_pb2.DownloadRequest(name=artifact)
            receive_artifact(self._artifacts.Download(request, timeout=_DOWNLOAD_S), target)
            checkpoint = open_checkpoint_folder(target, POLICY_GROUPS)
        agent, _, state = artifact.rpartition("/checkpoints/")
        version = f"{agent.rpartition('/')[2][:60]}-{state}"[:100]
        return ServedPolicy(
            self._alias.name,
            version,
            [checkpoint],
            source=f"{self._alias.source}: {artifact}"[:1000],
        )


async def received_policy(requests: AsyncIterator[pb.LoadPolicyRequest]) -> ServedPolicy:
    """The policy of a LoadPolicy stream, warmed up. Raises InvalidInput, DataCorrupted."""
    header: pb.LoadPolicyHeader | None = None
    with tempfile.TemporaryFile(prefix="podracer-policy-") as file:
        size = 0
        async for request in requests:
            match request.WhichOneof("part"):
                case "header" if header is None:
                    header = request.header
                    _check(header)
                case "data" if header is not None:
                    size += len(request.data)
                    if size > sum(checkpoint.size_bytes for checkpoint in header.checkpoints):
                        raise DataCorrupted("more bytes came than the header says")
                    file.write(request.data)
                case part:
                    raise InvalidInput(f"expected one header, then data; got {part or 'nothing'}")
        if header is None:
            raise InvalidInput("the stream is empty; expected a header, then data")
        file.seek(0)
        parts = [file.read(checkpoint.size_bytes) for checkpoint in header.checkpoints]
    return await asyncio.to_thread(_load, header, parts)


def _check(header: pb.LoadPolicyHeader) -> None:
    require_word("name", header.name)
    require_word("version", header.version)
    if not 1 <= len(header.checkpoints) <= MAX_POLICIES:
        raise InvalidInput.of(
            "checkpoints", f"expected 1 to {MAX_POLICIES}, got {len(header.checkpoints)}"
        )
    sizes = [checkpoint.size_bytes for checkpoint in header.checkpoints]
    if min(sizes) < 1 or sum(sizes) > _MAX_BYTES:
        raise InvalidInput.of(
            "checkpoints.size_bytes", f"expected 1 to {_MAX_BYTES} bytes together, got {sum(sizes)}"
        )
    if len(header.source) > _MAX_SOURCE:
        raise InvalidInput.of(
            "source", f"expected at most {_MAX_SOURCE} characters, got {len(header.source)}"
        )


def _load(header: pb.LoadPolicyHeader, parts: list[bytes]) -> ServedPolicy:
    with tempfile.TemporaryDirectory(prefix="podracer-policy-") as folder:
        checkpoints = []
        for number, (announced, data) in enumerate(zip(header.checkpoints, parts, strict=True)):
            _verify(number, announced, data)
            path = Path(folder, f"checkpoint{number}")
            path.write_bytes(data)
            checkpoints.append(open_packed_policy(path))
        return ServedPolicy(
            header.name, header.version, checkpoints, header.ensemble, header.source
        )


def _verify(number: int, announced: file_pb2.FileHeader, data: bytes) -> None:
    found = hashlib.sha256(data).hexdigest()
    if len(data) != announced.size_bytes or found != announced.sha256:
        raise DataCorrupted(
            f"checkpoint {number} arrived with {len(data)} bytes and SHA-256 {found}, expected "
            f"{announced.size_bytes} and {announced.sha256}"
        )

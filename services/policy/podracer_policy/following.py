"""Serves what an alias of a leaderboard points at, and exchanges it when the alias is moved."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from pathlib import Path

import grpc

from podracer.leaderboard.v1 import leaderboard_service_pb2, leaderboard_service_pb2_grpc
from podracer.orchestrator.v1 import artifact_service_pb2, artifact_service_pb2_grpc
from podracer_core.attachments.artifacts import receive_artifact
from podracer_core.checkpoint import POLICY_GROUPS, open_checkpoint_folder
from podracer_core.errors import NotFound, PodracerError
from podracer_core.serving import ServedPolicies, ServedPolicy
from podracer_core.telemetry.metrics import POLICY_LOADS
from podracer_policy.sources import Alias

__all__ = ["Follower"]

logger = logging.getLogger(__name__)

_DOWNLOAD_S = 300.0


class Follower:
    """What is served stays while the servers are away, and where the new policy cannot be had or cannot act."""

    def __init__(
        self, alias: Alias, policies: ServedPolicies, leaderboard: grpc.Channel, orchestrator: grpc.Channel
    ) -> None:
        self._alias, self._policies = alias, policies
        self._leaderboard = leaderboard_service_pb2_grpc.LeaderboardServiceStub(leaderboard)
        self._artifacts = artifact_service_pb2_grpc.ArtifactServiceStub(orchestrator)
        self._served = ""
        self._problem = ""

    async def run(self, interval_s: float) -> None:
        """Look every so often, for ever."""
        while True:
            await asyncio.sleep(interval_s)
            await self.look()

    async def look(self) -> bool:
        """Whether what the alias points at is served now."""
        try:
            await asyncio.to_thread(self._look)
        except PodracerError as error:
            if error.message != self._problem:
                self._problem = error.message
                logger.warning("%s is not up to date: %s", self._alias.source, error.message)
                POLICY_LOADS.add(result="failed")
            return False
        self._problem = ""
        return True

    def _look(self) -> None:
        """Raises NotFound where the alias points nowhere, and what the two servers and loading raise."""
        request = leaderboard_service_pb2.ListAliasHistoryRequest(
            leaderboard=self._alias.leaderboard, alias=self._alias.alias, page_size=1
        )
        changes = self._leaderboard.ListAliasHistory(request).changes
        if not changes or not changes[0].agent:
            raise NotFound(f"the alias {self._alias.source} points at nothing", reason="NO_ALIAS")
        change = changes[0]
        artifact = f"{change.agent}/checkpoints/{change.checkpoint.prefix.rstrip('/').rpartition('/')[2]}"
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
        return ServedPolicy(self._alias.name, version, [checkpoint], source=f"{self._alias.source}: {artifact}"[:1000])

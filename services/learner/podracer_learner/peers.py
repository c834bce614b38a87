"""Channels to the pod's workers and evaluators: opened once, kept for every lease."""

from __future__ import annotations

import grpc

from podracer.evaluator.v1 import evaluator_service_pb2_grpc
from podracer_core.rpc.channel import ChannelOptions, open_channel
from podracer_core.rpc.tokens import FileToken
from podracer_learner.config import LearnerConfig

__all__ = ["Peers"]


class Peers:
    """`workers` by address; `evaluators` in the order in which they are tried."""

    def __init__(self, config: LearnerConfig) -> None:
        """Connects at the first call. Raises InvalidInput for a malformed address or a missing token."""
        token = FileToken(config.tokens / "pod")
        options = ChannelOptions(allow_insecure=config.allow_insecure)
        self.orchestrator = open_channel(config.orchestrator, token, options)
        self.workers: dict[str, grpc.Channel] = {
            address: open_channel(address, token, options) for address in config.workers
        }
        self._evaluator_channels = [open_channel(address, token, options) for address in config.evaluators]
        self.evaluators = [
            evaluator_service_pb2_grpc.EvaluatorServiceStub(channel) for channel in self._evaluator_channels
        ]

    def close(self) -> None:
        """Close all of them."""
        for channel in (self.orchestrator, *self.workers.values(), *self._evaluator_channels):
            channel.close()

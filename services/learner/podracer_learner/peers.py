"""Channels to the pod's workers and evaluators: opened once, kept for every lease."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from podracer.evaluator.v1 import evaluator_service_pb2_grpc
from podracer_learner.config import LearnerConfig
from podracer_learner.workers.discovery import WorkerDirectory
from podracer_platform.rpc.channel import open_channel
from podracer_platform.rpc.shown_tokens import ShownTokens
from podracer_platform.rpc.tokens import FileToken


class Peers:
    """`workers` finds workers by the settings; `evaluators` are in the order in which they are
    tried; `shown` makes their tokens; tensors may be shared through `folder`."""

    def __init__(self, config: LearnerConfig) -> None:
        """Connects at the first call. Raises InvalidInput for a malformed address or a missing
        token."""
        self._token = token = FileToken(config.tokens / "pod")
        self.folder = config.shared_folder()
        self._to_learners = config.channel_options("learner")
        self.orchestrator = open_channel(
            config.orchestrator, token, config.channel_options("orchestrator")
        )
        self.shown = shown = ShownTokens(token)
        self.workers = WorkerDirectory(config.workers, shown, config.channel_options("worker"))
        to_evaluators = config.channel_options("evaluator")
        self._evaluator_channels = [
            open_channel(address, shown.at("evaluator", address), to_evaluators)
            for address in config.evaluators
        ]
        self.evaluators = [
            evaluator_service_pb2_grpc.EvaluatorServiceStub(channel)
            for channel in self._evaluator_channels
        ]

    @contextmanager
    def learner(self, address: str) -> Iterator[grpc.Channel]:
        """A channel to another learner of the same agent, for one lease."""
        channel = open_channel(address, self._token, self._to_learners)
        try:
            yield channel
        finally:
            channel.close()

    def close(self) -> None:
        """Close all of them."""
        for channel in (self.orchestrator, *self._evaluator_channels):
            channel.close()

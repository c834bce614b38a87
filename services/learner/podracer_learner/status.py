"""What a learner does now, for who asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from podracer.learner.v1 import learner_service_pb2
from podracer.orchestrator.v1 import pod_service_pb2

if TYPE_CHECKING:
    from podracer_core.training.session import Progress
    from podracer_learner.round_setup import RoundSetup

__all__ = ["LearnerStatus", "Presence"]


@dataclass(frozen=True, slots=True)
class Presence:
    """One look at the learner; replaced as a whole."""

    state: learner_service_pb2.LearnerState.ValueType = learner_service_pb2.LEARNER_STATE_IDLE
    lease: str = ""
    fence: int = 0
    agents: tuple[str, ...] = ()
    updates: int = 0
    env_steps: int = 0
    env_steps_per_second: float = 0.0
    worker_count: int = 0
    evaluator_count: int = 0
    policy_version: int = 0
    staleness: float = 0.0


class LearnerStatus:
    """The newest Presence: written by the main thread, read by rpc threads."""

    def __init__(self) -> None:
        self.presence = Presence()

    def idle(self) -> None:
        """Waits for work."""
        self.presence = Presence()

    def draining(self) -> None:
        """Is about to stop."""
        self.presence = Presence(learner_service_pb2.LEARNER_STATE_DRAINING)

    def training(
        self,
        lease: pod_service_pb2.Lease,
        progress: Progress,
        env_steps_per_second: float,
        setup: RoundSetup,
    ) -> None:
        """Where the round stands."""
        source, judge = setup.source, setup.judge
        self.presence = Presence(
            learner_service_pb2.LEARNER_STATE_TRAINING,
            lease.name,
            lease.fence,
            _agents(lease),
            progress.updates,
            sum(progress.env_steps),
            env_steps_per_second,
            source.worker_count,
            0 if judge is None else judge.evaluator_count,
            setup.algorithm.version,
            source.staleness,
        )

    def working(self, lease: pod_service_pb2.Lease) -> None:
        """Has just leased something."""
        training = lease.WhichOneof("work") in ("train", "follow")
        state = learner_service_pb2.LEARNER_STATE_TRAINING if training else learner_service_pb2.LEARNER_STATE_BUSY
        self.presence = Presence(state, lease.name, lease.fence, _agents(lease))


def _agents(lease: pod_service_pb2.Lease) -> tuple[str, ...]:
    if lease.WhichOneof("work") == "evaluate":
        return tuple(policy.agent for policy in lease.evaluate.policies)
    work = lease.follow.train if lease.WhichOneof("work") == "follow" else lease.train
    return tuple(agent.name for agent in work.cohort.members)

"""Transitions of agents that this learner has trained last: who goes on here goes on with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from podracer.common.v1 import agent_pb2
from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.training.session import MemberOutcome
from podracer_learner.checkpoints import base_env_steps

__all__ = ["ReplayCache"]


class ReplayCache:
    """Of the last lease only, in memory. What is to survive this process is in the checkpoints (`keep_replay`)."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], Mapping[str, Tensor]] = {}  # by agent, and its environment steps then

    def keep(
        self, algorithm: Algorithm, agents: Sequence[agent_pb2.AgentSpec], outcomes: Sequence[MemberOutcome]
    ) -> None:
        """Remember these in place of the ones before."""
        self._kept = {
            (agents[outcome.member].name, base_env_steps(agents[outcome.member]) + outcome.env_steps): state
            for outcome in outcomes
            if (state := algorithm.replay_state(outcome.member))
        }

    def find(self, agent: agent_pb2.AgentSpec) -> Mapping[str, Tensor] | None:
        """The transitions of an agent that goes on just where it stood; None where there are none."""
        return self._kept.get((agent.name, agent.resume.env_steps)) if agent.HasField("resume") else None

    def forget(self) -> None:
        """Give back the memory: who has just begun has taken what there was."""
        self._kept.clear()

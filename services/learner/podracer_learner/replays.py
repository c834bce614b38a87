"""Transitions of agents that this learner has trained last: who goes on here goes on with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from podracer.common.v1 import agent_pb2
from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.buffers.memory import free_bytes
from podracer_core.training.session import MemberOutcome
from podracer_learner.checkpoints import base_env_steps

__all__ = ["ReplayCache"]

_MOST = 0.5  # of the free memory


class ReplayCache:
    """Of the last lease only, in the host's memory, of which it takes at most half of what is free.

    What is to survive this process is in the checkpoints (`keep_replay`).
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], Mapping[str, Tensor]] = {}  # by agent, and its environment steps then

    def keep(
        self, algorithm: Algorithm, agents: Sequence[agent_pb2.AgentSpec], outcomes: Sequence[MemberOutcome]
    ) -> None:
        """Remember these in place of the ones before, as many as there is room for."""
        self._kept = {}
        free, taken = free_bytes(torch.device("cpu")), 0
        for outcome in outcomes:
            agent = agents[outcome.member]
            state = {name: tensor.cpu() for name, tensor in algorithm.replay_state(outcome.member).items()}
            taken += sum(tensor.nbytes for tensor in state.values())
            if free is not None and taken > _MOST * free:
                return
            if state:
                self._kept[agent.name, base_env_steps(agent) + outcome.env_steps] = state

    def find(self, agent: agent_pb2.AgentSpec) -> Mapping[str, Tensor] | None:
        """The transitions of an agent that goes on just where it stood; None where there are none."""
        return self._kept.get((agent.name, agent.resume.env_steps)) if agent.HasField("resume") else None

    def forget(self) -> None:
        """Give back the memory: who has just begun has taken what there was."""
        self._kept.clear()

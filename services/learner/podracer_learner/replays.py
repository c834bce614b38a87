"""Transitions of agents that this learner has trained last, as the lead or a follower: who goes on here has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from podracer.common.v1 import agent_pb2
from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.buffers.memory import free_bytes
from podracer_core.training.session import MemberOutcome
from podracer_learner.checkpoints import base_env_steps

__all__ = ["ReplayCache", "StoredReplays"]

_MOST = 0.5  # of the free memory
_SMALL_BYTES = 16 << 20


class StoredReplays:
    """Which transitions go into checkpoints: all where the job asks for them (`keep_replay`), else those of an agent
    that has few of them, where the store is a folder: what they save is worth more than so much of a disk."""

    def __init__(self, algorithm: Algorithm, store_url: str, *, asked_for: bool) -> None:
        self._algorithm, self._asked_for = algorithm, asked_for
        self._may_store = asked_for or store_url.startswith("file:")

    def of(self, member: int) -> dict[str, Tensor]:
        state = self._algorithm.replay_state(member) if self._may_store else {}
        # It only grows: of what is too large now no copy is made again.
        self._may_store &= self._asked_for or sum(tensor.nbytes for tensor in state.values()) <= _SMALL_BYTES
        return state if self._may_store else {}


class ReplayCache:
    """Of the last lease only, in the host's memory, of which it takes at most half of what is free.

    What is to survive this process is in the checkpoints (`keep_replay`).
    """

    def __init__(self) -> None:
        # By agent, with its environment steps then; None: of a follower, to whom nobody has told them.
        self._kept: dict[str, tuple[int | None, Mapping[str, Tensor]]] = {}

    def keep(
        self, algorithm: Algorithm, agents: Sequence[agent_pb2.AgentSpec], outcomes: Sequence[MemberOutcome]
    ) -> None:
        """Remember these in place of the ones before, as many as there is room for."""
        steps = {outcome.member: base_env_steps(agents[outcome.member]) + outcome.env_steps for outcome in outcomes}
        self._keep(algorithm, ((agents[member].name, member, env_steps) for member, env_steps in steps.items()))

    def keep_followed(self, algorithm: Algorithm, agents: Sequence[agent_pb2.AgentSpec]) -> None:
        """The same of a follower's: its own part of what the agents have seen, wherever their lead has taken them."""
        self._keep(algorithm, ((agent.name, member, None) for member, agent in enumerate(agents)))

    def find(self, agent: agent_pb2.AgentSpec, *, follows: bool = False) -> Mapping[str, Tensor] | None:
        """The transitions of an agent that goes on just where it stood, or with several learners; None where there are
        none. `follows`: also of one that has gone on elsewhere meanwhile."""
        env_steps, state = self._kept.get(agent.name, (-1, None))
        if not agent.HasField("resume"):
            return None
        return state if follows or env_steps in (None, agent.resume.env_steps) else None

    def of_parent(self, agent: agent_pb2.AgentSpec) -> Mapping[str, Tensor] | None:
        """What the first parent of an agent that inherits transitions has seen, also since its checkpoint."""
        return self._kept.get(agent.initialization.parents[0].agent, (None, None))[1]

    def forget(self) -> None:
        """Give back the memory: who has just begun has taken what there was."""
        self._kept.clear()

    def _keep(self, algorithm: Algorithm, members: Iterable[tuple[str, int, int | None]]) -> None:
        self._kept = {}
        free, taken = free_bytes(torch.device("cpu")), 0
        for name, member, env_steps in members:
            state = {key: tensor.cpu() for key, tensor in algorithm.replay_state(member).items()}
            taken += sum(tensor.nbytes for tensor in state.values())
            if free is not None and taken > _MOST * free:
                return
            if state:
                self._kept[name] = env_steps, state

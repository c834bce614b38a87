"""The members' initial states: resumed, inherited or fresh, and the transitions that this learner
has kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from podracer.common.v1 import agent_pb2
from podracer_core.algorithms import Algorithm
from podracer_core.checkpoint import Checkpoint
from podracer_core.device import free_bytes
from podracer_core.errors import InvalidInput
from podracer_core.storage import ManifestFile, ObjectStore
from podracer_core.training import EnvironmentState, MemberOutcome, ParentKind, inherit, resume
from podracer_learner.checkpoints import (
    base_env_steps,
    read_references,
    replay_files,
    stored_transitions,
)

_ENVIRONMENT_BITS = 20  # a learner has fewer environments of a member than 2 to this

_KINDS: dict[int, ParentKind] = {
    agent_pb2.INITIALIZATION_KIND_COPY: "copy",
    agent_pb2.INITIALIZATION_KIND_NOISE: "noise",
    agent_pb2.INITIALIZATION_KIND_FUSE: "fuse",
}

_MOST = 0.5  # of the free memory
_SMALL_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class InitialAgents:
    """The initial states of the members' environments.

    step_count    int64 [M]: steps per environment that each agent has taken, its place in its
                  random streams
    environments  the states to continue from; None: new episodes
    rank          of this learner among several of the same agents
    replay_files  files of transitions in the checkpoints that members continue from
    """

    step_count: torch.Tensor
    environments: list[EnvironmentState | None]
    rank: int = 0
    replay_files: Sequence[Sequence[ManifestFile]] = ()

    @property
    def first_environment(self) -> int:
        """Number of the first one within each member: several learners' must not draw the same
        numbers."""
        return self.rank << _ENVIRONMENT_BITS


def load_initial_agents(
    algorithm: Algorithm,
    agents: Sequence[agent_pb2.AgentSpec],
    store: ObjectStore,
    replays: ReplayCache,
    rank: int = 0,
) -> InitialAgents:
    """Load every member's initial state, and its transitions if `replays` or its checkpoint has
    them.

    The environments of a checkpoint are the lead's (rank 0); other ranks begin new episodes. Raises
    DataCorrupted or NotFound for a checkpoint that differs from what was committed, InvalidInput
    for one that does not fit."""
    # the first environment is an int32 for workers
    if not 0 <= rank < 1 << (31 - _ENVIRONMENT_BITS):
        raise InvalidInput(f"no learner has rank {rank}", reason="NO_RANK")
    references = [_references(agent) for agent in agents]
    transitions = [replays.find(agent, follows=rank > 0) for agent in agents]
    needed = [
        cached is None and (agent.HasField("resume") or agent.initialization.inherit_replay)
        for agent, found, cached in zip(agents, references, transitions, strict=True)
        for _ in found
    ]
    every = [reference for found in references for reference in found]
    loaded = iter(read_references(store, every, with_replay=needed))
    step_count = torch.zeros(len(agents), dtype=torch.int64)
    environments: list[EnvironmentState | None] = []
    files: list[Sequence[ManifestFile]] = []
    for member, (agent, found) in enumerate(zip(agents, references, strict=True)):
        checkpoints = [next(loaded) for _ in found]
        environments.append(None)
        files.append(())
        if agent.HasField("resume"):
            (own,) = checkpoints
            resume(algorithm, member, own.groups)
            step_count[member] = own.groups.get("random", {}).get("step_count", step_count[member])
            environments[member] = (
                dict(own.groups["environment"]) if "environment" in own.groups else None
            )
            transitions[member] = transitions[member] or stored_transitions(own)
            files[member] = replay_files(own.files)
        elif checkpoints:
            _inherit(algorithm, member, agent.initialization, checkpoints)
            if agent.initialization.inherit_replay:
                transitions[member] = stored_transitions(checkpoints[0]) or replays.of_parent(agent)
    replays.forget()
    if any(transitions):
        algorithm.load_replay_states(transitions)
    return InitialAgents(
        step_count, environments if rank == 0 else [None] * len(agents), rank, files
    )


def _references(agent: agent_pb2.AgentSpec) -> list[agent_pb2.CheckpointReference]:
    """The checkpoints that a member starts from."""
    if agent.HasField("resume"):
        return [agent.resume]
    initialization = agent.initialization
    if initialization.kind == agent_pb2.INITIALIZATION_KIND_FRESH:
        return []
    if initialization.kind not in _KINDS:
        raise InvalidInput(
            f"{agent.name} has no kind of initialization", reason="NO_INITIALIZATION"
        )
    return [parent.checkpoint for parent in initialization.parents]


def _inherit(
    algorithm: Algorithm,
    member: int,
    initialization: agent_pb2.Initialization,
    parents: Sequence[Checkpoint],
) -> None:
    kind = _KINDS[initialization.kind]
    keep = (
        initialization.keep_optimizer
        if initialization.HasField("keep_optimizer")
        else kind == "copy"
    )
    weights = [parent.weight for parent in initialization.parents]
    try:
        inherit(
            algorithm,
            member,
            kind,
            [
                (checkpoint.groups, weight)
                for checkpoint, weight in zip(parents, weights, strict=True)
            ],
            keep_optimizer=keep,
            noise_scale=initialization.noise_scale,
            noise_seed=initialization.seed,
        )
    except InvalidInput as error:
        names = " and ".join(parent.agent for parent in initialization.parents)
        message = (
            f"no agent can start from {names}, made for other observations, actions or "
            f"networks: {error.message}"
        )
        raise InvalidInput(message, reason=error.reason) from error


class StoredReplays:
    """Selects the transitions for checkpoints: all if the job asks for them (`keep_replay`), else
    those of agents with few of them if the store is a folder, where they are worth the disk
    space."""

    def __init__(self, algorithm: Algorithm, store_url: str, *, asked_for: bool) -> None:
        self._algorithm, self._asked_for = algorithm, asked_for
        self._may_store = asked_for or store_url.startswith("file:")

    def of(self, member: int) -> dict[str, Tensor]:
        state = self._algorithm.replay_state(member) if self._may_store else {}
        # It only grows: of what is too large now no copy is made again.
        self._may_store &= (
            self._asked_for or sum(tensor.nbytes for tensor in state.values()) <= _SMALL_BYTES
        )
        return state if self._may_store else {}


class ReplayCache:
    """Transitions of the last lease in the host's memory, in at most half of what is free.

    Transitions that must survive this process are in the checkpoints (`keep_replay`).
    """

    def __init__(self) -> None:
        # By agent, with its environment steps then; None for a follower, which does not know them.
        self._kept: dict[str, tuple[int | None, Mapping[str, Tensor]]] = {}

    def keep(
        self,
        algorithm: Algorithm,
        agents: Sequence[agent_pb2.AgentSpec],
        outcomes: Sequence[MemberOutcome],
    ) -> None:
        """Keep these instead of the former ones, as many as there is room for."""
        steps = {
            outcome.member: base_env_steps(agents[outcome.member]) + outcome.env_steps
            for outcome in outcomes
        }
        self._keep(
            algorithm,
            ((agents[member].name, member, env_steps) for member, env_steps in steps.items()),
        )

    def keep_followed(self, algorithm: Algorithm, agents: Sequence[agent_pb2.AgentSpec]) -> None:
        """Keep a follower's transitions: its own part of the agents' experience, however far the
        lead has trained."""
        self._keep(algorithm, ((agent.name, member, None) for member, agent in enumerate(agents)))

    def find(
        self, agent: agent_pb2.AgentSpec, *, follows: bool = False
    ) -> Mapping[str, Tensor] | None:
        """The transitions of an agent that continues exactly where it stood, or with several
        learners; None if there are none. `follows`: also of an agent that was trained elsewhere
        meanwhile."""
        env_steps, state = self._kept.get(agent.name, (-1, None))
        if not agent.HasField("resume"):
            return None
        return state if follows or env_steps in (None, agent.resume.env_steps) else None

    def of_parent(self, agent: agent_pb2.AgentSpec) -> Mapping[str, Tensor] | None:
        """The transitions of the first parent of an agent that inherits them, including those after
        its checkpoint."""
        return self._kept.get(agent.initialization.parents[0].agent, (None, None))[1]

    def forget(self) -> None:
        """Free the memory: the new round has taken what it needs."""
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

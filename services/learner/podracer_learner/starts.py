"""How a lease's members begin: resumed, inherited or fresh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from podracer.common.v1 import agent_pb2
from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.checkpoint import Checkpoint
from podracer_core.errors import InvalidInput
from podracer_core.storage.manifest import ManifestFile
from podracer_core.storage.object_store import ObjectStore
from podracer_core.training.environment_states import EnvironmentState
from podracer_core.training.start import ParentKind, inherit, resume
from podracer_learner.checkpoints import read_references, replay_files, stored_transitions
from podracer_learner.replays import ReplayCache

__all__ = ["Starts", "load_starts"]

_ENVIRONMENT_BITS = 20  # a learner has fewer environments of a member than 2 to this

_KINDS: dict[int, ParentKind] = {
    agent_pb2.INITIALIZATION_KIND_COPY: "copy",
    agent_pb2.INITIALIZATION_KIND_NOISE: "noise",
    agent_pb2.INITIALIZATION_KIND_FUSE: "fuse",
}


@dataclass(frozen=True, slots=True)
class Starts:
    """Where the members' environments begin.

    step_count    int64 [M]: steps per environment that each agent has taken, its place in its random streams
    environments  the states to go on from; None: new episodes
    rank          of this learner among several of the same agents
    replay_files  files of transitions in the checkpoints that members go on from
    """

    step_count: torch.Tensor
    environments: list[EnvironmentState | None]
    rank: int = 0
    replay_files: Sequence[Sequence[ManifestFile]] = ()

    @property
    def first_environment(self) -> int:
        """Number of the first one within each member: several learners' must not draw the same numbers."""
        return self.rank << _ENVIRONMENT_BITS


def load_starts(
    algorithm: Algorithm,
    agents: Sequence[agent_pb2.AgentSpec],
    store: ObjectStore,
    replays: ReplayCache,
    rank: int = 0,
) -> Starts:
    """Put every member where it begins, with its transitions where `replays` or its checkpoint has them.

    The environments of a checkpoint are the lead's, of rank 0; others begin new episodes.
    Raises DataCorrupted or NotFound for a checkpoint that is not as committed, InvalidInput for one that does not fit.
    """
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
            environments[member] = dict(own.groups["environment"]) if "environment" in own.groups else None
            transitions[member] = transitions[member] or stored_transitions(own)
            files[member] = replay_files(own.files)
        elif checkpoints:
            _inherit(algorithm, member, agent.initialization, checkpoints)
            if agent.initialization.inherit_replay:
                transitions[member] = stored_transitions(checkpoints[0]) or replays.of_parent(agent)
    replays.forget()
    if any(transitions):
        algorithm.load_replay_states(transitions)
    return Starts(step_count, environments if rank == 0 else [None] * len(agents), rank, files)


def _references(agent: agent_pb2.AgentSpec) -> list[agent_pb2.CheckpointReference]:
    """The checkpoints that a member begins with."""
    if agent.HasField("resume"):
        return [agent.resume]
    initialization = agent.initialization
    if initialization.kind == agent_pb2.INITIALIZATION_KIND_FRESH:
        return []
    if initialization.kind not in _KINDS:
        raise InvalidInput(f"{agent.name} has no kind of initialization", reason="NO_INITIALIZATION")
    return [parent.checkpoint for parent in initialization.parents]


def _inherit(
    algorithm: Algorithm, member: int, initialization: agent_pb2.Initialization, parents: Sequence[Checkpoint]
) -> None:
    kind = _KINDS[initialization.kind]
    keep = initialization.keep_optimizer if initialization.HasField("keep_optimizer") else kind == "copy"
    weights = [parent.weight for parent in initialization.parents]
    inherit(
        algorithm,
        member,
        kind,
        [(checkpoint.groups, weight) for checkpoint, weight in zip(parents, weights, strict=True)],
        keep_optimizer=keep,
        noise_scale=initialization.noise_scale,
        noise_seed=initialization.seed,
    )

"""Writing members' checkpoints under a lease, and reading those that members start from."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from podracer.common.v1 import agent_pb2
from podracer_core.algorithms import CohortConfig, MemberState
from podracer_core.buffers import from_parts, to_parts
from podracer_core.catalogue import EnvironmentSpec, Space, find_algorithm, to_json
from podracer_core.checkpoint import (
    Checkpoint,
    load_checkpoint,
    load_packed_checkpoint,
    save_checkpoint,
)
from podracer_core.errors import InvalidInput
from podracer_core.evaluate import EvaluationResult, result_to_json
from podracer_core.storage import (
    REPLAY_FOLDER,
    CheckpointRef,
    ManifestFile,
    ObjectStore,
    agent_prefix,
    checkpoint_prefix,
)
from podracer_core.training import EnvironmentState
from podracer_platform.telemetry import CHECKPOINT_SIZE, CHECKPOINT_TIME, current, span

_PARALLEL = 8


@dataclass(frozen=True, slots=True)
class MemberWrite:
    """One checkpoint to write: the member, its steps in this lease, its state, its evaluation, and
    its transitions if the job asks for them."""

    member: int
    env_steps: int
    state: MemberState
    environment: EnvironmentState | None = None
    evaluation: EvaluationResult | None = None
    replay: Mapping[str, Tensor] = field(default_factory=dict)


class CheckpointWriter:
    """Writes into the store of one lease. The metadata have everything that acting and evaluation
    need."""

    def __init__(
        self,
        store: ObjectStore,
        agents: Sequence[agent_pb2.AgentSpec],
        cohort: CohortConfig,
        job_uid: str,
        fence: int,
        environment: EnvironmentSpec,
        spaces: tuple[Space, Space],
        earlier: Sequence[Sequence[ManifestFile]] = (),
        evaluator: str = "",
    ) -> None:
        """`spaces`: of one observation and one action. `earlier`: the files of transitions in the
        committed checkpoint that each member continues from; unchanged files are not written again.
        `evaluator`: its name."""
        self._store, self._agents, self._job_uid, self._fence = store, agents, job_uid, fence
        self._earlier: dict[int, Sequence[ManifestFile]] = {}
        for member, (agent, files) in enumerate(zip(agents, earlier, strict=False)):
            project, name = _ids(agent.name)
            if agent.resume.prefix.startswith(agent_prefix(project, job_uid, name)):
                self._earlier[member] = files
        # Whose, and the files of transitions, by the prefix of what has been written and not
        # committed.
        self._files: dict[str, tuple[int, Sequence[ManifestFile]]] = {}
        defaults = find_algorithm(cohort.algorithm).defaults()
        self._hyperparameters = [
            defaults | dict(cohort.shared) | dict(one.hyperparameters) for one in cohort.members
        ]
        observation_space, action_space = map(to_json, spaces)
        self._common: dict[str, Any] = {
            "environment": environment.to_metadata(),
            "observation_space": observation_space,
            "action_space": action_space,
            "algorithm": cohort.algorithm,
            "fence": fence,
        }
        if evaluator:
            self._common["evaluator"] = evaluator

    def write(
        self,
        writes: Sequence[MemberWrite],
        written: Callable[[MemberWrite, agent_pb2.CheckpointReference], None] = lambda _, __: None,
    ) -> list[agent_pb2.CheckpointReference]:
        """Write all, several at a time. `written` is called for each written one, in any thread,
        even if others fail. Raises Fenced as soon as the lease is lost."""

        def write(one: MemberWrite) -> agent_pb2.CheckpointReference:
            reference = self._write(one)
            written(one, reference)
            return reference

        with (
            span("write checkpoints", count=len(writes)),
            CHECKPOINT_TIME.timed(),
            ThreadPoolExecutor(_PARALLEL, thread_name_prefix="checkpoint") as pool,
        ):
            references = list(pool.map(write, writes))
            size_bytes = sum(reference.size_bytes for reference in references)
            CHECKPOINT_SIZE.add(size_bytes)
            current().set(size_bytes=size_bytes)
        return references

    def committed(self, references: Sequence[agent_pb2.CheckpointReference]) -> None:
        """Note committed checkpoints: their files are not deleted, so later checkpoints may refer
        to them."""
        for reference in references:
            if reference.prefix in self._files:
                member, files = self._files.pop(reference.prefix)
                self._earlier[member] = files

    def _write(self, write: MemberWrite) -> agent_pb2.CheckpointReference:
        agent = self._agents[write.member]
        env_steps = base_env_steps(agent) + write.env_steps
        project, name = _ids(agent.name)
        groups: dict[str, Any] = dict(write.state)
        if write.environment is not None:
            groups["environment"] = write.environment
        if write.replay:
            groups |= {
                f"{REPLAY_FOLDER}{name}": part for name, part in to_parts(write.replay).items()
            }
        prefix = checkpoint_prefix(project, self._job_uid, name, env_steps, self._fence)
        metadata = self._metadata(write, env_steps)
        reference = save_checkpoint(
            self._store, prefix, groups, metadata, self._earlier.get(write.member, ())
        )
        self._files[prefix] = write.member, replay_files(reference.files)
        return _reference_message(reference, env_steps, self._fence)

    def _metadata(self, write: MemberWrite, env_steps: int) -> Mapping[str, Any]:
        agent = self._agents[write.member]
        metadata = self._common | {
            "agent": agent.name,
            "seed": agent.seed,
            "hyperparameters": {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in self._hyperparameters[write.member].items()
            },
            "env_steps": env_steps,
        }
        return (
            metadata
            if write.evaluation is None
            else metadata | {"evaluation": result_to_json(write.evaluation)}
        )


def read_references(
    store: ObjectStore,
    references: Sequence[agent_pb2.CheckpointReference],
    groups: tuple[str, ...] | None = None,
    with_replay: Iterable[bool] = itertools.repeat(True),
) -> list[Checkpoint]:
    """Read and verify checkpoints or some of their groups, each with or without its transitions,
    several at a time. Raises DataCorrupted for one that differs from what was committed."""

    def read(reference: agent_pb2.CheckpointReference, whole: bool) -> Checkpoint:
        if not reference.prefix.endswith("/"):  # a user's, uploaded
            return load_packed_checkpoint(
                store, reference.prefix, reference.manifest_sha256, reference.size_bytes
            )
        skip = () if whole else (REPLAY_FOLDER.rstrip("/"),)
        return load_checkpoint(store, reference.prefix, reference.manifest_sha256, groups, skip)

    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="checkpoint") as pool:
        return list(pool.map(read, references, with_replay))


def stored_transitions(checkpoint: Checkpoint) -> Mapping[str, Tensor] | None:
    """A checkpoint's transitions; None if it has none."""
    groups = {
        name: group for name, group in checkpoint.groups.items() if name.startswith(REPLAY_FOLDER)
    }
    parts = {name.removeprefix(REPLAY_FOLDER): group for name, group in groups.items()}
    return from_parts(parts) if parts else None


def replay_files(files: Sequence[ManifestFile]) -> Sequence[ManifestFile]:
    """The files that hold transitions."""
    return [file for file in files if file.path.startswith(REPLAY_FOLDER)]


def _reference_message(
    reference: CheckpointRef, env_steps: int, fence: int
) -> agent_pb2.CheckpointReference:
    """The reference of a new checkpoint; `env_steps` are the lineage's."""
    message = agent_pb2.CheckpointReference(
        prefix=reference.prefix,
        manifest_sha256=reference.manifest_sha256,
        size_bytes=reference.size_bytes,
        env_steps=env_steps,
        fence=fence,
    )
    message.create_time.GetCurrentTime()
    return message


def base_env_steps(agent: agent_pb2.AgentSpec) -> int:
    """Environment steps of the agent's lineage before this lease."""
    return agent.resume.env_steps if agent.HasField("resume") else agent.env_steps


def _ids(name: str) -> tuple[str, str]:
    """projects/p/jobs/j/agents/a -> p, a."""
    parts = name.split("/")
    if len(parts) != 6 or parts[::2] != ["projects", "jobs", "agents"]:
        raise InvalidInput(
            f"{name!r} is not the name of an agent: projects/p/jobs/j/agents/a",
            reason="INVALID_NAME",
        )
    return parts[1], parts[5]

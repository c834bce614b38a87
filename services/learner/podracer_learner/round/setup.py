"""A TRAIN grant -> everything that the core needs to train it, in the fused or the split layout;
and the members' initial states: resumed, inherited or fresh, with the transitions that this learner
has kept."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import gymnasium
import torch
from torch import Tensor

from podracer.common.v1 import agent_pb2, environment_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.algorithms import Algorithm, CohortConfig
from podracer_core.catalogue import MOST_EPISODE_STEPS, EnvironmentSpec, Space, find_algorithm
from podracer_core.checkpoint import Checkpoint
from podracer_core.collect import Collector
from podracer_core.device import free_bytes
from podracer_core.environments import (
    action_array_space,
    device_for,
    evaluates_alike,
    from_gymnasium,
    is_evaluated_beside,
    make_vec_environment,
    observation_array_space,
    to_gymnasium,
)
from podracer_core.environments.processes import core_count
from podracer_core.errors import InvalidInput, PreconditionFailed
from podracer_core.sections import EVALUATION_FRACTION
from podracer_core.storage import ManifestFile, ObjectStore
from podracer_core.training import (
    EnvironmentState,
    EvaluationBackend,
    InProcessBackend,
    InProcessSource,
    MemberOutcome,
    OverlappingSource,
    ParentKind,
    ProcessBackend,
    RolloutSource,
    RoundPlan,
    fitting_algorithm,
    fitting_envs,
    inherit,
    resume,
    resume_environments,
    usual_envs_per_member,
)
from podracer_learner.checkpoints import (
    base_env_steps,
    read_references,
    replay_files,
    stored_transitions,
)
from podracer_learner.config import LearnerConfig
from podracer_learner.evaluators import RemoteBackend, require_user_code_allowed
from podracer_learner.peers import Peers
from podracer_learner.user_files import FetchedFiles, UserFiles
from podracer_learner.workers import RemoteSource, WorkerPlan
from podracer_platform.carriers import Endpoint
from podracer_platform.messages import (
    environment_from_message,
    evaluation_plan_from_message,
    objective_from_message,
    seconds_from_duration,
    space_from_message,
)
from podracer_platform.training_messages import cohort_from_message

logger = logging.getLogger(__name__)

_ROLLOUT_PART = 0.4  # of a round's time that a rollout of workers may take


@dataclass(frozen=True, slots=True)
class RoundSetup:
    """Everything that a round needs. `spaces`: of the environment; `episode_steps`: the most steps
    of an episode; `held`: closed by `close`; `environment`: the job's, with files in the object
    store; `backend`: None for a learner that does not evaluate; `replay_files`: of the checkpoints
    that members continue from; `sizes`: a text."""

    cohort: CohortConfig
    environment: EnvironmentSpec
    spaces: tuple[Space, Space]
    episode_steps: int
    algorithm: Algorithm
    source: RolloutSource
    backend: EvaluationBackend | None
    plan: RoundPlan
    replay_files: Sequence[Sequence[ManifestFile]]
    sizes: str
    held: ExitStack

    def close(self) -> None:
        """Close sessions and environments, and then release their files."""
        self.held.close()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a round's environments are, and what is known of them before there is an algorithm.

    envs           of each member
    arrays         the spaces of the batch
    observation    the space of one observation
    episode_steps  the most steps of an episode; 0: unknown
    source         makes the source of rollouts
    backend        makes the evaluation backend
    """

    device: str
    envs: int
    arrays: tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
    observation: Space
    episode_steps: int
    source: Callable[[Algorithm, InitialAgents], RolloutSource]
    backend: Callable[[Algorithm], EvaluationBackend]


def set_up_round(
    work: pod_service_pb2.TrainWork,
    config: LearnerConfig,
    peers: Peers,
    user_files: UserFiles,
    replays: ReplayCache,
    rank: int = 0,
) -> RoundSetup:
    """Build the cohort, load every member's initial state, and open rollout source and evaluation
    backend.

    `user_files` has the environment's files and the store. rank: of this learner among several of
    the same agents. All but the lead (rank 0) begin new episodes in their own environments and do
    not evaluate. Raises UserCodeFailed if the environment does not start, InvalidInput for invalid
    work, and the errors of `user_files`."""
    spec = environment_from_message(work.cohort.environment)
    if config.layout == "fused":
        require_user_code_allowed(work.cohort.environment, config)
    with ExitStack() as held:
        fetched = held.enter_context(user_files.fetch(spec))
        cohort = cohort_from_message(work.cohort)
        if config.layout == "fused":
            place = _fused_place(work, config, cohort, fetched, held)
        else:
            place = _split_place(work, config, user_files.check, peers, fetched)
        algorithm = fitting_algorithm(cohort, place.envs, *place.arrays, place.device)
        agents = work.cohort.members
        starts = load_initial_agents(algorithm, agents, user_files.store, replays, rank)
        source = place.source(algorithm, starts)
        held.callback(source.close)
        backend = None
        if rank == 0 and not work.unjudged:
            backend = place.backend(algorithm)
            held.callback(backend.close)
        source.opened()
        sizes = describe_sizes(algorithm, place.envs)
        logger.info("%d agents train: %s", algorithm.members, sizes)
        return RoundSetup(
            cohort,
            spec,
            (place.observation, from_gymnasium(place.arrays[1])),
            place.episode_steps or spec.evaluation_steps or MOST_EPISODE_STEPS,
            algorithm,
            source,
            backend,
            round_plan(work),
            starts.replay_files,
            sizes,
            held.pop_all(),
        )


def _fused_place(
    work: pod_service_pb2.TrainWork,
    config: LearnerConfig,
    cohort: CohortConfig,
    fetched: FetchedFiles,
    held: ExitStack,
) -> _Place:
    """This process. `held` collects what the round has to close."""
    spec = held.enter_context(fetched.place()).spec
    device = device_for(config.device, fetched.spec)
    horizon = cohort.shared_values(find_algorithm(cohort.algorithm)).get("horizon", 1)
    envs = envs_per_member(work, fetched.spec, device, horizon=horizon)
    environment = make_vec_environment(spec, len(cohort.members) * envs, device)
    held.callback(environment.close)
    arrays = environment.observation_space, environment.action_space

    def make_source(algorithm: Algorithm, starts: InitialAgents) -> RolloutSource:
        overlapping = device != "cpu" and not work.deterministic
        collector = Collector(
            environment,
            algorithm.make_actor(cohort, *arrays, device) if overlapping else algorithm.actor,
            torch.tensor([member.seed for member in cohort.members]),
            first_step=starts.step_count,
            first_environment=starts.first_environment,
            session=starts.step_count,
            buffers=2 if overlapping else 1,
        )
        resume_environments(collector, starts.environments)
        if overlapping:
            return OverlappingSource(collector, algorithm, config.ahead)
        return InProcessSource(collector, algorithm)

    def make_backend(algorithm: Algorithm) -> EvaluationBackend:
        evaluator = work.evaluation.evaluator
        if is_evaluated_beside(spec, device):
            return ProcessBackend(cohort, spec, evaluator, keep=True)
        make_judged = functools.partial(make_vec_environment, spec, evaluation=True)
        return InProcessBackend(make_judged, evaluator=evaluator, all_alike=evaluates_alike(spec))

    observation = environment.original_space or from_gymnasium(arrays[0])
    episode_steps = environment.max_episode_steps or 0
    return _Place(device, envs, arrays, observation, episode_steps, make_source, make_backend)


def _split_place(
    work: pod_service_pb2.TrainWork,
    config: LearnerConfig,
    check: Callable[[], None],
    peers: Peers,
    fetched: FetchedFiles,
) -> _Place:
    """Workers and evaluators."""
    if not work.cohort.HasField("environment_description"):
        text = "a split pod must be told the environment's spaces"
        raise InvalidInput(text, reason="NO_ENVIRONMENT_DESCRIPTION")
    description = work.cohort.environment_description
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    envs = envs_per_member(work, fetched.spec, device, here=False)

    def make_source(algorithm: Algorithm, starts: InitialAgents) -> RolloutSource:
        plan = WorkerPlan(
            work.cohort,
            fetched,
            envs,
            algorithm.horizon,
            lock_step=work.deterministic,
            ahead=config.ahead,
            max_workers=config.max_workers,
            patience_s=config.peer_patience,
            check=check,
            check_environment=functools.partial(require_same_environment, description),
            endpoint=Endpoint(peers.folder, sends=False, device=algorithm.device),
            first_environment=starts.first_environment,
            rollout_s=_ROLLOUT_PART * seconds_from_duration(work.budget.time),
        )
        count, states = starts.step_count, starts.environments
        return RemoteSource(plan, peers.workers, algorithm, count, states)

    def make_backend(algorithm: Algorithm) -> EvaluationBackend:
        endpoint = Endpoint(peers.folder, sends=True, device=algorithm.device)
        evaluator = work.evaluation.evaluator
        return RemoteBackend(work.cohort, fetched, peers.evaluators, check, endpoint, evaluator)

    return _Place(
        device,
        envs,
        _array_spaces(description),
        space_from_message(description.observation_space),
        description.max_episode_steps,
        make_source,
        make_backend,
    )


def _array_spaces(
    description: environment_pb2.EnvironmentDescription,
) -> tuple[gymnasium.Space[object], gymnasium.Space[object]]:
    """The spaces of the batch, with flat observations."""
    observation_space = to_gymnasium(space_from_message(description.observation_space))
    action_space = to_gymnasium(space_from_message(description.action_space))
    return observation_array_space(observation_space), action_array_space(action_space)


def require_same_environment(
    expected: environment_pb2.EnvironmentDescription,
    started: environment_pb2.EnvironmentDescription,
) -> None:
    """Raise PreconditionFailed (ENVIRONMENT_MISMATCH) if a worker's environment has other shapes
    than the job's, for example because another version of a package is installed."""
    wanted, there = (", ".join(map(_shape_text, _array_spaces(one))) for one in (expected, started))
    if wanted != there:
        raise PreconditionFailed(
            f"it has started an environment of {there}; the job's is of {wanted}",
            reason="ENVIRONMENT_MISMATCH",
            expected=wanted,
            started=there,
        )


def _shape_text(space: gymnasium.Space[object]) -> str:
    """A space without its bounds: `Box [4] float32`, `Discrete(2)`."""
    if isinstance(space, gymnasium.spaces.Box):
        return f"Box {list(space.shape)} {space.dtype}"
    return str(space)


def round_plan(work: pod_service_pb2.TrainWork) -> RoundPlan:
    """The round's end and evaluation."""
    budget, objective = work.budget, objective_from_message(work.objective)
    return RoundPlan(
        env_steps=budget.env_steps_per_member,
        duration_s=seconds_from_duration(budget.time) if budget.HasField("time") else None,
        cost_s=seconds_from_duration(budget.cost) if budget.HasField("cost") else None,
        evaluation_fraction=budget.evaluation_fraction or EVALUATION_FRACTION,
        target=objective.target_return,
        statistic=objective.statistic,
        episodes=evaluation_plan_from_message(work.evaluation).episodes,
        admission_score=work.admission_score if work.HasField("admission_score") else None,
        seed=work.cohort.seed,
        lowest_return=work.lowest_return if work.HasField("lowest_return") else math.inf,
    )


def envs_per_member(
    work: pod_service_pb2.TrainWork,
    spec: EnvironmentSpec,
    device: str,
    *,
    horizon: int = 1,
    here: bool = True,
) -> int:
    """The job's number of environments, else `usual_envs_per_member`, or fewer where inspection
    found them slow."""
    if work.cohort.envs_per_member:
        return work.cohort.envs_per_member
    members, budget = work.sized_for or len(work.cohort.members), work.budget
    usual = usual_envs_per_member(
        work.cohort.algorithm,
        spec,
        device,
        members,
        env_steps=budget.env_steps_per_member,
        horizon=horizon,
        here=here,
    )
    found = work.cohort.environment_description
    time_s = seconds_from_duration(budget.time) or seconds_from_duration(budget.cost) or None
    return fitting_envs(
        usual, members, seconds_from_duration(found.start_time), found.waits, core_count(), time_s
    )


def describe_sizes(algorithm: Algorithm, envs: int) -> str:
    """A text of one line; `envs` of each member."""
    parts = [str(algorithm.device), f"{envs:,} environments each", f"horizon {algorithm.horizon}"]
    sizes = algorithm.cohort.shared_values(find_algorithm(algorithm.cohort.algorithm))
    size = sizes.get("minibatch_size", sizes.get("batch_size"))
    if size is not None:
        parts.append(f"minibatches of {size:,}" if size else "minibatches of a quarter")
    return ", ".join(parts)


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

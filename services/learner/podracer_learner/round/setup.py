"""A TRAIN grant -> everything that the core needs to train it, in the fused or the split layout."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import gymnasium
import torch

from podracer.common.v1 import environment_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.algorithms import Algorithm, CohortConfig
from podracer_core.catalogue import MOST_EPISODE_STEPS, EnvironmentSpec, Space, find_algorithm
from podracer_core.collect import Collector
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
from podracer_core.storage import ManifestFile
from podracer_core.training import (
    EvaluationBackend,
    InProcessBackend,
    InProcessSource,
    OverlappingSource,
    ProcessBackend,
    RolloutSource,
    RoundPlan,
    fitting_algorithm,
    fitting_envs,
    resume_environments,
    usual_envs_per_member,
)
from podracer_learner.config import LearnerConfig
from podracer_learner.evaluators import RemoteBackend, require_user_code_allowed
from podracer_learner.peers import Peers
from podracer_learner.round.initial_agents import InitialAgents, ReplayCache, load_initial_agents
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

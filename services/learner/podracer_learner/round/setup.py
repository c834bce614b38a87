"""A TRAIN grant -> everything that the core needs to train it, in the fused or the split layout."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import gymnasium
import torch

from podracer.common.v1 import environment_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.algorithms.cohort import CohortConfig
from podracer_core.carriers.negotiation import Endpoint
from podracer_core.catalogue.algorithms import find_algorithm
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.catalogue.environments.evaluation_steps import MOST_EPISODE_STEPS
from podracer_core.catalogue.messages import environment_from_message, space_from_message
from podracer_core.catalogue.spaces import Space
from podracer_core.collect import Collector
from podracer_core.environments.registry import (
    device_for,
    evaluates_alike,
    is_evaluated_beside,
    make_vec_environment,
)
from podracer_core.environments.spaces import (
    action_array_space,
    from_gymnasium,
    observation_array_space,
    to_gymnasium,
)
from podracer_core.errors import InvalidInput, PreconditionFailed
from podracer_core.jobs.messages import seconds_from_duration
from podracer_core.storage.manifest import ManifestFile
from podracer_core.training.evaluation_backend import EvaluationBackend, InProcessBackend
from podracer_core.training.evaluation_process import ProcessBackend
from podracer_core.training.member_states import resume_environments
from podracer_core.training.messages import cohort_from_message
from podracer_core.training.plan import RoundPlan
from podracer_core.training.sizes import fitting_algorithm
from podracer_core.training.source import InProcessSource, OverlappingSource, RolloutSource
from podracer_learner.config import LearnerConfig
from podracer_learner.evaluators.calls import require_user_code_allowed
from podracer_learner.evaluators.remote_backend import RemoteBackend
from podracer_learner.peers import Peers
from podracer_learner.round.initial_agents import InitialAgents, ReplayCache, load_initial_agents
from podracer_learner.round.plan import describe_sizes, envs_per_member, round_plan
from podracer_learner.user_files import FetchedFiles, UserFiles
from podracer_learner.workers.source import RemoteSource, WorkerPlan

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
    begin = functools.partial(
        load_initial_agents,
        agents=work.cohort.members,
        store=user_files.store,
        replays=replays,
        rank=rank,
    )
    if config.layout == "fused":
        require_user_code_allowed(work.cohort.environment, config)
    with ExitStack() as held:
        fetched = held.enter_context(
            user_files.fetch(environment_from_message(work.cohort.environment))
        )
        if config.layout == "fused":
            placed = held.enter_context(fetched.place()).spec
            return _set_up_fused(work, config, begin, placed, held)
        return _set_up_split(work, config, user_files.check, begin, peers, fetched, held)


def _set_up_fused(
    work: pod_service_pb2.TrainWork,
    config: LearnerConfig,
    begin: Callable[[Algorithm], InitialAgents],
    placed: EnvironmentSpec,
    held: ExitStack,
) -> RoundSetup:
    """`placed`: the environment with its files; `held` collects what the round has to close."""
    cohort = cohort_from_message(work.cohort)
    spec = environment_from_message(work.cohort.environment)
    device = device_for(config.device, spec)
    horizon = cohort.shared_values(find_algorithm(cohort.algorithm)).get("horizon", 1)
    envs = envs_per_member(work, spec, device, horizon=horizon)
    environment = make_vec_environment(placed, len(cohort.members) * envs, device)
    held.callback(environment.close)
    spaces = environment.observation_space, environment.action_space
    algorithm = fitting_algorithm(cohort, envs, *spaces, device)
    starts = begin(algorithm)
    overlapping = device != "cpu" and not work.deterministic
    collector = Collector(
        environment,
        algorithm.make_actor(cohort, *spaces, device) if overlapping else algorithm.actor,
        torch.tensor([member.seed for member in cohort.members]),
        first_step=starts.step_count,
        first_environment=starts.first_environment,
        session=starts.step_count,
        buffers=2 if overlapping else 1,
    )
    source = (
        OverlappingSource(collector, algorithm, config.ahead)
        if overlapping
        else InProcessSource(collector, algorithm)
    )
    held.callback(source.close)
    resume_environments(collector, starts.environments)
    backend = None
    if starts.rank == 0 and not work.unjudged:
        backend = _local_backend(cohort, placed, device, work.evaluation.evaluator)
        held.callback(backend.close)
    return RoundSetup(
        cohort,
        spec,
        (environment.original_space or from_gymnasium(spaces[0]), from_gymnasium(spaces[1])),
        environment.max_episode_steps or spec.evaluation_steps or MOST_EPISODE_STEPS,
        algorithm,
        source,
        backend,
        round_plan(work),
        starts.replay_files,
        _told(algorithm, envs),
        held.pop_all(),
    )


def _local_backend(
    cohort: CohortConfig, placed: EnvironmentSpec, device: str, evaluator: str
) -> EvaluationBackend:
    if is_evaluated_beside(placed, device):
        return ProcessBackend(cohort, placed, evaluator, keep=True)
    make_judged = functools.partial(make_vec_environment, placed, evaluation=True)
    return InProcessBackend(make_judged, evaluator=evaluator, all_alike=evaluates_alike(placed))


def _told(algorithm: Algorithm, envs: int) -> str:
    sizes = describe_sizes(algorithm, envs)
    logger.info("%d agents train: %s", algorithm.members, sizes)
    return sizes


def _set_up_split(
    work: pod_service_pb2.TrainWork,
    config: LearnerConfig,
    check: Callable[[], None],
    begin: Callable[[Algorithm], InitialAgents],
    peers: Peers,
    fetched: FetchedFiles,
    held: ExitStack,
) -> RoundSetup:
    """`fetched`: the environment's files; `held` collects what the round has to close."""
    cohort = cohort_from_message(work.cohort)
    spec = environment_from_message(work.cohort.environment)
    spaces = _array_spaces(description := _description(work))
    device = (
        "cuda"
        if config.device == "auto" and torch.cuda.is_available()
        else config.device.replace("auto", "cpu")
    )
    envs = envs_per_member(work, spec, device, here=False)
    algorithm = fitting_algorithm(cohort, envs, *spaces, device)
    starts = begin(algorithm)
    plan = WorkerPlan(
        work.cohort, fetched, envs, algorithm.horizon,
        lock_step=work.deterministic,
        ahead=config.ahead,
        max_workers=config.max_workers,
        patience_s=config.peer_patience,
        check=check,
        check_environment=functools.partial(require_same_environment, description),
        endpoint=Endpoint(peers.folder, sends=False, device=algorithm.device),
        first_environment=starts.first_environment,
        rollout_s=_ROLLOUT_PART * seconds_from_duration(work.budget.time),
    )  # fmt: skip
    source = RemoteSource(plan, peers.workers, starts.step_count, starts.environments)
    held.callback(source.close)
    backend = None
    if starts.rank == 0 and not work.unjudged:
        backend = _remote_backend(work, check, peers, fetched, algorithm.device)
        held.callback(backend.close)
    source.serve(algorithm)
    source.opened()
    return RoundSetup(
        cohort,
        spec,
        (space_from_message(description.observation_space), from_gymnasium(spaces[1])),
        description.max_episode_steps or spec.evaluation_steps or MOST_EPISODE_STEPS,
        algorithm,
        source,
        backend,
        round_plan(work),
        starts.replay_files,
        _told(algorithm, plan.envs_per_member),
        held.pop_all(),
    )


def _description(work: pod_service_pb2.TrainWork) -> environment_pb2.EnvironmentDescription:
    if not work.cohort.HasField("environment_description"):
        raise InvalidInput(
            "a split pod must be told the environment's spaces", reason="NO_ENVIRONMENT_DESCRIPTION"
        )
    return work.cohort.environment_description


def _remote_backend(
    work: pod_service_pb2.TrainWork,
    check: Callable[[], None],
    peers: Peers,
    fetched: FetchedFiles,
    device: torch.device,
) -> RemoteBackend:
    sending = Endpoint(peers.folder, sends=True, device=device)
    return RemoteBackend(
        work.cohort, fetched, peers.evaluators, check, sending, work.evaluation.evaluator
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

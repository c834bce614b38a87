"""What a grant leaves open: when its round ends, and how many environments an agent has, by device and algorithm."""

from __future__ import annotations

from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.catalogue.algorithms import find_algorithm
from podracer_core.catalogue.environments import EnvironmentSpec, find_environment
from podracer_core.environments.registry import batched_class
from podracer_core.jobs.messages import seconds_from_duration
from podracer_core.jobs.objective import EVALUATION_FRACTION, EvaluationPlan, Objective
from podracer_core.training.plan import RoundPlan

_BATCHED_ENVS = 256  # of a cohort, where one process steps them all at once
_SINGLE_ENVS = 16  # of a member, where each takes its steps by itself: more at once gain little
_REPLAYING_ENVS = 8  # of a member

# A GPU takes thousands of worlds in hardly more time than a hundred. rsl_rl and Isaac Lab train with 4,096, MuJoCo
# Playground with 2,048 to 8,192, PufferLib with 4,096; replay runs with 128 a policy (MuJoCo Playground's SAC,
# FastTD3). A minibatch is large accordingly: PPO's default is a quarter of the rollout, as in Isaac Lab.
_GPU_ENVS = 4096  # of a cohort, but of a member no fewer than one that replays has
_GPU_REPLAYING_ENVS = 128  # of a member
_LEAST_UPDATES = 16  # in a round whose steps are limited


def round_plan(work: pod_service_pb2.TrainWork) -> RoundPlan:
    """When the round ends and how it is judged."""
    budget, objective = work.budget, Objective.from_message(work.objective)
    return RoundPlan(
        env_steps=budget.env_steps_per_member,
        duration_s=seconds_from_duration(budget.time) if budget.HasField("time") else None,
        cost_s=seconds_from_duration(budget.cost) if budget.HasField("cost") else None,
        evaluation_fraction=budget.evaluation_fraction or EVALUATION_FRACTION,
        target=objective.target_return,
        statistic=objective.statistic,
        episodes=EvaluationPlan.from_message(work.evaluation).episodes,
        admission_score=work.admission_score if work.HasField("admission_score") else None,
        seed=work.cohort.seed,
    )


def envs_per_member(
    work: pod_service_pb2.TrainWork, spec: EnvironmentSpec, device: str, *, horizon: int = 1, here: bool = True
) -> int:
    """As the job says, else so many that one batch is well filled and a member still sees enough of each rollout.

    An algorithm that replays needs few: what counts is how often it learns between two steps. A GPU has more of both,
    where they are stepped `here` (workers may have none), as long as the round's steps last for some rollouts of
    `horizon` steps.
    """
    if work.cohort.envs_per_member:
        return work.cohort.envs_per_member
    on_policy = find_algorithm(work.cohort.algorithm).on_policy
    members = work.sized_for or len(work.cohort.members)
    is_physics = bool(spec.id) and find_environment(spec.id).backend == "mujoco"
    if not on_policy:
        usual = _REPLAYING_ENVS
    elif batched_class(spec) is None or (is_physics and device == "cpu"):
        usual = _SINGLE_ENVS
    else:
        usual = max(_SINGLE_ENVS, _BATCHED_ENVS // members)
    if not here or device == "cpu" or batched_class(spec) is None:
        return usual
    wanted = max(_GPU_REPLAYING_ENVS, _GPU_ENVS // members if on_policy else 0)
    if work.budget.env_steps_per_member:
        wanted = min(wanted, work.budget.env_steps_per_member // (horizon * _LEAST_UPDATES))
    return max(usual, wanted)


def describe_sizes(algorithm: Algorithm, envs: int) -> str:
    """One line for people; `envs` of each member."""
    parts = [str(algorithm.device), f"{envs:,} environments each", f"horizon {algorithm.horizon}"]
    sizes = algorithm.cohort.shared_values(find_algorithm(algorithm.cohort.algorithm))
    size = sizes.get("minibatch_size", sizes.get("batch_size"))
    if size is not None:
        parts.append(f"minibatches of {size:,}" if size else "minibatches of a quarter")
    return ", ".join(parts)

"""The parts of a round that its grant leaves open: its end, and an agent's environments by device
and algorithm."""

from __future__ import annotations

import math

from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.catalogue.algorithms import find_algorithm
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.environments.processes.row_processes import core_count
from podracer_core.jobs.messages import (
    evaluation_plan_from_message,
    objective_from_message,
    seconds_from_duration,
)
from podracer_core.jobs.objective import EVALUATION_FRACTION
from podracer_core.training.plan import RoundPlan
from podracer_core.training.sizes import fitting_envs, usual_envs_per_member


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

"""What cannot be right in a job, told before anything is created."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from podracer_core.catalogue.spaces import Space
from podracer_core.config.scalars import MAX_SECONDS
from podracer_core.jobs.checks import MAX_COUNT, Checks
from podracer_core.jobs.continuous_rules import check_continuous, check_retrain, check_warm_start
from podracer_core.jobs.environment_rules import check_environment, check_files
from podracer_core.jobs.evolution_rules import MAX_POPULATION, check_evolution
from podracer_core.jobs.learner_rules import MAX_PODS, check_learners
from podracer_core.jobs.search_rules import check_search, searched_algorithms
from podracer_core.jobs.spec import Evolution, JobSpec, Objective, Pod, Search

__all__ = [
    "MAX_PODS",
    "MAX_POPULATION",
    "is_job_name",
    "searched_algorithms",
    "shortened_rounds",
    "validate",
    "validate_action_space",
    "validate_competition",
]

MIN_EPISODES, MAX_EPISODES = 8, 10_000
MAX_MEMBERS = 1024
MAX_ENVS_PER_MEMBER = 1 << 17
MAX_WORKERS = 256
MAX_LABELS, MAX_LABEL_LENGTH = 64, 63
MAX_WEIGHT = 1e6
MIN_BUDGET_S = 0.1
"""A pod needs longer than this to do anything at all: the shortest round that the orchestrator leases."""

_DNS_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def is_job_name(text: str) -> bool:
    """Whether `text` is a DNS label."""
    return _DNS_LABEL.fullmatch(text) is not None


def validate(spec: JobSpec) -> None:
    """Raises InvalidInput whose violations name every bad field by its path in a job file (`search.space.gamma`).

    An algorithm that cannot act is told here only where the environment is a built-in one; for any other
    `validate_action_space` follows once the environment has been inspected.
    """
    check = Checks()
    _check_job(check, spec)
    _check_objective(check, spec.objective)
    check_evolution(check, spec.evolution)
    _check_pod(check, spec.pod, spec.evolution.population)
    _check_budget(check, spec)
    check_files(check, spec)
    action_space = check_environment(check, spec)
    check_search(check, spec.search, action_space)
    check_continuous(check, spec)
    check_warm_start(check, spec)
    check_retrain(check, spec)
    check.finish()


def validate_competition(search: Search, evolution: Evolution, action_space: Space | None) -> None:
    """The part of `validate` that a leaderboard is made from."""
    check = Checks()
    check_evolution(check, evolution)
    check_search(check, search, action_space)
    check.finish()


def validate_action_space(search: Search, action_space: Space) -> None:
    """Raises InvalidInput if an algorithm that the job lists cannot act there, or `auto` finds none that can.

    A search space that `auto` is to be used with can be judged fully only now, and is.
    """
    check = Checks()
    check_search(check, search, action_space)
    check.finish()


def shortened_rounds(spec: JobSpec) -> Iterator[str]:
    """What a user should know of a valid job whose whole budget is less than one round: that round is cut to it."""
    objective, round_ = spec.objective, spec.evolution.round
    members = spec.pod.members or 1
    if round_.env_steps is not None and objective.max_env_steps is not None:
        whole = round_.env_steps * members
        if objective.max_env_steps < whole:
            yield f"max_env_steps ({objective.max_env_steps:_}) is less than one round takes ({whole:_} steps)"
    if round_.seconds is None:
        return
    for name in ("max_duration", "max_cost"):
        limit = getattr(objective, name)
        if limit is not None and limit < round_.seconds:
            yield f"{name} ({limit:g} s) is less than one round takes ({round_.seconds:g} s)"


def _check_job(check: Checks, spec: JobSpec) -> None:
    label = "expected a DNS label: lower-case letters, digits and -, at most 63, no - at the ends"
    check.that(is_job_name(spec.name), "name", f"{label}; got {spec.name[:100]!r}")
    check.between(spec.seed, 0, MAX_COUNT, "seed")
    check.positive(spec.weight, MAX_WEIGHT, "weight")
    check.between(spec.evaluation.episodes, MIN_EPISODES, MAX_EPISODES, "evaluation.episodes")
    check.that(len(spec.labels) <= MAX_LABELS, "labels", f"expected at most {MAX_LABELS}, got {len(spec.labels)}")
    for key, value in spec.labels.items():
        fits = 0 < len(key) <= MAX_LABEL_LENGTH and len(value) <= MAX_LABEL_LENGTH
        fits = fits and key.isprintable() and value.isprintable()
        check.that(fits, f"labels.{key}", f"expected at most {MAX_LABEL_LENGTH} printable characters")


def _check_objective(check: Checks, objective: Objective) -> None:
    limits = (objective.max_env_steps, objective.max_duration, objective.max_cost)
    has_end = objective.target_return is not None or any(limit is not None for limit in limits)
    check.that(has_end, "objective", "expected a target_return, max_env_steps, max_duration or max_cost; got none")
    target = objective.target_return
    finite = target is None or math.isfinite(target)
    check.that(finite, "objective.target_return", f"expected a finite number, got {target!r}")
    check.positive(objective.max_env_steps, MAX_COUNT, "objective.max_env_steps")
    for name in ("max_duration", "max_cost"):
        limit, field = getattr(objective, name), f"objective.{name}"
        if check.positive(limit, MAX_SECONDS, field):
            enough = limit is None or limit >= MIN_BUDGET_S
            check.that(
                enough, field, f"is too short for any round: expected at least {MIN_BUDGET_S:g} s, got {limit!r}"
            )


def _check_pod(check: Checks, pod: Pod, population: int) -> None:
    if check.between(pod.count.min, 1, MAX_PODS, "pod.count.min"):
        check.between(pod.count.most, pod.count.min, MAX_PODS, "pod.count.max")
    if pod.members is not None and check.between(pod.members, 1, MAX_MEMBERS, "pod.members"):
        needed = pod.members * pod.count.min
        message = f"{pod.count.min} pods of {pod.members} members need a population of {needed}; it is {population}"
        check.that(needed <= population, "pod.members", message)
    if pod.envs_per_member is not None:
        check.between(pod.envs_per_member, 1, MAX_ENVS_PER_MEMBER, "pod.envs_per_member")
    check_learners(check, pod)
    check.between(pod.workers, 1, MAX_WORKERS, "pod.workers")
    check.positive(pod.resources.cpu, 4096.0, "pod.resources.cpu")
    check.positive(pod.resources.memory, MAX_COUNT, "pod.resources.memory")
    check.between(pod.resources.gpu, 0, 64, "pod.resources.gpu")


def _check_budget(check: Checks, spec: JobSpec) -> None:
    """That one agent can take at least one step; a budget that is only short cuts the round, see shortened_rounds."""
    limit, envs = spec.objective.max_env_steps, spec.pod.envs_per_member
    if limit is not None and envs is not None and limit > 0 and envs > 0:
        message = f"is too few for any round: one step in each of an agent's {envs:_} environments; got {limit:_}"
        check.that(limit >= envs, "objective.max_env_steps", message)

"""What cannot be right in a job, told before anything is created."""

from __future__ import annotations

from collections.abc import Iterator

from podracer_core.catalogue.spaces import Space
from podracer_core.jobs.checks import MAX_COUNT, Checks
from podracer_core.jobs.environment import check_environment, check_files
from podracer_core.jobs.evolution import Evolution
from podracer_core.jobs.search import Search
from podracer_core.jobs.spec import JobSpec
from podracer_core.jobs.warm_start import check_warm_start
from podracer_core.rpc.resource_names import is_label

MAX_LABELS, MAX_LABEL_LENGTH = 64, 63
MAX_WEIGHT = 1e6


def validate(spec: JobSpec) -> None:
    """Raises InvalidInput whose violations name every bad field by its path in a job file (`search.space.gamma`).

    An algorithm that cannot act is told here only where the environment is a built-in one; for any other
    `validate_action_space` follows once the environment has been inspected.
    """
    check = Checks()
    _check_job(check, spec)
    spec.evaluation.check(check)
    spec.objective.check(check)
    spec.evolution.check(check)
    spec.pod.check(check, spec.evolution.population)
    _check_budget(check, spec)
    check_files(check, spec.environment, spec.data)
    action_space = check_environment(check, spec.environment, spec.data)
    spec.search.check(check, action_space)
    if spec.continuous is not None:
        spec.continuous.check(check, spec.environment, spec.data)
    check_warm_start(check, spec.warm_start, spec.search)
    if spec.retrain is not None:
        spec.retrain.check(check, spec.environment, spec.data, spec.continuous)
    check.finish()


def validate_competition(search: Search, evolution: Evolution, action_space: Space | None) -> None:
    """The part of `validate` that a leaderboard is made from."""
    check = Checks()
    evolution.check(check)
    search.check(check, action_space)
    check.finish()


def validate_action_space(search: Search, action_space: Space) -> None:
    """Raises InvalidInput if an algorithm that the job lists cannot act there, or `auto` finds none that can.

    A search space that `auto` is to be used with can be judged fully only now, and is.
    """
    check = Checks()
    search.check(check, action_space)
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
    check.that(is_label(spec.name), "name", f"{label}; got {spec.name[:100]!r}")
    check.between(spec.seed, 0, MAX_COUNT, "seed")
    check.positive(spec.weight, MAX_WEIGHT, "weight")
    check.that(len(spec.labels) <= MAX_LABELS, "labels", f"expected at most {MAX_LABELS}, got {len(spec.labels)}")
    for key, value in spec.labels.items():
        fits = 0 < len(key) <= MAX_LABEL_LENGTH and len(value) <= MAX_LABEL_LENGTH
        fits = fits and key.isprintable() and value.isprintable()
        check.that(fits, f"labels.{key}", f"expected at most {MAX_LABEL_LENGTH} printable characters")


def _check_budget(check: Checks, spec: JobSpec) -> None:
    """That one agent can take at least one step; a budget that is only short cuts the round, see shortened_rounds."""
    limit, envs = spec.objective.max_env_steps, spec.pod.envs_per_member
    if limit is not None and envs is not None and limit > 0 and envs > 0:
        message = f"is too few for any round: one step in each of an agent's {envs:_} environments; got {limit:_}"
        check.that(limit >= envs, "objective.max_env_steps", message)

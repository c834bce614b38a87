"""A job as frozen dataclasses, with the keys of a job file (DESIGN §11) and defaults filled in.

Building one checks types only; `validate` finds all other mistakes before the job is created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from podracer.orchestrator.v1 import job_pb2
from podracer_core.catalogue import EnvironmentSpec, Space, check_observation_space
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.sections import (
    MAX_COUNT,
    Checks,
    EvaluationPlan,
    Evolution,
    Objective,
    Pod,
    Search,
)
from podracer_platform.jobs.sections import (
    Beginnings,
    Continuous,
    DataSets,
    Founder,
    Retrain,
    check_environment,
    check_files,
    check_warm_start,
    data_from_message,
    data_to_message,
    founders_to_messages,
)
from podracer_platform.messages import (
    environment_from_message,
    environment_to_message,
    evaluation_plan_from_message,
    evaluation_plan_to_message,
    evolution_from_message,
    evolution_to_message,
    objective_from_message,
    objective_to_message,
    pod_from_message,
    pod_to_message,
    read,
    search_from_message,
    search_to_message,
    write,
)
from podracer_platform.rpc import is_label, limits

Part = TypeVar("Part")

MAX_LABELS, MAX_LABEL_LENGTH = 64, 63
MAX_WEIGHT = 1e6


@dataclass(frozen=True)
class JobSpec:
    """The specification of a job.

    name         a DNS label: lower-case letters, digits and `-`
    seed         of everything
    weight       share of a pool that several jobs use, relative to the others
    data         files that the environment's constructor gets as paths, besides
                 `environment.kwargs`
    labels       free text for the user's own use
    continuous   set: the job does not train; it makes a job that does whenever its data change
    warm_start   agents of another job that the first agents start from
    retrain      set: the best candidate is trained once more before the job ends
    """

    name: str
    environment: EnvironmentSpec
    objective: Objective
    search: Search = field(default_factory=Search)
    evolution: Evolution = field(default_factory=Evolution)
    pod: Pod = field(default_factory=Pod)
    evaluation: EvaluationPlan = field(default_factory=EvaluationPlan)
    seed: int = 0
    weight: float = 1.0
    data: DataSets = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    continuous: Continuous | None = None
    warm_start: Beginnings = ()
    retrain: Retrain | None = None

    @classmethod
    def from_message(cls, message: job_pb2.JobSpec) -> JobSpec:
        """A spec with defaults filled in and values unchecked. Raises InvalidInput that names each
        malformed field."""
        violations: list[FieldViolation] = []

        def part(field: str, decode: Callable[[], Part]) -> Part | None:
            try:
                return decode()
            except InvalidInput as error:
                violations.extend(error.violations or [FieldViolation(field, error.message)])
                return None

        environment = part("environment", lambda: environment_from_message(message.environment))
        search = part("search", lambda: search_from_message(message.search))
        data = part("data", lambda: data_from_message(message))
        continuous = part("continuous", lambda: Continuous.from_message(message.continuous))
        retrain = part("retrain", lambda: Retrain.from_message(message.retrain))
        founders = part("founders", lambda: tuple(map(Founder.from_message, message.founders)))
        if message.environment.evaluation_steps:
            text = "the orchestrator chooses it; give max_episode_steps"
            violations.append(FieldViolation("environment.evaluation_steps", text))
        if message.environment.data:
            violations.append(FieldViolation("environment.data", "stands in the job's own `data`"))
        if violations or environment is None or search is None or data is None or founders is None:
            raise InvalidInput("; ".join(map(str, violations)), violations=violations)
        return read(
            cls,
            message,
            name=message.display_name,
            environment=environment,
            objective=objective_from_message(message.objective),
            search=search,
            evolution=evolution_from_message(message.evolution),
            pod=pod_from_message(message.pod),
            evaluation=evaluation_plan_from_message(message.evaluation),
            data=data,
            labels=dict(message.labels),
            continuous=continuous if message.HasField("continuous") else None,
            warm_start=founders,
            retrain=retrain if message.HasField("retrain") else None,
        )

    def to_message(self) -> job_pb2.JobSpec:
        """The inverse of `from_message`. Raises InvalidInput while its files are not uploaded, and
        as `check_size`."""
        message = job_pb2.JobSpec(
            display_name=self.name,
            environment=environment_to_message(self.environment),
            objective=objective_to_message(self.objective),
            search=search_to_message(self.search),
            evolution=evolution_to_message(self.evolution),
            pod=pod_to_message(self.pod),
            evaluation=evaluation_plan_to_message(self.evaluation),
            labels=dict(self.labels),
            founders=founders_to_messages(self.warm_start),
            continuous=None if self.continuous is None else self.continuous.to_message(),
            retrain=None if self.retrain is None else self.retrain.to_message(),
        )
        data_to_message(self.data, message)
        check_size(write(self, message))
        return message


def check_size(message: job_pb2.JobSpec) -> None:
    """Raises InvalidInput for more than limits.SPEC_BYTES, with the section that takes most of
    them."""
    if (size := message.ByteSize()) > limits.SPEC_BYTES:
        sections = {
            each.name: job_pb2.JobSpec(**{each.name: value}) for each, value in message.ListFields()
        }
        largest = max(sections, key=lambda name: sections[name].ByteSize())
        problem = (
            f"has {size} bytes, most of them in `{largest}`, expected at most {limits.SPEC_BYTES}"
        )
        raise InvalidInput.of("spec", f"{problem}: pass larger tables as data sets")


def validate(spec: JobSpec) -> None:
    """Raises InvalidInput whose violations name every bad field by its path in a job file
    (`search.space.gamma`).

    Algorithms that cannot act are found here for built-in environments only; for others
    `validate_spaces` follows once the environment has been inspected."""
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
    """The part of `validate` that concerns the leaderboard."""
    check = Checks()
    evolution.check(check)
    search.check(check, action_space)
    check.finish()


def validate_spaces(search: Search, observation_space: Space, action_space: Space) -> None:
    """Raises InvalidInput if an algorithm of the job cannot act in these spaces, or `auto` finds
    none that can.

    With `auto` the search space can be checked completely only now.
    """
    check = Checks()
    search.check(check, action_space)
    for share in search.shares(action_space):
        check_observation_space(share.algorithm, observation_space)
    check.finish()


def shortened_rounds(spec: JobSpec) -> Iterator[str]:
    """Warnings for a valid job whose whole budget is less than one round: the round is shortened to
    it."""
    objective, round_ = spec.objective, spec.evolution.round
    members = spec.pod.members or 1
    if round_.env_steps is not None and objective.max_env_steps is not None:
        whole = round_.env_steps * members
        if objective.max_env_steps < whole:
            yield (
                f"max_env_steps ({objective.max_env_steps:_}) is less than one round takes "
                f"({whole:_} steps)"
            )
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
    check.that(
        len(spec.labels) <= MAX_LABELS,
        "labels",
        f"expected at most {MAX_LABELS}, got {len(spec.labels)}",
    )
    for key, value in spec.labels.items():
        fits = 0 < len(key) <= MAX_LABEL_LENGTH and len(value) <= MAX_LABEL_LENGTH
        fits = fits and key.isprintable() and value.isprintable()
        check.that(
            fits, f"labels.{key}", f"expected at most {MAX_LABEL_LENGTH} printable characters"
        )


def _check_budget(check: Checks, spec: JobSpec) -> None:
    """Check that an agent can take at least one step. A short budget only shortens the round: see
    shortened_rounds."""
    limit, envs = spec.objective.max_env_steps, spec.pod.envs_per_member
    if limit is not None and envs is not None and limit > 0 and envs > 0:
        message = (
            f"is too few for any round: one step in each of an agent's {envs:_} "
            f"environments; got {limit:_}"
        )
        check.that(limit >= envs, "objective.max_env_steps", message)

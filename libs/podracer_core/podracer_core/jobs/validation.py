"""What cannot be right in a job, said before anything is created. Client and orchestrator use the same code."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import replace

from podracer_core.attachments.limits import MAX_DATA_BYTES, MAX_PACKED_BYTES
from podracer_core.catalogue.algorithms import (
    AlgorithmInfo,
    automatic_algorithms,
    check_action_space,
    find_algorithm,
)
from podracer_core.catalogue.environments import find_environment
from podracer_core.catalogue.environments.stored_file import StoredFile
from podracer_core.catalogue.hyperparameters import Hyperparameter
from podracer_core.catalogue.spaces import Space, describe
from podracer_core.config.quantities import MAX_SECONDS
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.jobs.combinations import impossible_combinations
from podracer_core.jobs.spec import (
    AlgorithmShare,
    Choice,
    Dimension,
    Evolution,
    Fixed,
    IntegerUniform,
    JobSpec,
    LogUniform,
    Objective,
    Pod,
    Range,
    Search,
    Uniform,
)

MIN_EPISODES, MAX_EPISODES = 8, 10_000
MAX_POPULATION = 4096
MAX_PODS = 4096
MAX_MEMBERS = 1024
MAX_ENVS_PER_MEMBER = 1 << 17
MAX_WORKERS = 256
MAX_LABELS = 64

_MAX_COUNT = (1 << 62) - 1
_DNS_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def validate(spec: JobSpec) -> None:
    """Raises InvalidInput whose violations name every bad field by its path in a job file (`search.space.gamma`).

    An algorithm that cannot act is told here only where the environment is a built-in one; for any other
    `validate_action_space` follows once the environment has been inspected.
    """
    check = _Check()
    _check_job(check, spec)
    _check_objective(check, spec.objective)
    _check_evolution(check, spec.evolution)
    _check_pod(check, spec.pod, spec.evolution.population)
    _check_files(check, spec)
    action_space = _check_environment(check, spec)
    _check_search(check, spec.search, action_space)
    check.finish()


def validate_competition(search: Search, evolution: Evolution, action_space: Space | None) -> None:
    """The part of `validate` that a leaderboard is made from."""
    check = _Check()
    _check_evolution(check, evolution)
    _check_search(check, search, action_space)
    check.finish()


def validate_action_space(search: Search, action_space: Space) -> None:
    """Raises InvalidInput if an algorithm that the job lists cannot act there, or `auto` finds none that can.

    A search space that `auto` is to be used with can be judged fully only now, and is.
    """
    check = _Check()
    _check_search(check, search, action_space)
    check.finish()


def searched_algorithms(search: Search, action_space: Space | None) -> tuple[AlgorithmShare, ...]:
    """The algorithms of a search; for `auto` the automatic ones, in equal shares, that can act in `action_space`.

    Where that is None, not known yet, `auto` is every automatic one.
    """
    return search.algorithms or tuple(AlgorithmShare(name) for name in automatic_algorithms(action_space))


class _Check:
    """Gathers violations."""

    def __init__(self) -> None:
        self.violations: list[FieldViolation] = []

    def that(self, condition: bool, field: str, message: str) -> bool:
        if not condition:
            self.violations.append(FieldViolation(field, message))
        return condition

    def between(self, value: float, low: float, high: float, field: str) -> bool:
        return self.that(low <= value <= high, field, f"expected {low:_} to {high:_}, got {value!r}")

    def positive(self, value: float | None, high: float, field: str) -> None:
        self.that(value is None or 0 < value <= high, field, f"expected more than 0, got {value!r}")

    def finish(self) -> None:
        if self.violations:
            message = "\n".join(str(violation) for violation in self.violations)
            raise InvalidInput(message, violations=self.violations, reason="INVALID_JOB")


def _check_job(check: _Check, spec: JobSpec) -> None:
    label = "expected a DNS label: lower-case letters, digits and -, at most 63, no - at the ends"
    check.that(_DNS_LABEL.fullmatch(spec.name) is not None, "name", f"{label}; got {spec.name[:100]!r}")
    check.between(spec.seed, 0, _MAX_COUNT, "seed")
    check.positive(spec.weight, 1e6, "weight")
    check.between(spec.evaluation.episodes, MIN_EPISODES, MAX_EPISODES, "evaluation.episodes")
    check.that(len(spec.labels) <= MAX_LABELS, "labels", f"expected at most {MAX_LABELS}, got {len(spec.labels)}")
    for key, value in spec.labels.items():
        check.that(0 < len(key) <= 63 and len(value) <= 63, f"labels.{key}", "expected at most 63 characters")


def _check_objective(check: _Check, objective: Objective) -> None:
    limits = (objective.max_env_steps, objective.max_duration, objective.max_cost)
    has_end = objective.target_return is not None or any(limit is not None for limit in limits)
    check.that(has_end, "objective", "expected a target_return, max_env_steps, max_duration or max_cost; got none")
    target = objective.target_return
    finite = target is None or math.isfinite(target)
    check.that(finite, "objective.target_return", f"expected a finite number, got {target!r}")
    check.positive(objective.max_env_steps, _MAX_COUNT, "objective.max_env_steps")
    check.positive(objective.max_duration, MAX_SECONDS, "objective.max_duration")
    check.positive(objective.max_cost, MAX_SECONDS, "objective.max_cost")


def _check_evolution(check: _Check, evolution: Evolution) -> None:
    check.that(
        evolution.scheduler == "tournament",
        "evolution.scheduler",
        "expected tournament; generational evolution is not part of this version",
    )
    if check.between(evolution.population, 1, MAX_POPULATION, "evolution.population"):
        if evolution.leaderboard_size is not None:
            check.between(evolution.leaderboard_size, 1, evolution.population, "evolution.leaderboard_size")
        check.between(evolution.tournament_size, 1, MAX_POPULATION, "evolution.tournament_size")
    seconds, env_steps = evolution.round.seconds, evolution.round.env_steps
    one = (seconds is None) != (env_steps is None)
    check.that(one, "evolution.round", "expected either seconds or env_steps, such as {seconds: 15}")
    check.positive(seconds, MAX_SECONDS, "evolution.round.seconds")
    check.positive(env_steps, _MAX_COUNT, "evolution.round.env_steps")
    check.between(evolution.replaced_fraction, 0.0, 1.0, "evolution.replaced_fraction")
    check.between(evolution.exploration, 0.0, 1.0, "evolution.exploration")
    if evolution.lineage_limit is not None:
        check.between(evolution.lineage_limit, 1, MAX_POPULATION, "evolution.lineage_limit")


def _check_pod(check: _Check, pod: Pod, population: int) -> None:
    if check.between(pod.count.min, 1, MAX_PODS, "pod.count.min"):
        check.between(pod.count.most, pod.count.min, MAX_PODS, "pod.count.max")
    if pod.members is not None and check.between(pod.members, 1, MAX_MEMBERS, "pod.members"):
        needed = pod.members * pod.count.min
        message = f"{pod.count.min} pods of {pod.members} members need a population of {needed}; it is {population}"
        check.that(needed <= population, "pod.members", message)
    if pod.envs_per_member is not None:
        check.between(pod.envs_per_member, 1, MAX_ENVS_PER_MEMBER, "pod.envs_per_member")
    check.that(pod.learners == 1, "pod.learners", "expected 1; several learners an agent are not part of this version")
    check.between(pod.workers, 1, MAX_WORKERS, "pod.workers")
    check.positive(pod.resources.cpu, 4096.0, "pod.resources.cpu")
    check.positive(pod.resources.memory, _MAX_COUNT, "pod.resources.memory")
    check.between(pod.resources.gpu, 0, 64, "pod.resources.gpu")


def _check_environment(check: _Check, spec: JobSpec) -> Space | None:
    """Its action space, where it is known without starting it."""
    if not spec.environment.id:
        return None  # a user's own entry point: inspection tells
    try:
        info = find_environment(spec.environment.id)
    except InvalidInput as error:
        check.violations += error.violations
        return None
    return None if spec.environment.kwargs or spec.data else info.action_space  # arguments may change it


def _check_files(check: _Check, spec: JobSpec) -> None:
    if spec.environment.code is not None:
        check.between(spec.environment.code.size_bytes, 1, MAX_PACKED_BYTES, "environment.code.size_bytes")
    for name, file in spec.data.items():
        if isinstance(file, StoredFile):
            check.between(file.size_bytes, 0, MAX_DATA_BYTES, f"data.{name}.size_bytes")
    try:
        replace(spec.environment, data=spec.data)
    except InvalidInput as error:
        check.violations += error.violations


def _check_search(check: _Check, search: Search, action_space: Space | None) -> None:
    names = [share.algorithm for share in search.algorithms]
    known = True
    for index, share in enumerate(search.algorithms):
        field = f"search.algorithms[{index}]"
        check.that(names.index(share.algorithm) == index, field, f"{share.algorithm!r} is there twice")
        check.positive(share.share, 1e6, field)
        try:
            find_algorithm(share.algorithm)
        except InvalidInput as error:
            known = check.that(False, field, error.message)
    if not known:
        return  # what the space or the environment says of an unknown algorithm would only confuse
    if action_space is not None:
        _check_action_space(check, search, action_space)
    infos = [find_algorithm(share.algorithm) for share in searched_algorithms(search, action_space)]
    if not infos:
        return  # nobody can act, which has been said
    keys = [dimension.key for dimension in search.space]
    for index, dimension in enumerate(search.space):
        if check.that(keys.index(dimension.key) == index, f"search.space.{dimension.key}", "is there twice"):
            same = [other for other in search.space if other.hyperparameter == dimension.hyperparameter]
            apart = {other.algorithm for other in same} - {dimension.algorithm}
            settled = bool(names) or action_space is not None
            _check_dimension(check, dimension, infos, apart, settled=settled)
    if not check.violations:  # else what is wrong by itself would be said again
        for info in infos:
            for hyperparameter, problem in impossible_combinations(search, info):
                check.that(False, f"search.space.{hyperparameter}", problem)


def _check_action_space(check: _Check, search: Search, action_space: Space) -> None:
    for index, share in enumerate(search.algorithms):
        try:
            check_action_space(share.algorithm, action_space)
        except InvalidInput as error:
            check.that(False, f"search.algorithms[{index}]", error.message)
    found = bool(searched_algorithms(search, action_space))
    check.that(found, "search.algorithms", f"no algorithm can act in {describe(action_space)}")


def _check_dimension(
    check: _Check, dimension: Dimension, infos: list[AlgorithmInfo], apart: set[str], *, settled: bool
) -> None:
    """`infos` are what is searched, or, while that is not `settled`, what may be: then one that fits is enough.

    The algorithms in `apart` have a range of their own for the same hyperparameter, which goes before a general one.
    """
    field = f"search.space.{dimension.key}"
    names = [info.name for info in infos]
    if dimension.algorithm and not check.that(
        dimension.algorithm in names, field, f"{dimension.algorithm!r} is not searched; expected {' or '.join(names)}"
    ):
        return
    searched = [info for info in infos if dimension.algorithm in ("", info.name)]
    known = list(dict.fromkeys(knob.name for info in searched for knob in info.hyperparameters))
    if dimension.hyperparameter in known:
        ruled = [info for info in searched if info.name not in apart]
        for problem in _dimension_problems(dimension, ruled, settled=settled):
            check.that(False, field, problem)
        return
    nearest = difflib.get_close_matches(dimension.hyperparameter, known, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"expected one of {', '.join(known)}"
    check.that(False, field, f"unknown hyperparameter {dimension.hyperparameter!r}; {hint}")


def _dimension_problems(dimension: Dimension, searched: list[AlgorithmInfo], *, settled: bool) -> list[str]:
    """What is wrong with a range. Algorithms may disagree on it: then each problem says whose it is."""
    having: list[str] = []
    problems: dict[str, list[str]] = {}
    for info in searched:
        for knob in info.hyperparameters:
            if knob.name == dimension.hyperparameter:
                having.append(info.name)
                for problem in dict.fromkeys(_range_problems(dimension.range, knob)):
                    problems.setdefault(problem, []).append(info.name)
    if not settled and len({name for names in problems.values() for name in names}) < len(having):
        return []
    return [text if names == having else f"{', '.join(names)}: {text}" for text, names in problems.items()]


def _range_problems(searched: Range, knob: Hyperparameter) -> list[str]:
    match searched:
        case Fixed(value):
            return _value_problems(knob, [value])
        case Choice(values):
            if not values:
                return ["expected at least one value to choose from"]
            twice = ["a value is there twice"] if len(set(values)) < len(values) else []
            return twice + _value_problems(knob, list(values))
        case Uniform(low, high) | LogUniform(low, high) if knob.kind != "float":
            use = "integer_uniform or choice" if knob.kind == "int" else "choice"
            return [f"{knob.name} is not a real number: use {use}"]
        case IntegerUniform() if knob.kind != "int":
            return [f"{knob.name} is not a whole number: use {'uniform' if knob.kind == 'float' else 'choice'}"]
        case Uniform(low, high) | LogUniform(low, high) | IntegerUniform(low, high):
            logarithmic = isinstance(searched, LogUniform) or (isinstance(searched, IntegerUniform) and searched.log)
            problems = _value_problems(knob, [low, high])
            if not low < high:
                problems.append(f"expected low < high, got [{low!r}, {high!r}]")
            if logarithmic and not low > 0:
                problems.append(f"a logarithmic range must be above 0, got [{low!r}, {high!r}]")
            return problems


def _value_problems(knob: Hyperparameter, values: list[object]) -> list[str]:
    problems = []
    for value in values:
        try:
            knob.check(list(value) if isinstance(value, tuple) else value)
        except InvalidInput as error:
            problems += [violation.message for violation in error.violations]
    return problems

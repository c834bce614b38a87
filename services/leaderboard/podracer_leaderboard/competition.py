"""LeaderboardSpec -> its rules, search space, generator and updater."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.catalogue.algorithms import find_algorithm
from podracer_core.catalogue.extensions import load_class
from podracer_core.catalogue.hyperparameters import Hyperparameter
from podracer_core.catalogue.ranges import Choice, Fixed, IntegerInterval, Interval, Range
from podracer_core.catalogue.spaces import Space
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.evolution.agents import Cohort, CohortRequest, Population
from podracer_core.evolution.generator import ENTRY_POINT_GROUP as GENERATORS
from podracer_core.evolution.generator import Generator
from podracer_core.evolution.rules import Rules
from podracer_core.evolution.search_space import SearchSpace
from podracer_core.evolution.updater import ENTRY_POINT_GROUP as UPDATERS
from podracer_core.evolution.updater import Updater
from podracer_core.sections.search import Dimension, Search
from podracer_platform.jobs.spec import validate_competition
from podracer_platform.messages.catalogue import space_from_message
from podracer_platform.messages.sections import (
    evolution_from_message,
    objective_from_message,
    search_from_message,
)


@dataclass(frozen=True, slots=True)
class Competition:
    """The rules of one leaderboard, its generator and updater; `stand_in` is the scheduler's own
    generator."""

    rules: Rules
    space: SearchSpace
    generator: type[Generator]
    stand_in: type[Generator]
    updater: Updater


@functools.lru_cache(maxsize=256)
def competition_of(spec: bytes) -> Competition:
    """The competition of a stored, serialized LeaderboardSpec, even if its generator is no longer
    installed."""
    return _competition(leaderboard_pb2.LeaderboardSpec.FromString(spec), _generator_if_installed)


def read_competition(spec: leaderboard_pb2.LeaderboardSpec) -> Competition:
    """Raises InvalidInput, naming each field, for an unknown algorithm, a bad range, an extension
    that is missing…"""
    return _competition(spec, _generator)


def _competition(
    spec: leaderboard_pb2.LeaderboardSpec, find_generator: Callable[[str, str], type[Generator]]
) -> Competition:
    search = search_from_message(spec.search)
    evolution = evolution_from_message(spec.evolution)
    action_space = _action_space(spec, search)
    validate_competition(search, evolution, action_space)
    space = _search_space(search, action_space)
    statistic = objective_from_message(spec.objective).statistic
    rules = Rules.of(
        evolution, seed=spec.seed, updater=statistic, algorithm_count=len(space.shares)
    )
    generator = find_generator(rules.generator, "evolution.generator")
    stand_in = _generator(evolution.scheduler, "evolution.scheduler")
    updater = load_class(UPDATERS, rules.updater, Updater, "evolution.updater")  # type: ignore[type-abstract]
    return Competition(rules, space, generator, stand_in, updater(rules))


def _generator(name: str, field: str) -> type[Generator]:
    return load_class(GENERATORS, name, Generator, field)  # type: ignore[type-abstract]


def _generator_if_installed(name: str, field: str) -> type[Generator]:
    """The generator, or one that raises why it is missing: the scheduler's own one then replaces it
    (`guard`)."""
    try:
        return _generator(name, field)
    except InvalidInput as error:
        message = error.message

    class Missing(Generator):
        def propose(self, population: Population, request: CohortRequest, random: Random) -> Cohort:
            raise InvalidInput(message)

    return Missing


def _action_space(spec: leaderboard_pb2.LeaderboardSpec, search: Search) -> Space | None:
    if spec.environment_description.HasField("action_space"):
        return space_from_message(spec.environment_description.action_space)
    if search.algorithms:
        return None
    problem = "needs the environment's action space to choose algorithms by"
    raise InvalidInput(
        f"environment_description.action_space {problem}",
        violations=[FieldViolation("environment_description.action_space", problem)],
    )


def _search_space(search: Search, action_space: Space | None) -> SearchSpace:
    shares = {share.algorithm: share.share for share in search.shares(action_space)}
    return SearchSpace(
        shares, {algorithm: _ranges(algorithm, search.space) for algorithm in shares}
    )


def _ranges(algorithm: str, dimensions: tuple[Dimension, ...]) -> Mapping[str, Range]:
    """The ranges of one algorithm; one that names the algorithm overrides one for all."""
    knobs = {knob.name: knob for knob in find_algorithm(algorithm).hyperparameters}
    ranges = {name: knob.search for name, knob in knobs.items() if knob.search is not None}
    if dimensions:
        general_first = sorted(dimensions, key=lambda dimension: dimension.algorithm == algorithm)
        asked = (dimension for dimension in general_first if dimension.algorithm in ("", algorithm))
        ranges = {
            dimension.hyperparameter: dimension.range
            for dimension in asked
            if dimension.hyperparameter in knobs
        }
    return {name: _fitted(knobs[name], search) for name, search in ranges.items()}


def _fitted(knob: Hyperparameter, search: Range) -> Range:
    """The range with values of the hyperparameter's type: equal values must have one form."""
    match search:
        case Fixed(value):
            return Fixed(knob.typed(value))
        case Choice(values):
            return Choice(tuple(knob.typed(value) for value in values))
        case Interval(low, high, logarithmic) if knob.kind == "int":
            return IntegerInterval(int(low), int(high), logarithmic)
        case Interval():
            return replace(search, near_one=knob.near_one)
        case IntegerInterval():
            return search

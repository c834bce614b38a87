"""All search ranges of a job: complete hyperparameters for new agents, and what keeps a cohort of one shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from podracer_core.catalogue.algorithms import find_algorithm
from podracer_leaderboard.ranges import Fixed, Range, Value

RESAMPLE_PROBABILITY = 0.25
"""How often a mutation draws anew instead of perturbing: Jaderberg et al. 2017, arXiv:1711.09846, 4.1."""

Shape = tuple[str, tuple[tuple[str, Value], ...]]
"""An algorithm and its shared hyperparameters: agents of one shape can be stacked into one cohort."""


def shape_of(algorithm: str, hyperparameters: Mapping[str, Value]) -> Shape:
    """The shape of an agent: everything that may not differ between the members of a cohort."""
    knobs = find_algorithm(algorithm).hyperparameters
    shared = sorted(knob.name for knob in knobs if knob.scope != "member")
    return algorithm, tuple((name, hyperparameters[name]) for name in shared)


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """What a job searches.

    shares   algorithm → its share of fresh agents, in the job's order
    ranges   algorithm → hyperparameter → range; what is not named keeps its default
    """

    shares: Mapping[str, float]
    ranges: Mapping[str, Mapping[str, Range]]

    def defaults(self, algorithm: str, random: Random) -> dict[str, Value]:
        """The catalogue's defaults, drawn anew only where the search excludes them: a sound first agent."""
        values = self.sample(algorithm, random)
        for name, default in find_algorithm(algorithm).defaults().items():
            search = self.ranges[algorithm].get(name)
            if search is None or search.contains(default):
                values[name] = default
        return values

    def sample(self, algorithm: str, random: Random) -> dict[str, Value]:
        """Every hyperparameter of `algorithm`: drawn where it is searched, the default elsewhere."""
        values: dict[str, Value] = find_algorithm(algorithm).defaults()
        for name, search in sorted(self.ranges[algorithm].items()):
            values[name] = search.sample(random)
        return values

    def mutate(self, algorithm: str, hyperparameters: Mapping[str, Value], random: Random) -> dict[str, Value]:
        """A neighbour of `hyperparameters`: each searched one that is a member's own is perturbed or drawn anew.

        What a cohort shares stays, so a child fits into its donor's weights and into its donor's cohort.
        """
        values = dict(hyperparameters)
        for name in self.mutable(algorithm):
            search = self.ranges[algorithm][name]
            resample = random.random() < RESAMPLE_PROBABILITY
            values[name] = search.sample(random) if resample else search.perturb(values[name], random)
        return values

    def mutable(self, algorithm: str) -> list[str]:
        """The searched hyperparameters that a member may have to itself, sorted."""
        ranges = self.ranges[algorithm]
        knobs = find_algorithm(algorithm).hyperparameters
        searched = (knob.name for knob in knobs if knob.scope == "member" and knob.name in ranges)
        return sorted(name for name in searched if not isinstance(ranges[name], Fixed))

    def with_shape(self, hyperparameters: Mapping[str, Value], shape: Shape) -> dict[str, Value]:
        """`hyperparameters` with the shared ones of `shape`."""
        return {**hyperparameters, **dict(shape[1])}

"""The interface of generators, which choose the agents that a pod trains next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random
from typing import ClassVar

from podracer_core.evolution.agents import Agent, Cohort, CohortRequest, NewAgent, Population, seat
from podracer_core.evolution.breeding import Breeding, Vacancy
from podracer_core.evolution.rules import Rules
from podracer_core.evolution.search_space import SearchSpace

GENERATORS = "podracer.generators"


class Generator(ABC):
    """Makes the next cohort. A package offers its own as an entry point of the group
    `podracer.generators`.

    One object serves one call. Its only inputs are the population and `random`, so that the same
    seed and the same order of completions give the same proposals.

    uses_history  whether `propose` reads `Population.history`, which is otherwise not loaded
    """

    uses_history: ClassVar[bool] = False

    def __init__(self, space: SearchSpace, rules: Rules) -> None:
        self.space = space
        self.rules = rules

    @abstractmethod
    def propose(self, population: Population, request: CohortRequest, random: Random) -> Cohort:
        """The next cohort for a pod; no members if no agent can train now.

        At most `request.places_for(shape)` members of one shape, each waiting now or new. After it
        at most `rules.population` agents are alive. Hyperparameters of new agents are complete and
        inside the search space."""


class RandomSearch(Generator):
    """Independent agents, as many as the population holds, that train on, round after round, until
    the budget ends.

    They begin like a tournament's: of each algorithm the first with the defaults, the others as the
    `portfolio` has them, in as few shapes. The agent with the fewest rounds is next, so all get as
    much of the budget as rounds and shapes allow. No agent is copied, stopped or replaced; the
    place of one that failed goes to a fresh one. Rounds, pods, evaluation and the leaderboard are
    those of the other generators: what these do better is their selection's work."""

    def propose(self, population: Population, request: CohortRequest, random: Random) -> Cohort:
        """See `Generator`."""
        breeding = Breeding(self.space, self.rules, population, request, random)
        while breeding.has_room:
            breeding.fresh(Vacancy("random search"))
        queue: list[Agent | NewAgent] = [*population.waiting, *breeding.created]
        return Cohort(seat(queue, request), tuple(breeding.created))

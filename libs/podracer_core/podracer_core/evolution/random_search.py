"""Random search: the baseline that every other generator has to beat (Bergstra and Bengio 2012,
JMLR 13:281-305)."""

from __future__ import annotations

from random import Random

from podracer_core.evolution.agents import Agent, Cohort, CohortRequest, NewAgent, Population
from podracer_core.evolution.breeding import Breeding, Vacancy
from podracer_core.evolution.generator import Generator
from podracer_core.evolution.seating import seat


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

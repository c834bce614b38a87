"""The median stopping rule, as of Google Vizier: an agent that does worse than half of the others
makes room for a new one."""

from __future__ import annotations

from random import Random
from statistics import median

from podracer_core.evolution.agents import Agent, Cohort, CohortRequest, NewAgent, Population
from podracer_core.evolution.breeding import Breeding, Vacancy
from podracer_core.evolution.generator import Generator
from podracer_core.evolution.seating import seat

MINIMUM_PEERS = 4
"""With fewer scores no agent is stopped."""


class MedianStopping(Generator):
    """Golovin et al. 2017, Google Vizier, KDD, section 3.2.2.

    An agent trains on as long as its last score is no worse than the median of its rung, which is
    what all others had reached after as much training; else a fresh one begins in its place. No
    weights are copied. Unlike there, the median is of scores and not of running means, so a curve
    that falls is stopped as well."""

    def propose(self, population: Population, request: CohortRequest, random: Random) -> Cohort:
        """See `Generator`."""
        breeding = Breeding(self.space, self.rules, population, request, random)
        staying: list[Agent] = []
        for agent in population.waiting:
            if request.accepts(agent.algorithm) and self._is_hopeless(agent, population):
                breeding.fresh(Vacancy("worse than the median of its rung", replaced=agent))
            else:
                staying.append(agent)
        while breeding.has_room:
            breeding.fresh(Vacancy("there is room"))
        queue: list[Agent | NewAgent] = [*staying, *breeding.created]
        return Cohort(seat(queue, request), tuple(breeding.created))

    def _is_hopeless(self, agent: Agent, population: Population) -> bool:
        peers = population.peers.get(agent.name, ())
        is_judged = agent.score is not None and len(peers) >= MINIMUM_PEERS and agent.may_give_way
        return is_judged and agent.score < median(peers)

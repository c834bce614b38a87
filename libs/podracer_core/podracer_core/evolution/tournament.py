"""The asynchronous tournament: train on, copy a better one, or begin anew, whenever a pod is free
(DESIGN §8)."""

from __future__ import annotations

from random import Random
from statistics import median_low
from typing import ClassVar

from podracer_core.evolution.agents import (
    Agent,
    Cohort,
    CohortRequest,
    NewAgent,
    Population,
    Retirement,
)
from podracer_core.evolution.breeding import Breeding, Vacancy
from podracer_core.evolution.generator import Generator
from podracer_core.evolution.rules import HALVING, fraction_at_stake, is_at_bottom
from podracer_core.evolution.search_space import Shape


class Tournament(Generator):
    """CONTINUE for every waiting agent but those at the bottom of their rung; EXPLOIT or FRESH in
    their places.

    The longest waiting agent that trains on leads and gives the cohort its shape, but those that
    have had more than most wait until the others have had as much: an agent alone in a cohort pays
    for its whole pod. Then come the others of that shape, those with fewer rounds first, and among
    equals those that the pod still holds. A new agent of another shape waits in its predecessor's
    place in the queue, so it leads soon and no shape is starved. Before an agent trains on, the
    population is made full: a pod that trains fewer gets fresh agents as long as there is room."""

    breeding: ClassVar[type[Breeding]] = Breeding

    def propose(self, population: Population, request: CohortRequest, random: Random) -> Cohort:
        """See `Generator`."""
        cohort = _Cohort(self, population, request, random)
        queue = [agent for agent in self._queue(population) if request.accepts(agent.algorithm)]
        if all(agent.started for agent in queue):
            # Else fewer pods than the population needs would train their first agents for ever, and
            # no others.
            while not cohort.is_full and cohort.is_first_of_population:
                cohort.fill()
        while queue and cohort.shape is None:
            cohort.take(queue.pop(0))
        # all of them have given way to agents of other shapes
        if cohort.created and cohort.shape is None:
            cohort.join(cohort.created[0])
        rest = (agent for agent in queue if agent.shape == cohort.shape)
        for agent in sorted(
            rest, key=lambda agent: (not agent.leads, agent.rung, agent.waiting_since)
        ):
            if cohort.is_full:
                break
            cohort.take(agent)
        while not cohort.is_full and cohort.may_grow:
            cohort.fill()
        if not cohort.members and cohort.may_stand_in:
            cohort.fill()  # else the pod would stand still
        return Cohort(tuple(cohort.members), tuple(cohort.created), retired=tuple(cohort.retired))

    def _queue(self, population: Population) -> list[Agent]:
        """The waiting agents, the next one first."""
        efforts = {
            agent.name: self.rules.effort(agent.env_steps, agent.cost_s)
            for agent in population.alive
        }
        middle = median_low(efforts.values()) if efforts else 0.0
        return sorted(
            population.waiting,
            key=lambda agent: (not agent.leads, max(efforts[agent.name], middle)),
        )


class _Cohort:
    """A cohort while it is put together."""

    def __init__(
        self, generator: Tournament, population: Population, request: CohortRequest, random: Random
    ) -> None:
        self._rules, self._population, self._request = generator.rules, population, request
        self._breeding = generator.breeding(
            generator.space, generator.rules, population, request, random
        )
        self.shape: Shape | None = None
        self.members: list[Agent | NewAgent] = []

    @property
    def created(self) -> list[NewAgent]:
        return self._breeding.created

    @property
    def retired(self) -> list[Retirement]:
        return self._breeding.retired

    @property
    def is_full(self) -> bool:
        return len(self.members) >= self._places

    @property
    def _places(self) -> int:
        places = (
            self._request.places if self.shape is None else self._request.places_for(self.shape)
        )
        return min(places, self._breeding.share)

    @property
    def may_grow(self) -> bool:
        """Whether the population has room for one more that the pod can train."""
        return self._breeding.has_room

    @property
    def may_stand_in(self) -> bool:
        """Whether there may be one more, though there are enough."""
        return self._breeding.has_place

    @property
    def is_first_of_population(self) -> bool:
        """Whether the next new agent is one of those that make the population full for the first
        time."""
        return (
            self.may_grow and self._population.created + len(self.created) < self._rules.population
        )

    def take(self, agent: Agent) -> None:
        """A waiting agent trains on, unless it has to end, most often for a new one."""
        curve = self._population.curves.get(agent.name, ())
        fraction = fraction_at_stake(self._rules, curve, self._population.budget_used)
        place = self._place_at_bottom(agent, fraction)
        if place and fraction >= HALVING and self._breeding.may_lose_one:
            self._breeding.retire(agent, f"stopped at {place}")
            return
        successor = self._breeding.exploit_or_explore(Vacancy(place, agent)) if place else None
        if successor is None:
            self.join(agent)
        elif successor.shape == (self.shape or agent.shape):
            self.join(successor)

    def fill(self) -> None:
        """A new agent for a free place."""
        was_full = self._population.created + len(self.created) >= self._rules.population
        reason = "a place is free" if was_full else "the population is not full yet"
        newcomer = self._breeding.newcomer(Vacancy(reason))
        if newcomer.shape == (self.shape or newcomer.shape):
            self.join(newcomer)

    def join(self, agent: Agent | NewAgent) -> None:
        """`agent` becomes a member; the first gives the shape and brings in those that have waited
        for it."""
        arrivals: list[Agent | NewAgent] = [agent]
        if self.shape is None:
            self.shape = agent.shape
            arrivals = [
                each for each in self.created if each.shape == self.shape and each is not agent
            ]
            arrivals.insert(0, agent)
        self.members.extend(arrivals[: self._places - len(self.members)])

    def _place_at_bottom(self, agent: Agent, fraction: float) -> str:
        """The place of an agent among the worst `fraction` of its rung, for people; empty where it
        is not there."""
        if agent.score is None or not agent.may_give_way:
            return ""
        peers = self._population.peers.get(agent.name, ())
        if not is_at_bottom(agent.score, peers, fraction):
            return ""
        place = sum(score > agent.score for score in peers) + 1
        return f"place {place} of {len(peers)} in rung {agent.rung}"

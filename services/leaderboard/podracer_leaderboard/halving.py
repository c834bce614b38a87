"""The `halving` generator: a portfolio, of which a third goes on twice, and then evolution of what is left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from podracer_leaderboard.agents import Agent, Cohort, CohortRequest, NewAgent, Population, Retirement, State
from podracer_leaderboard.breeding import Breeding, Vacancy
from podracer_leaderboard.rungs import milestone
from podracer_leaderboard.seating import seat
from podracer_leaderboard.tournament import Tournament

ETA = 3
"""Of so many agents one goes on to the next rung, which is so many times as long."""

RUNGS = 3


class Halving(Tournament):
    """Successive halving (Jamieson and Talwalkar 2016, arXiv:1502.07943) of the first population, then a tournament.

    The rungs end at the effort of a whole round and at three times that. There an agent waits until the others have
    come as far; then the best third goes on, by the shrunken means of the last rounds, and the others end. A pod that
    would stand still trains one of the best third so far. Nothing is copied before the last rung, and then only what
    has reached it. The tournament begins with the first agent that has another's weights, also with a user's fork.
    """

    def propose(self, population: Population, request: CohortRequest, random: Random) -> Cohort:
        """See `Generator`."""
        if population.created > sum(population.fresh_counts.values()):
            return self._evolve(population, request, random)
        rung = min(map(self._rung, population.alive), default=0)
        breeding = Breeding(self.space, self.rules, population, request, random)
        while rung == 0 and breeding.has_place:
            breeding.fresh(Vacancy("the first population"))
        retired = self._losers(population, rung)
        names = {each.agent.name for each in retired}
        staying = replace(population, agents=tuple(each for each in population.agents if each.name not in names))
        if rung + 1 >= RUNGS:
            cohort = self._evolve(staying, request, random)
        else:
            queue: list[Agent | NewAgent] = [agent for agent in staying.waiting if self._rung(agent) == rung]
            members = seat([*queue, *breeding.created], request) or seat(self._early(staying, rung), request)
            cohort = Cohort(members, tuple(breeding.created))
        if not cohort.members and not any(agent.state is State.TRAINING for agent in population.agents):
            cohort = self._evolve(staying, request, random)  # else a pod that trains few algorithms would wait for ever
        return replace(cohort, retired=(*retired, *cohort.retired))

    def _evolve(self, population: Population, request: CohortRequest, random: Random) -> Cohort:
        """The tournament's proposal, with the living as the only parents; as many of these as it can compare."""
        living = replace(population, agents=tuple(population.alive))
        breeding = Breeding(self.space, self.rules, living, request, random)
        while living.agents and breeding.has_room:
            breeding.newcomer(Vacancy("a place is free in the last rung"))
        if not breeding.created:
            return super().propose(living, request, random)
        return Cohort(seat([*living.waiting, *breeding.created], request), tuple(breeding.created))

    def _rung(self, agent: Agent) -> int:
        """How many of the rungs' ends an agent has reached."""
        effort = self.rules.effort(agent.env_steps, agent.cost_s)
        return sum(effort >= milestone(self.rules) * ETA**rung for rung in range(RUNGS - 1))

    def _room(self, rung: int) -> int:
        room: int = math.ceil(self.rules.population / ETA**rung)
        return room

    def _losers(self, population: Population, rung: int) -> list[Retirement]:
        """The waiting agents that are more than the rung has room for, now that all are there, the worst first."""
        living = _ranked(population.alive)
        surplus = len(living) - self._room(rung)
        losers = [agent for agent in reversed(living) if agent.state is State.WAITING and agent.may_give_way]
        return [
            Retirement(agent, f"stopped at place {living.index(agent) + 1} of {len(living)} in rung {rung}")
            for agent in losers[: max(0, surplus)]
        ]

    def _early(self, population: Population, rung: int) -> list[Agent]:
        """Agents that wait at the end of `rung` and are among the best third of all that could get there."""
        there = _ranked([agent for agent in population.alive if self._rung(agent) > rung])
        best = there[: self._room(rung + 1)]
        return [agent for agent in best if agent.state is State.WAITING and self._rung(agent) == rung + 1]


def _ranked(agents: Sequence[Agent]) -> list[Agent]:
    """The best first, those that no round has judged last; of equal ones the older."""
    return sorted(agents, key=lambda agent: (agent.score is None, -(agent.score or 0.0), agent.number))

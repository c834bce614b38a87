"""Successive halving of a portfolio: `halving` waits for whole rungs and then evolves what is left;
`asha` does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from podracer_core.evolution.agents import (
    Agent,
    Cohort,
    CohortRequest,
    NewAgent,
    Population,
    Retirement,
    State,
    seat,
)
from podracer_core.evolution.breeding import Breeding, Vacancy
from podracer_core.evolution.generator import Generator
from podracer_core.evolution.rules import Rules, milestone
from podracer_core.evolution.tournament import Tournament

ETA = 3
"""Of so many agents one goes on to the next rung, which is so many times as long."""

RUNGS = 3


class Halving(Tournament):
    """Successive halving (Jamieson and Talwalkar 2016, arXiv:1502.07943) of the first population,
    then a tournament.

    The rungs end at the effort of a whole round and at three times that. There an agent waits until
    the others have come as far; then the best third goes on, by the shrunken means of the last
    rounds, and the others end. A pod that would stand still trains one of the best third so far.
    Nothing is copied before the last rung, and then only what has reached it. The tournament begins
    with the first agent that has another's weights, also with a user's fork."""

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
        staying = replace(
            population, agents=tuple(each for each in population.agents if each.name not in names)
        )
        if rung + 1 >= RUNGS:
            cohort = self._evolve(staying, request, random)
        else:
            queue: list[Agent | NewAgent] = [
                agent for agent in staying.waiting if self._rung(agent) == rung
            ]
            members = seat([*queue, *breeding.created], request) or seat(
                self._early(staying, rung), request
            )
            cohort = Cohort(members, tuple(breeding.created))
        if not cohort.members and not any(
            agent.state is State.TRAINING for agent in population.agents
        ):
            # else a pod that trains few algorithms would wait for ever
            cohort = self._evolve(staying, request, random)
        return replace(cohort, retired=(*retired, *cohort.retired))

    def _evolve(self, population: Population, request: CohortRequest, random: Random) -> Cohort:
        """The tournament's proposal, with the living as the only parents; as many of these as it
        can compare."""
        living = replace(population, agents=tuple(population.alive))
        breeding = Breeding(self.space, self.rules, living, request, random)
        while living.agents and breeding.has_room:
            breeding.newcomer(Vacancy("a place is free in the last rung"))
        if not breeding.created:
            return super().propose(living, request, random)
        return Cohort(seat([*living.waiting, *breeding.created], request), tuple(breeding.created))

    def _rung(self, agent: Agent) -> int:
        """How many of the rungs' ends an agent has reached."""
        return min(
            _rungs_below(self.rules.effort(agent.env_steps, agent.cost_s), self.rules), RUNGS - 1
        )

    def _room(self, rung: int) -> int:
        room: int = math.ceil(self.rules.population / ETA**rung)
        return room

    def _losers(self, population: Population, rung: int) -> list[Retirement]:
        """The waiting agents that are more than the rung has room for, now that all are there, the
        worst first."""
        living = _ranked(population.alive)
        surplus = len(living) - self._room(rung)
        losers = [
            agent
            for agent in reversed(living)
            if agent.state is State.WAITING and agent.may_give_way
        ]
        return [
            Retirement(
                agent, f"stopped at place {living.index(agent) + 1} of {len(living)} in rung {rung}"
            )
            for agent in losers[: max(0, surplus)]
        ]

    def _early(self, population: Population, rung: int) -> list[Agent]:
        """Agents that wait at the end of `rung` and are among the best third of all that could get
        there."""
        there = _ranked([agent for agent in population.alive if self._rung(agent) > rung])
        best = there[: self._room(rung + 1)]
        return [
            agent
            for agent in best
            if agent.state is State.WAITING and self._rung(agent) == rung + 1
        ]


class AsynchronousHalving(Generator):
    """Asynchronous successive halving (Li et al. 2020, arXiv:1810.05934, algorithm 2): no agent
    waits for others.

    Rungs end at the effort of a whole round, at three times that, at nine times, and so on. There
    an agent pauses. It goes on as soon as it is in the best third of all that have come as far (of
    four at least: of fewer, those nearest below count too), those in the highest rung first. If
    none may go on, more agents begin, up to `evolution.population`; after that the paused agents go
    on, the best first. Nothing is copied, and no agent ends."""

    def propose(self, population: Population, request: CohortRequest, random: Random) -> Cohort:
        """See `Generator`."""
        breeding = Breeding(self.space, self.rules, population, request, random)
        present = [agent for agent in population.waiting if request.accepts(agent.algorithm)]
        queue: list[Agent | NewAgent] = [
            agent for agent in present if self._goes_on(agent, population)
        ]
        if not queue:
            while breeding.has_place and len(breeding.created) < request.places:
                breeding.fresh(Vacancy("no agent may be promoted"))
            queue = [*breeding.created] or [*_ranked(present)[: request.places]]
        if not queue:
            return Cohort()
        queue.sort(key=self._order)
        members = [each for each in queue if each.shape == queue[0].shape]
        return Cohort(tuple(members[: request.places_for(queue[0].shape)]), tuple(breeding.created))

    def _goes_on(self, agent: Agent, population: Population) -> bool:
        """Whether it is between two rungs, or has earned the next."""
        curve, peers = population.curves.get(agent.name), population.peers.get(agent.name)
        if not curve or not peers:
            return True
        ended = _rungs_below(curve[-1].after, self.rules) > _rungs_below(
            curve[-1].before, self.rules
        )
        return not ended or sum(peer > peers[0] for peer in peers) < len(peers) // ETA

    def _order(self, agent: Agent | NewAgent) -> tuple[bool, float]:
        """First what a user has forked, then by effort."""
        if isinstance(agent, NewAgent):
            return True, 0.0
        return not agent.leads, -self.rules.effort(agent.env_steps, agent.cost_s)


def _rungs_below(effort: float, rules: Rules) -> int:
    """Ends of rungs that an effort has reached: milestones times the powers of three."""
    return (
        0 if effort < milestone(rules) else 1 + int(math.log(effort / milestone(rules), ETA) + 1e-9)
    )


def _ranked(agents: Sequence[Agent]) -> list[Agent]:
    """The best first, those that no round has judged last; of equal ones the older."""
    return sorted(
        agents, key=lambda agent: (agent.score is None, -(agent.score or 0.0), agent.number)
    )

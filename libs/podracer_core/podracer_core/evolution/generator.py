"""The interface of generators, which choose the agents that a pod trains next, and the two
simplest: RandomSearch, the baseline that every other has to beat (Bergstra and Bengio 2012, JMLR
13:281-305), and Generational, with a barrier, as in FinRL-Podracer (Li et al. 2021,
arXiv:2111.05188)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
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


class Generational(Generator):
    """Every agent trains one round; when the last has ended it, the worst give way to children of
    the best.

    The worst are `replaced_fraction` of the generation by their last scores, but none that equals
    the best, so equal scores change nothing. Parents come by truncation selection from the best
    quarter of those that are better, the leaderboard's included; children are mutated. Agents train
    in whatever order pods come; a pod that comes while the others of the generation still train
    gets nothing. One that failed is not waited for: its place is filled with the next generation.
    After `generations` there is no further one."""

    def propose(self, population: Population, request: CohortRequest, random: Random) -> Cohort:
        """See `Generator`."""
        alive = population.alive
        generation = _generation(population)
        if self.rules.generations and generation >= self.rules.generations:
            return Cohort(finished=True)
        if not any(map(request.accepts, self.space.shares)):
            return Cohort()  # the next generation is for a pod that can train one
        staying = [agent for agent in population.waiting if agent.generation == generation]
        is_under_way = len(staying) < len(alive) or not all(agent.started for agent in staying)
        # founders alone are no generation yet
        if is_under_way and population.created >= self.rules.population:
            return Cohort(seat(staying, request))
        created = self._next_generation(population, request, random, generation)
        replaced = {new.replaced.name for new in created if new.replaced is not None}
        queue: list[Agent | NewAgent] = [
            *(agent for agent in staying if agent.name not in replaced),
            *created,
        ]
        return Cohort(seat(queue, request), tuple(created))

    def _next_generation(
        self, population: Population, request: CohortRequest, random: Random, generation: int
    ) -> list[NewAgent]:
        rules = replace(self.rules, selection="truncation")
        breeding = Breeding(self.space, rules, population, request, random)
        judged = sorted(
            (agent for agent in population.alive if agent.score is not None),
            key=lambda agent: (_score(agent), -agent.number),
        )
        worst = judged[: math.floor(self.rules.replaced_fraction * len(judged))]
        for place, agent in enumerate(worst):
            if agent.may_give_way and _score(agent) < _score(judged[-1]):
                reason = f"place {len(judged) - place} of {len(judged)} in generation {generation}"
                breeding.exploit_or_explore(Vacancy(reason, agent, generation))
        while breeding.has_room:
            breeding.newcomer(
                Vacancy(f"a free place in generation {generation + 1}", generation=generation)
            )
        return breeding.created


def _generation(population: Population) -> int:
    """The generation of the slowest living agent; without one, the last one of the leaderboard."""
    alive = [agent.generation for agent in population.alive]
    return (
        min(alive) if alive else max((agent.generation for agent in population.agents), default=0)
    )


def _score(agent: Agent) -> float:
    assert agent.score is not None, "only the judged are ranked"
    return agent.score

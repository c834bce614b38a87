"""The asynchronous tournament: train on, copy a better one, or begin anew, whenever a pod is free (DESIGN §8)."""

from __future__ import annotations

from collections import Counter
from random import Random

from podracer_leaderboard.agents import Action, Agent, Cohort, CohortRequest, NewAgent, Population
from podracer_leaderboard.generator import Generator
from podracer_leaderboard.rungs import is_at_bottom, peer_scores
from podracer_leaderboard.search_space import Shape, shape_of


class Tournament(Generator):
    """CONTINUE for every waiting agent but those at the bottom of their rung; EXPLOIT or FRESH in their places.

    The longest waiting agent that trains on leads and gives the cohort its shape; then come the others of that shape,
    those with fewer rounds first, and among equals those that the pod still holds. A new agent of another shape waits
    in its predecessor's place in the queue, so it leads soon and no shape is starved.
    """

    def propose(self, population: Population, request: CohortRequest, random: Random) -> Cohort:
        """See `Generator`."""
        cohort = _Cohort(self, population, request, random)
        queue = [agent for agent in population.waiting if request.accepts(agent.algorithm)]
        while queue and cohort.shape is None:
            cohort.take(queue.pop(0))
        if cohort.created and cohort.shape is None:  # all of them have given way to agents of other shapes
            cohort.join(cohort.created[0])
        rest = (agent for agent in queue if agent.shape == cohort.shape)
        for agent in sorted(rest, key=lambda agent: (agent.rung, agent.name not in request.warm, agent.waiting_since)):
            if cohort.is_full:
                break
            cohort.take(agent)
        while not cohort.is_full and cohort.may_grow:
            cohort.fill()
        return Cohort(tuple(cohort.members), tuple(cohort.created))


class _Cohort:
    """A cohort while it is put together."""

    def __init__(self, generator: Generator, population: Population, request: CohortRequest, random: Random) -> None:
        self._space, self._rules = generator.space, generator.rules
        self._population, self._request, self._random = population, request, random
        self.shape: Shape | None = None
        self.members: list[Agent | NewAgent] = []
        self.created: list[NewAgent] = []
        self._shapes = Counter(agent.shape for agent in population.alive)  # of the living, these here included
        self._fresh_counts = Counter(population.fresh_counts)

    @property
    def is_full(self) -> bool:
        return len(self.members) >= self._request.places

    @property
    def may_grow(self) -> bool:
        """Whether the population has room for one more that the pod can train."""
        has_room = self._shapes.total() < self._rules.population
        return has_room and any(map(self._request.accepts, self._space.shares))

    def take(self, agent: Agent) -> None:
        """A waiting agent trains on, unless it has to give way to a new one."""
        successor = self._successor(agent)
        if successor is None:
            self.join(agent)
            return
        self._create(successor)
        if successor.shape == (self.shape or agent.shape):
            self.join(successor)

    def fill(self) -> None:
        """A new agent for a place that nobody holds."""
        newcomer = self._newcomer()
        self._create(newcomer)
        if newcomer.shape == (self.shape or newcomer.shape):
            self.join(newcomer)

    def join(self, agent: Agent | NewAgent) -> None:
        """`agent` becomes a member; the first gives the shape and brings in those that have waited for it."""
        arrivals: list[Agent | NewAgent] = [agent]
        if self.shape is None:
            self.shape = agent.shape
            arrivals = [each for each in self.created if each.shape == self.shape and each is not agent]
            arrivals.insert(0, agent)
        self.members.extend(arrivals[: self._request.places - len(self.members)])

    def _create(self, new: NewAgent) -> None:
        self.created.append(new)
        self._shapes[new.shape] += 1
        self._fresh_counts[new.algorithm] += new.action is Action.FRESH
        if new.replaced is not None:
            self._shapes[new.replaced.shape] -= 1

    def _newcomer(self) -> NewAgent:
        """FRESH until the population has once been full, then as for a replaced one."""
        if self._population.created + len(self.created) < self._rules.population:
            return self._fresh(None, "the population is not full yet")
        reason = "in the place of an agent that failed"
        return self._exploit_or_explore(None, reason) or self._fresh(None, reason)

    def _successor(self, agent: Agent) -> NewAgent | None:
        """Who replaces `agent`; None where it trains on."""
        if not agent.started or agent.score is None:
            return None
        peers = peer_scores(agent.rung, self._population.rung_scores)
        if not is_at_bottom(agent.score, peers, self._rules.replaced_fraction):
            return None
        place = sum(score > agent.score for score in peers) + 1
        return self._exploit_or_explore(agent, f"place {place} of {len(peers)} in rung {agent.rung}")

    def _exploit_or_explore(self, replaced: Agent | None, reason: str) -> NewAgent | None:
        """FRESH with the exploration probability, else EXPLOIT; None where nobody is better than `replaced`."""
        if self._random.random() < self._rules.exploration:
            return self._fresh(replaced, f"{reason}; exploration")
        donor = self._donor(replaced)
        if donor is None:
            return None
        hyperparameters = self._space.mutate(donor.algorithm, donor.hyperparameters, self._random)
        reason = f"{reason}; from {donor.name.rsplit('/', 1)[-1]} with {donor.best_score:.6g}"
        return NewAgent(Action.EXPLOIT, donor.algorithm, hyperparameters, donor.shape, reason, donor, replaced)

    def _donor(self, replaced: Agent | None) -> Agent | None:
        """Tournament selection: the best of k that are drawn from all that are strictly better than `replaced`."""
        floor = float("-inf") if replaced is None or replaced.score is None else replaced.score
        pool = [
            agent
            for agent in self._population.donors
            if agent is not replaced and _best_score(agent) > floor and self._request.accepts(agent.algorithm)
        ]
        drawn = [
            pool.pop(int(self._random.random() * len(pool))) for _ in range(min(self._rules.tournament_size, len(pool)))
        ]
        return max(drawn, key=lambda agent: (_best_score(agent), -agent.number), default=None)

    def _fresh(self, replaced: Agent | None, reason: str) -> NewAgent:
        algorithm = self._next_algorithm()
        draw = self._space.sample if self._fresh_counts[algorithm] else self._space.defaults
        hyperparameters = draw(algorithm, self._random)
        shape = shape_of(algorithm, hyperparameters)
        present = [each for each, count in self._shapes.items() if count and each[0] == algorithm]
        if shape not in present and len(present) >= self._rules.shape_limit:
            shape = present[int(self._random.random() * len(present))]
            hyperparameters = self._space.with_shape(hyperparameters, shape)
        return NewAgent(Action.FRESH, algorithm, hyperparameters, shape, reason, replaced=replaced)

    def _next_algorithm(self) -> str:
        """The algorithm that is furthest behind its share of fresh agents."""
        shares = {name: share for name, share in self._space.shares.items() if self._request.accepts(name)}
        total, count = sum(shares.values()), sum(self._fresh_counts[name] for name in shares) + 1
        return max(shares, key=lambda name: shares[name] / total * count - self._fresh_counts[name])


def _best_score(agent: Agent) -> float:
    assert agent.best_score is not None, "donors have a candidate"
    return agent.best_score

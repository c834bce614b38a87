"""Making new agents: their parents, inheritance and shapes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from podracer_core.catalogue import HyperparameterValue
from podracer_core.evolution.agents import (
    Action,
    Agent,
    CohortRequest,
    NewAgent,
    Population,
    Retirement,
    Start,
)
from podracer_core.evolution.rules import MINIMUM_PEERS, Rules
from podracer_core.evolution.search_space import (
    SearchSpace,
    Shape,
    configuration,
    shape_of,
    weights_shape,
)

REGROUPING_PROBABILITY = 0.25
"""The probability that a child gets another value of a shared, searched hyperparameter: a new
cohort costs speed."""

REBUILDING_PROBABILITY = 0.5
"""The probability that exploration keeps a donor's hyperparameters and changes its network, if that
is searched."""

STAGNANT_EXPLORATION = 0.5
"""The least exploration while no line improves: copies of a stuck agent are stuck as well."""

BEST_PART = 0.25
"""Truncation selection draws from this fraction of the better agents."""


@dataclass(frozen=True, slots=True)
class Vacancy:
    """A place in the population for a new agent: its reason, the agent that gives way, and the
    generation it joins."""

    reason: str
    replaced: Agent | None = None
    generation: int = 0


class Breeding:
    """The new agents of one proposal, `created`; counts shapes and algorithms while it makes
    them."""

    def __init__(
        self,
        space: SearchSpace,
        rules: Rules,
        population: Population,
        request: CohortRequest,
        random: Random,
    ) -> None:
        self._space, self._rules, self._population = space, rules, population
        self._request, self._random = request, random
        # of the living, the new ones included
        self._shapes = Counter(agent.shape for agent in population.alive)
        self._fresh_counts = Counter(population.fresh_counts)
        donors = (agent for agent in population.donors if request.accepts(agent.algorithm))
        self._ranked = sorted(donors, key=lambda agent: (-_merit(agent), agent.number))
        self._donor_shapes = {agent.shape: agent for agent in self._ranked}
        self._pods = math.ceil(rules.population / request.places)
        self.created: list[NewAgent] = []
        self.retired: list[Retirement] = []

    @property
    def has_room(self) -> bool:
        """Whether the population has room for one more agent that the pod can train."""
        return self.has_place and (not self._shrinks or self._shapes.total() < self._least)

    @property
    def has_place(self) -> bool:
        """Whether one more agent that the pod can train is allowed."""
        is_full = self._shapes.total() >= self._rules.population
        return not is_full and any(map(self._request.accepts, self._space.shares))

    @property
    def may_lose_one(self) -> bool:
        """Whether an agent may end without a successor, so that there is more time for each of the
        others."""
        return self._shrinks and self._shapes.total() > self._least

    @property
    def share(self) -> int:
        """The number of agents for a pod, if all pods get their part of them."""
        return (
            math.ceil(self._shapes.total() / self._pods) if self._shrinks else self._request.places
        )

    def retire(self, agent: Agent, reason: str) -> None:
        """End a waiting agent without a successor."""
        self.retired.append(Retirement(agent, reason))
        self._shapes[agent.shape] -= 1

    def newcomer(self, vacancy: Vacancy) -> NewAgent:
        """A new agent for a free place: FRESH until the population has once been full, then a child
        if possible."""
        was_full = self._population.created + len(self.created) >= self._rules.population
        return (self.exploit_or_explore(vacancy) if was_full else None) or self.fresh(vacancy)

    def exploit_or_explore(self, vacancy: Vacancy) -> NewAgent | None:
        """A child of a better agent, or with the exploration probability one with new weights.

        None if no agent is better than the one to be replaced.
        """
        stagnates, exploration = self._population.stagnates, self._rules.exploration
        explores = self._random.random() < (
            max(exploration, STAGNANT_EXPLORATION) if stagnates else exploration
        )
        pool = self._donors(vacancy.replaced)
        donor = self._select(pool)
        if not explores:
            return None if donor is None else self._child(donor, pool, vacancy)
        rebuilt = None if donor is None else self._rebuilt(donor, vacancy)
        if rebuilt is not None:
            return rebuilt
        if stagnates and donor is not None:
            again = replace(
                vacancy,
                reason=f"{vacancy.reason}; no line improves, {donor.algorithm} restarts from "
                "scratch",
            )
            return self.fresh(again, donor.algorithm)
        return self.fresh(replace(vacancy, reason=f"{vacancy.reason}; exploration"))

    def fresh(self, vacancy: Vacancy, algorithm: str = "") -> NewAgent:
        """An agent with fresh weights and the next hyperparameters of its algorithm's `portfolio`.

        Without an `algorithm` the one that is furthest behind its share.
        """
        algorithm = algorithm or self._next_algorithm()
        hyperparameters = configuration(
            self._space, algorithm, self._fresh_counts[algorithm], self._rules.seed
        )
        if not self._may_have(shape_of(algorithm, hyperparameters), vacancy):
            shape = self._draw(self._shapes_beside(algorithm, vacancy))
            hyperparameters = self._space.with_shape(hyperparameters, shape)
        self._fresh_counts[algorithm] += 1
        return self._create(Action.FRESH, algorithm, hyperparameters, vacancy)

    @property
    def _shrinks(self) -> bool:
        """Whether fewer agents than the population are enough: once it was full, and while they
        improve."""
        was_full = self._population.created + len(self.created) >= self._rules.population
        return self._rules.adaptive_rounds and was_full and not self._population.stagnates

    @property
    def _least(self) -> int:
        """The fewest agents: one for each pod, and enough to compare them with each other."""
        return min(self._rules.population, max(MINIMUM_PEERS, self._pods))

    def _child(self, donor: Agent, pool: Sequence[Agent], vacancy: Vacancy) -> NewAgent:
        """A mutation of the donor with its weights, or of it and a mate with the mean of theirs.

        A fusion has its parents' shape, so there is none if no further agent of that shape is
        allowed."""
        mate = self._mate(donor, pool) if self._may_have(donor.shape, vacancy) else None
        parents = (donor,) if mate is None else (donor, mate)
        inherited = self._space.cross(
            [parent.hyperparameters for parent in parents], donor.algorithm, self._random
        )
        hyperparameters = self._space.mutate(donor.algorithm, inherited, self._random)
        if mate is not None:
            start = Start.FUSE
        else:
            start = Start.NOISE if self._rules.noise_scale > 0 else Start.COPY
            hyperparameters = self._regrouped(donor, hyperparameters, vacancy)
        return self._create(
            Action.EXPLOIT, donor.algorithm, hyperparameters, vacancy, start, parents
        )

    def _rebuilt(self, donor: Agent, vacancy: Vacancy) -> NewAgent | None:
        """The donor's hyperparameters with another network: new weights, so a new lineage without
        effort."""
        algorithm = donor.algorithm
        if (
            not self._space.mutable(algorithm, "network")
            or self._random.random() >= REBUILDING_PROBABILITY
        ):
            return None
        hyperparameters = self._space.vary(
            algorithm, donor.hyperparameters, "network", self._random
        )
        if not self._may_have(shape_of(algorithm, hyperparameters), vacancy):
            return None
        reason = f"{vacancy.reason}; the hyperparameters of {_short(donor)} with another network"
        return self._create(
            Action.EXPLOIT, algorithm, hyperparameters, replace(vacancy, reason=reason)
        )

    def _regrouped(
        self, donor: Agent, values: dict[str, HyperparameterValue], vacancy: Vacancy
    ) -> dict[str, HyperparameterValue]:
        """The child's hyperparameters, now and then with another batch, horizon…, in a shape that
        there may be.

        A donor from the leaderboard may be of a shape that has died out and for which there is no
        room any more: its child then takes one that fits its weights."""
        algorithm = donor.algorithm
        may_stay = self._may_have(donor.shape, vacancy)
        wants_other = (
            self._space.mutable(algorithm, "cohort")
            and self._random.random() < REGROUPING_PROBABILITY
        )
        if may_stay and not wants_other:
            return values
        if wants_other:
            varied = self._space.vary(algorithm, values, "cohort", self._random)
            if self._may_have(shape_of(algorithm, varied), vacancy):
                return varied
        others = [shape for shape in self._fitting(donor, vacancy) if shape != donor.shape]
        return self._space.with_shape(values, self._draw(others)) if others else values

    def _mate(self, donor: Agent, pool: Sequence[Agent]) -> Agent | None:
        """A second parent of the donor's shape; a relative if there is one.

        The mean of two networks is useful if they have a common ancestor: Wortsman et al. 2022,
        Model soups, arXiv:2203.05482."""
        if self._rules.crossover <= 0 or self._random.random() >= self._rules.crossover:
            return None
        others = [agent for agent in pool if agent.shape == donor.shape and agent is not donor]
        return self._select([agent for agent in others if agent.lineage == donor.lineage] or others)

    def _donors(self, replaced: Agent | None) -> list[Agent]:
        """The agents that may give weights to the successor of `replaced`: all strictly better
        ones, best first."""
        floor = float("-inf") if replaced is None or replaced.score is None else _merit(replaced)
        better = self._ranked[: bisect_left(self._ranked, -floor, key=lambda agent: -_merit(agent))]
        vacancy = Vacancy("", replaced)
        welcome = {
            shape
            for shape, agent in self._donor_shapes.items()
            if self._may_have(shape, vacancy) or self._fitting(agent, vacancy)
        }
        if len(welcome) < len(self._donor_shapes):
            better = [agent for agent in better if agent.shape in welcome]
        return [agent for agent in better if agent is not replaced]

    def _select(self, pool: Sequence[Agent]) -> Agent | None:
        """Tournament selection, the best of k that are drawn; or truncation selection, one of the
        best part.

        `pool` has the best first.
        """
        if self._rules.selection == "truncation":
            best = pool[: math.ceil(BEST_PART * len(pool))]
            return best[self._index(len(best))] if best else None
        left = list(range(len(pool)))
        drawn = [
            left.pop(self._index(len(left)))
            for _ in range(min(self._rules.tournament_size, len(left)))
        ]
        return pool[min(drawn)] if drawn else None

    def _next_algorithm(self) -> str:
        """The algorithm that is furthest behind its share of fresh agents."""
        shares = {
            name: share for name, share in self._space.shares.items() if self._request.accepts(name)
        }
        total, count = sum(shares.values()), sum(self._fresh_counts[name] for name in shares) + 1
        return max(shares, key=lambda name: shares[name] / total * count - self._fresh_counts[name])

    def _create(
        self,
        action: Action,
        algorithm: str,
        hyperparameters: dict[str, HyperparameterValue],
        vacancy: Vacancy,
        start: Start = Start.FRESH,
        parents: tuple[Agent, ...] = (),
    ) -> NewAgent:
        origin = " and ".join(f"{_short(parent)} with {_merit(parent):.6g}" for parent in parents)
        new = NewAgent(
            action,
            algorithm,
            hyperparameters,
            shape_of(algorithm, hyperparameters),
            f"{vacancy.reason}; from {origin}" if parents else vacancy.reason,
            start=start,
            parents=parents,
            noise_scale=self._rules.noise_scale if start is Start.NOISE else 0.0,
            replaced=vacancy.replaced,
            generation=vacancy.generation,
        )
        self.created.append(new)
        self._shapes[new.shape] += 1
        if vacancy.replaced is not None:
            self._shapes[vacancy.replaced.shape] -= 1
        return new

    def _may_have(self, shape: Shape, vacancy: Vacancy) -> bool:
        """Whether an agent of `shape` is allowed within the limit of shapes of its algorithm."""
        present = self._shapes_beside(shape[0], vacancy)
        return shape in present or len(present) < self._rules.shape_limit

    def _fitting(self, donor: Agent, vacancy: Vacancy) -> list[Shape]:
        """The shapes in use that the donor's weights fit into."""
        weights = weights_shape(donor.algorithm, donor.hyperparameters)
        present = self._shapes_beside(donor.algorithm, vacancy)
        return [
            shape for shape in present if weights_shape(donor.algorithm, dict(shape[1])) == weights
        ]

    def _shapes_beside(self, algorithm: str, vacancy: Vacancy) -> list[Shape]:
        """The shapes of `algorithm` in use, without the agent that gives way."""
        leaving = None if vacancy.replaced is None else vacancy.replaced.shape
        counts = self._shapes.items()
        return [
            shape for shape, count in counts if shape[0] == algorithm and count > (shape == leaving)
        ]

    def _draw(self, shapes: Sequence[Shape]) -> Shape:
        return shapes[self._index(len(shapes))]

    def _index(self, length: int) -> int:
        return int(self._random.random() * length)


def _merit(agent: Agent) -> float:
    assert agent.merit is not None, "donors have a candidate"
    return agent.merit


def _short(agent: Agent) -> str:
    return agent.name.rsplit("/", 1)[-1]

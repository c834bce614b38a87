"""The `search` generator: an Optuna sampler suggests the hyperparameters of new agents."""

from __future__ import annotations

import warnings
from random import Random
from typing import TYPE_CHECKING, ClassVar

from podracer_core.catalogue.ranges import (
    Choice,
    Fixed,
    HyperparameterValue,
    IntegerInterval,
    Interval,
    Range,
)
from podracer_core.evolution.agents import (
    Action,
    Agent,
    CohortRequest,
    NewAgent,
    Population,
    Start,
    State,
)
from podracer_core.evolution.breeding import Breeding, Vacancy
from podracer_core.evolution.rules import Rules
from podracer_core.evolution.search_space import SearchSpace, shape_of, weights_shape
from podracer_core.evolution.tournament import Tournament

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

ALGORITHM = "algorithm"
"""Name of the parameter that says which algorithm; those of an algorithm are called
`ppo.learning_rate`."""


class Suggestions:
    """An Optuna study of what a board has seen, rebuilt for each proposal: nothing but the board
    has to last.

    It is only built when the first suggestion is wanted, for most proposals want none. Agents that
    were given up are pruned trials, at the effort and with the score that they came to: Optuna
    holds every pruned trial for worse than what lives, and one that came further for better than
    one that did not, which scores at different efforts alone would not say. Those that no round has
    judged yet count as running, so a second suggestion keeps away from them."""

    def __init__(
        self, space: SearchSpace, rules: Rules, population: Population, sampler: BaseSampler
    ) -> None:
        import optuna

        # its own handler writes every study to stderr
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        judged = {agent.name for agent in population.history}
        unjudged = [agent for agent in population.alive if agent.name not in judged]
        self._study: Study = optuna.create_study(direction="maximize", sampler=sampler)
        self._study.add_trials(
            [self._trial(agent, rules) for agent in (*population.history, *unjudged)]
        )

    def suggest(self, algorithm: str | None) -> tuple[str, dict[str, HyperparameterValue]]:
        """An algorithm, the given one where it is given, and values for all that is searched of
        it."""
        if algorithm is not None and len(self._space.shares) > 1:
            self._study.enqueue_trial({ALGORITHM: algorithm})
        trial = self._study.ask()
        if len(self._space.shares) > 1:
            algorithm = str(trial.suggest_categorical(ALGORITHM, sorted(self._space.shares)))
        chosen = algorithm or next(iter(self._space.shares))
        ranges = self._space.ranges[chosen]
        return chosen, {
            name: _suggested(trial, f"{chosen}.{name}", ranges[name]) for name in sorted(ranges)
        }

    def _trial(self, agent: Agent, rules: Rules) -> FrozenTrial:
        from optuna.distributions import CategoricalDistribution
        from optuna.trial import TrialState, create_trial

        params: dict[str, float | int | str] = {}
        distributions: dict[str, BaseDistribution] = {}
        if len(self._space.shares) > 1:
            params[ALGORITHM] = agent.algorithm
            distributions[ALGORITHM] = CategoricalDistribution(sorted(self._space.shares))
        for name, search in self._space.ranges[agent.algorithm].items():
            if not isinstance(search, Fixed) and search.contains(agent.hyperparameters[name]):
                key = f"{agent.algorithm}.{name}"
                params[key] = _parameter(search, agent.hyperparameters[name])
                distributions[key] = _distribution(search)
        if agent.best_score is None:
            return create_trial(
                params=params, distributions=distributions, state=TrialState.RUNNING
            )
        if agent.state in (State.RETIRED, State.FAILED):
            effort = agent.env_steps if rules.round_env_steps else int(1000 * agent.cost_s)
            return create_trial(
                params=params,
                distributions=distributions,
                state=TrialState.PRUNED,
                intermediate_values={
                    effort if agent.state is State.RETIRED else 0: agent.best_score
                },
            )
        return create_trial(params=params, distributions=distributions, value=agent.best_score)


class SuggestedBreeding(Breeding):
    """New agents with hyperparameters that a sampler suggests, and a better agent's weights where
    those fit."""

    def __init__(
        self,
        space: SearchSpace,
        rules: Rules,
        population: Population,
        request: CohortRequest,
        random: Random,
    ) -> None:
        super().__init__(space, rules, population, request, random)
        self._suggestions: Suggestions | None = None

    def exploit_or_explore(self, vacancy: Vacancy) -> NewAgent | None:
        """A child of a better agent; a fresh agent with the exploration probability, or if no
        donor's weights fit."""
        explores = self._random.random() < self._rules.exploration
        algorithm, values = self._suggested(vacancy)
        weights = weights_shape(algorithm, values)
        pool = [
            donor
            for donor in self._donors(vacancy.replaced)
            if donor.algorithm == algorithm
            and weights_shape(algorithm, donor.hyperparameters) == weights
        ]
        donor = None if explores else self._select(pool)
        if donor is None:
            self._fresh_counts[algorithm] += 1
            return self._create(Action.FRESH, algorithm, values, vacancy)
        start = Start.NOISE if self._rules.noise_scale > 0 else Start.COPY
        return self._create(Action.EXPLOIT, algorithm, values, vacancy, start, (donor,))

    def _suggested(self, vacancy: Vacancy) -> tuple[str, dict[str, HyperparameterValue]]:
        """An algorithm and its hyperparameters, in a shape that there may be."""
        if self._suggestions is None:
            sampler = make_sampler(self._rules, int(self._random.random() * 2**32))
            self._suggestions = Suggestions(self._space, self._rules, self._population, sampler)
        takes_any = all(map(self._request.accepts, self._space.shares))
        algorithm, suggested = self._suggestions.suggest(
            None if takes_any else self._next_algorithm()
        )
        values = {**self._space.sample(algorithm, self._random), **suggested}
        if not self._may_have(shape_of(algorithm, values), vacancy):
            values = self._space.with_shape(
                values, self._draw(self._shapes_beside(algorithm, vacancy))
            )
        return algorithm, values


class Search(Tournament):
    """A tournament in whose empty places Optuna's TPE puts new agents (Bergstra et al. 2011,
    NeurIPS 24).

    Agents train on like in a tournament, unless they are at the bottom of their rung; the sampler
    suggests those that replace them, beyond the first full population also their algorithm. An
    agent that begins from nothing late rarely catches up within a job's budget, so a suggestion
    takes over the weights of a better agent where they fit its network, and begins from nothing
    else."""

    uses_history: ClassVar[bool] = True
    breeding: ClassVar[type[Breeding]] = SuggestedBreeding


def make_sampler(rules: Rules, seed: int) -> BaseSampler:
    """TPE over all parameters of an algorithm together, guessing from the first full population
    on."""
    from optuna.exceptions import ExperimentalWarning
    from optuna.samplers import TPESampler

    # `group`, which handles spaces of several algorithms, has been one since 2021
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return TPESampler(
            n_startup_trials=rules.population,
            multivariate=True,
            group=True,
            constant_liar=True,
            seed=seed,
        )


def _distribution(search: Range) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    match search:
        case Interval(low, high):
            return FloatDistribution(low, high, log=search.is_logarithmic)
        case IntegerInterval(low, high, logarithmic):
            return IntDistribution(low, high, log=logarithmic)
        case Choice(values):
            return CategoricalDistribution(range(len(values)))
    raise TypeError(f"no distribution for {search}")


def _parameter(search: Range, value: HyperparameterValue) -> float | int:
    """A value as Optuna knows it: of a choice its place, for lists are no categories."""
    if isinstance(search, Choice):
        return search.values.index(value)
    assert isinstance(value, int | float), "an interval holds numbers"
    return value


def _suggested(trial: Trial, key: str, search: Range) -> HyperparameterValue:
    match search:
        case Interval(low, high):
            return trial.suggest_float(key, low, high, log=search.is_logarithmic)
        case IntegerInterval(low, high, logarithmic):
            return trial.suggest_int(key, low, high, log=logarithmic)
        case Choice(values):
            return values[trial.suggest_categorical(key, range(len(values)))]
        case Fixed(value):
            return value
    raise TypeError(f"no suggestion for {search}")

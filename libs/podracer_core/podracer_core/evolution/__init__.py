"""The rules by which agents compete, without a service or a database; no torch.

agents          a population and its members, as the generators see them, and which share a cohort
search_space    what hyperparameters agents may have, and configurations to begin with
generator       which agents a pod trains next, by random search or in generations; tournament,
                halving, elites, optuna_search: other generators
breeding        the agents that replace others
updater         the score of evaluations, and the admission of candidates
rules           the section `evolution` as these modules read it; what agents are compared with, and
                how long a cohort trains
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.evolution.agents import (
        ALIVE, Action, Agent, Cohort, CohortRequest, NewAgent, Population, Retirement, Start, State,
        seat,
    )
    from podracer_core.evolution.breeding import Breeding, Vacancy
    from podracer_core.evolution.elites import (
        EliteStatistics, Elites, LineageStatistics, RoundResult, cholesky, elite_statistics,
        lineage_statistics, sample_around, shrink,
    )
    from podracer_core.evolution.generator import GENERATORS, Generational, Generator, RandomSearch
    from podracer_core.evolution.halving import AsynchronousHalving, Halving
    from podracer_core.evolution.optuna_search import Search, Suggestions, make_sampler
    from podracer_core.evolution.rules import (
        MINIMUM_PEERS, SAME_TO, Front, LineRound, Remaining, RoundBudget, Rules, Rungs, Throughput,
        agent_stretch, cohort_stretch, fraction_at_stake, is_at_bottom, member_limit, peer_scores,
        round_budget, shrunken,
    )
    from podracer_core.evolution.search_space import (
        DIMENSIONS, SearchSpace, Shape, configuration, coordinate, shape_of, weights_shape,
    )
    from podracer_core.evolution.tournament import Tournament
    from podracer_core.evolution.updater import (
        UPDATERS, Admission, Entry, EvaluationSummary, LowerBoundUpdater, MeanUpdater, Updater,
        admission_score, admit, claims_first, ranked,
    )
else:
    __all__, __getattr__ = exports(__name__)

"""Algorithms, environments and extensions by name, with their descriptions; imports neither torch
nor gymnasium.

algorithms, environments                  built in, described beside their code, and of installed
                                          packages; with the defaults of a task on a device
extensions                                classes that packages offer: evaluators, fusions, …
hyperparameters                           hyperparameters and their search ranges
environment_spec                          the environment of a job
spaces, observations                      spaces as plain values; how a network sees observations
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.catalogue import algorithms, extensions, hyperparameters, spaces
    from podracer_core.catalogue.algorithms import (
        BUILT_IN_ALGORITHMS, AlgorithmInfo, automatic_algorithms, broken_algorithms,
        check_action_space, check_observation_space, find_algorithm, known_algorithms,
    )
    from podracer_core.catalogue.environment_spec import (
        CONTACT_WEIGHTS, MOST_EPISODE_STEPS, EnvironmentSpec, Isolation, StoredFile, cut_warning,
        evaluation_steps,
    )
    from podracer_core.catalogue.environments import (
        BUILT_IN_ENVIRONMENTS, ENVIRONMENT_GROUP, RECIPES, ArgumentInfo, EnvironmentInfo, Recipe,
        broken_environments, described_environment, find_environment, find_recipe,
        gymnasium_environments, install_advice, installed_environments, is_batched,
        known_environments, package_advice, reward_threshold, unreachable,
    )
    from podracer_core.catalogue.extensions import (
        BUILT_IN_EVALUATORS, BUILT_IN_FUSIONS, EVALUATOR_GROUP, FUSION_GROUP, GREEDY_EPISODES,
        OUTER, evaluator_names, fusion_names, load_class, package_of,
    )
    from podracer_core.catalogue.hyperparameters import (
        EXPLORATION_NOISE, H_TERM, LAYER_NORM, OFF_POLICY, QUICK_REPLAY, SCHEDULE, Choice, Fixed,
        Hyperparameter, HyperparameterValue, IntegerInterval, Interval, Range, Scope, SearchRange,
        adapted, mutate, perturb, sample, sought,
    )
    from podracer_core.catalogue.observations import (
        WHOLE, flat_rows, named_values, origin_array, parts_of, treatment,
    )
    from podracer_core.catalogue.spaces import (
        ASYMMETRIC, NO_BOUND, Bound, BoxSpace, DictSpace, DiscreteSpace, MultiBinarySpace,
        MultiDiscreteSpace, Space, TupleSpace, describe, form_of, from_json, to_json,
    )
else:
    __all__, __getattr__ = exports(__name__)

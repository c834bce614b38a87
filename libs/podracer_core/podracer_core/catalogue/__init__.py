"""Algorithms, environments and extensions by name, with their descriptions; imports neither torch
nor gymnasium.

algorithms, environments                  built in, described beside their code, and of installed
                                          packages
extensions                                classes that packages offer: evaluators, fusions, …
hyperparameters, shared_hyperparameters   hyperparameters and their search ranges
recipes                                   the defaults of a kind of task on a device
spaces                                    spaces as plain values
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.catalogue import algorithms, extensions, ranges, spaces
    from podracer_core.catalogue.algorithms import (
        BUILT_IN, AlgorithmInfo, automatic_algorithms, broken_algorithms, check_action_space,
        check_observation_space, find_algorithm, known_algorithms,
    )
    from podracer_core.catalogue.extensions import (
        BUILT_IN_EVALUATORS, BUILT_IN_FUSIONS, EVALUATOR_GROUP, FUSION_GROUP, GREEDY_EPISODES,
        OUTER, evaluator_names, fusion_names, load_class, package_of,
    )
    from podracer_core.catalogue.hyperparameters import Hyperparameter, Scope, SearchRange
    from podracer_core.catalogue.observations import (
        WHOLE, flat_rows, named_values, origin_array, parts_of, treatment,
    )
    from podracer_core.catalogue.ranges import (
        Choice, Fixed, HyperparameterValue, IntegerInterval, Interval, Range,
    )
    from podracer_core.catalogue.recipes import RECIPES, Recipe, find_recipe
    from podracer_core.catalogue.sampling import mutate, perturb, sample
    from podracer_core.catalogue.shared_hyperparameters import (
        EXPLORATION_NOISE, H_TERM, LAYER_NORM, OFF_POLICY, QUICK_REPLAY, SCHEDULE, adapted, sought,
    )
    from podracer_core.catalogue.spaces import (
        ASYMMETRIC, NO_BOUND, Bound, BoxSpace, DictSpace, DiscreteSpace, MultiBinarySpace,
        MultiDiscreteSpace, Space, TupleSpace, describe, form_of, from_json, to_json,
    )
else:
    __all__, __getattr__ = exports(__name__)

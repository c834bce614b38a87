"""Environments by name, without torch and without starting any.

spec   the environment of a job
info   the description of an environment
find   the environments: built in, installed, Gymnasium's
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.catalogue.environments.episode_length import (
        MOST_EPISODE_STEPS, cut_warning, evaluation_steps,
    )
    from podracer_core.catalogue.environments.find import (
        BUILT_IN, ENTRY_POINT_GROUP, broken_environments, described_environment, find_environment,
        gymnasium_environments, installed_environments, is_batched, known_environments,
        reward_threshold, unreachable,
    )
    from podracer_core.catalogue.environments.info import ArgumentInfo, EnvironmentInfo, Recipe
    from podracer_core.catalogue.environments.packages import install_advice, package_advice
    from podracer_core.catalogue.environments.spec import (
        CONTACT_WEIGHTS, EnvironmentSpec, Isolation, StoredFile,
    )
else:
    __all__, __getattr__ = exports(__name__)

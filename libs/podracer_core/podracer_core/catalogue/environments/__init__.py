"""Environments by name, without torch and without starting any.

spec   the environment of a job
info   the description of an environment
find   the environments: built in, installed, Gymnasium's
"""

from podracer_core.catalogue.environments.find import (
    BUILT_IN,
    ENTRY_POINT_GROUP,
    broken_environments,
    described_environment,
    find_environment,
    gymnasium_environments,
    is_batched,
    known_environments,
    reward_threshold,
    unreachable,
)
from podracer_core.catalogue.environments.info import ArgumentInfo, EnvironmentInfo, Recipe
from podracer_core.catalogue.environments.spec import EnvironmentSpec

__all__ = [
    "BUILT_IN",
    "ENTRY_POINT_GROUP",
    "ArgumentInfo",
    "EnvironmentInfo",
    "EnvironmentSpec",
    "Recipe",
    "broken_environments",
    "described_environment",
    "find_environment",
    "gymnasium_environments",
    "is_batched",
    "known_environments",
    "reward_threshold",
    "unreachable",
]

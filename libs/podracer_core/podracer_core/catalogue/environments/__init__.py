"""Environments by name, without torch and without starting any."""

from podracer_core.catalogue.environments.find import BUILT_IN, ENTRY_POINT_GROUP, find_environment
from podracer_core.catalogue.environments.info import EnvironmentInfo
from podracer_core.catalogue.environments.spec import EnvironmentSpec

__all__ = ["BUILT_IN", "ENTRY_POINT_GROUP", "EnvironmentInfo", "EnvironmentSpec", "find_environment"]

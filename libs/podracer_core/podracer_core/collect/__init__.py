"""Collecting experience: one collector for the fused learner and for the worker."""

from podracer_core.collect.collector import Collector
from podracer_core.random_numbers.streams import (
    ADMISSION,
    CONFIRMATION,
    SCREENING,
    action_keys,
    environment_keys,
    evaluation_seeds,
)

__all__ = [
    "ADMISSION",
    "CONFIRMATION",
    "SCREENING",
    "Collector",
    "action_keys",
    "environment_keys",
    "evaluation_seeds",
]

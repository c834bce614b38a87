"""Evaluations and inspections, by an evaluator or in this process.

remote_backend   evaluations beside training
works            EVALUATE and INSPECT, and their calls of an evaluator
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_learner.evaluators.remote_backend import PolicyStream, RemoteBackend
    from podracer_learner.evaluators.works import (
        EvaluationTooLong, evaluate_for, inspect_environment_for, require_user_code_allowed,
    )
else:
    __all__, __getattr__ = exports(__name__)

"""Conversion to messages and back, derived from the fields where they have the same names.

sections     search, evolution, objective, pod
catalogue    environments, spaces, hyperparameters

Those of cohorts and evaluations, which need torch, are in `podracer_platform.training_messages`.
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_platform.messages.catalogue import (
        arguments_from_message, description_to_message, environment_from_message,
        environment_to_message, file_from_message, file_to_message, files_from_messages,
        files_to_messages, hyperparameter_from_message, hyperparameter_to_message,
        hyperparameters_from_message, space_from_message, space_to_message,
    )
    from podracer_platform.messages.sections import (
        evaluation_plan_from_message, evaluation_plan_to_message, evolution_from_message,
        evolution_to_message, objective_from_message, objective_to_message, pod_from_message,
        pod_to_message, read, search_from_message, search_to_message, seconds_from_duration,
        seconds_to_duration, write,
    )
else:
    __all__, __getattr__ = exports(__name__)

"""Evaluation of policies, with an interval of the mean return.

evaluator          the interface, the class of a name, and the default: an episode in each of a
                   batch of environments
result             returns with their interval
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.evaluate import evaluator
    from podracer_core.evaluate.evaluator import (
        Evaluated, Evaluator, GreedyEvaluator, evaluator_class,
    )
    from podracer_core.evaluate.result import (
        EvaluationResult, numbers, result_from_json, result_to_json,
    )
else:
    __all__, __getattr__ = exports(__name__)

"""Evaluation of policies, with an interval of the mean return.

evaluator          the interface, and the class of a name
greedy_evaluator   the default: an episode in each of a batch of environments
result             returns with their interval
"""

from podracer_core.evaluate.evaluator import Evaluator, evaluator_class
from podracer_core.evaluate.greedy_evaluator import GreedyEvaluator
from podracer_core.evaluate.result import EvaluationResult

__all__ = ["EvaluationResult", "Evaluator", "GreedyEvaluator", "evaluator_class"]

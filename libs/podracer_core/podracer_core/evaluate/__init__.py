"""How policies are judged, and what that says about the mean return.

evaluator          the interface, and the class behind a name
greedy_evaluator   the usual one: an episode in each of a batch of environments
backtesting        accounts played through the market of StockTrading-v0
result             returns with their interval
"""

from podracer_core.evaluate.evaluator import Evaluator, evaluator_class
from podracer_core.evaluate.greedy_evaluator import GreedyEvaluator
from podracer_core.evaluate.result import EvaluationResult

__all__ = ["EvaluationResult", "Evaluator", "GreedyEvaluator", "evaluator_class"]

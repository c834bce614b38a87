"""Evaluation: how policies are judged, and what that says about the mean return."""

from podracer_core.evaluate.evaluator import Evaluator, evaluator_class
from podracer_core.evaluate.greedy_evaluator import GreedyEvaluator
from podracer_core.evaluate.result import EvaluationResult

__all__ = ["EvaluationResult", "Evaluator", "GreedyEvaluator", "evaluator_class"]

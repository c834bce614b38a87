"""Evaluation: greedy episodes, and what they say about the mean return."""

from podracer_core.evaluate.evaluation import Evaluator
from podracer_core.evaluate.result import EvaluationResult
from podracer_core.statistics.student_t import student_t_quantile

__all__ = ["EvaluationResult", "Evaluator", "student_t_quantile"]

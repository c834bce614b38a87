"""`python -m podracer_evaluator`."""

import sys

from podracer_core.process import run_service
from podracer_evaluator.config import EvaluatorConfig
from podracer_evaluator.server import serve

if __name__ == "__main__":
    sys.exit(run_service("evaluator", EvaluatorConfig, serve))

"""`python -m podracer_evaluator`."""

from podracer_core.service.process import main
from podracer_evaluator.config import EvaluatorConfig
from podracer_evaluator.server import serve

if __name__ == "__main__":
    main("evaluator", EvaluatorConfig, serve)

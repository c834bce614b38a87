"""`python -m podracer_evaluator`."""

from podracer_evaluator.server import EvaluatorConfig, serve
from podracer_platform.service.process import main

if __name__ == "__main__":
    main("evaluator", EvaluatorConfig, serve)

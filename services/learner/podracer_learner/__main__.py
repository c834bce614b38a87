"""`python -m podracer_learner`."""

import sys

from podracer_core.process import run_service
from podracer_learner.config import LearnerConfig
from podracer_learner.server import serve

if __name__ == "__main__":
    sys.exit(run_service("learner", LearnerConfig, serve))

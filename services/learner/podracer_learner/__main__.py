"""`python -m podracer_learner`."""

from podracer_core.service.process import main
from podracer_learner.config import LearnerConfig
from podracer_learner.server import serve

if __name__ == "__main__":
    main("learner", LearnerConfig, serve)
